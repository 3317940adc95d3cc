// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"context"
	"maps"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
)

// forwarder passes commands on to one shard and brings back the answers.
type forwarder struct {
	link *link
	wake chan struct{}

	mu       sync.Mutex
	queue    []Command
	inFlight map[uint64]Command
}

func (f *forwarder) push(c Command) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.queue)+len(f.inFlight) >= maxQueuedCommands {
		return false
	}
	f.queue = append(f.queue, c)
	signal(f.wake)
	return true
}

func (f *forwarder) empty() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.queue) == 0
}

// take moves commands of the same number of hops into a request.
func (f *forwarder) take(m *shardv1.ForwardRequest) bool {
	m.Requests = m.Requests[:0]
	f.mu.Lock()
	defer f.mu.Unlock()
	n, size := 0, 0
	for _, c := range f.queue {
		length := proto.Size(c.Command)
		if n == maxFrameItems || n > 0 && (size+length > maxFrameBytes || c.Hops != m.GetHops()) {
			break
		}
		m.Hops = c.Hops
		m.Requests = append(m.Requests, &kvv1.Request{
			Tag: c.Origin, Command: c.Command, TimeoutMillis: uint32(max(1, c.Timeout.Milliseconds())), //nolint:gosec // bounded by the server's longest timeout
		})
		f.inFlight[c.Origin] = c
		size += length
		n++
	}
	f.queue = slices.Delete(f.queue, 0, n)
	return n > 0
}

// stream passes on what waits until the stream ends; then what was not answered
// is reported as such.
func (f *forwarder) stream(ctx context.Context, conn *grpc.ClientConn) (worked bool, trailer metadata.MD, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := shardv1.NewPeerClient(conn).Forward(ctx)
	if err != nil {
		f.unreachable()
		return false, nil, err
	}
	received := make(chan error, 1)
	go func() {
		defer cancel()
		for {
			m, err := stream.Recv()
			if err != nil {
				received <- err
				return
			}
			f.answered(m.GetReplies())
		}
	}()
	request := &shardv1.ForwardRequest{}
	for {
		if !f.take(request) {
			select {
			case <-ctx.Done():
				err = ctx.Err()
			case <-f.wake:
				continue
			}
			break
		}
		if err = stream.Send(request); err != nil {
			break
		}
		worked = true
	}
	cancel()
	recvErr := <-received
	f.abandon()
	return worked, stream.Trailer(), why(err, recvErr)
}

func (f *forwarder) answered(replies []*kvv1.Reply) {
	answers := make([]Answer, 0, len(replies))
	f.mu.Lock()
	for _, reply := range replies {
		if _, ok := f.inFlight[reply.GetTag()]; ok {
			delete(f.inFlight, reply.GetTag())
			answers = append(answers, Answer{Origin: reply.GetTag(), Reply: reply})
		}
	}
	f.mu.Unlock()
	f.link.owner.config.Answered(answers)
}

// abandon reports what was in flight on a stream that has ended.
func (f *forwarder) abandon() {
	f.mu.Lock()
	answers := make([]Answer, 0, len(f.inFlight))
	for _, origin := range slices.Sorted(maps.Keys(f.inFlight)) {
		answers = append(answers, Answer{Origin: origin})
	}
	clear(f.inFlight)
	f.mu.Unlock()
	f.link.owner.config.Answered(answers)
}

// unreachable gives back what waits for a shard that cannot be reached: its
// vertices may be elsewhere by now. None of it was sent.
func (f *forwarder) unreachable() {
	f.mu.Lock()
	answers := make([]Answer, 0, len(f.queue))
	for _, c := range f.queue {
		answers = append(answers, Answer{Origin: c.Origin, Reply: &kvv1.Reply{
			Outcome: kvv1.Outcome_OUTCOME_RETRY, Message: "the leader of " + f.link.to.String() + " cannot be reached",
		}})
	}
	f.queue = nil
	f.mu.Unlock()
	f.link.owner.config.Answered(answers)
}

// cancel forgets a command that nobody waits for any more.
func (f *forwarder) cancel(origin uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.inFlight, origin)
	f.queue = slices.DeleteFunc(f.queue, func(c Command) bool { return c.Origin == origin })
}
