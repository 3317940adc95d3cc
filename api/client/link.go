// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// maxShardTime bounds how long a shard may keep a command before it answers
// that the outcome is unknown; the command is then sent again with the same id.
const maxShardTime = 5 * time.Second

// link is the way to one shard: a queue of calls and, while connected, one
// Execute stream. What is queued is bounded by Config.MaxInFlight.
type link struct {
	client *Client
	shard  keyspace.ShardID
	wake   chan struct{}

	mu       sync.Mutex
	waiting  []*call
	inFlight map[uint64]*call
	lastTag  uint64
	closed   bool

	dialer dialer
	frame  frame
}

// frame is the request that is being built; its memory is used again.
type frame struct {
	message  kvv1.ExecuteRequest
	requests []*kvv1.Request
	over     []*call
}

func newLink(c *Client, shard keyspace.ShardID) *link {
	l := &link{client: c, shard: shard, wake: make(chan struct{}, 1), inFlight: map[uint64]*call{}, dialer: dialer{client: c, shard: shard}}
	l.frame.requests = make([]*kvv1.Request, c.config.MaxFrameCommands)
	for i := range l.frame.requests {
		l.frame.requests[i] = &kvv1.Request{}
	}
	return l
}

func (l *link) enqueue(k *call) {
	l.mu.Lock()
	closed := l.closed
	if !closed {
		l.waiting = append(l.waiting, k)
	}
	l.mu.Unlock()
	if closed {
		k.finish(nil, k.failure(Closed, errClosed))
		return
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run keeps a stream to the shard while there is something to send, until the client is closed.
func (l *link) run() {
	ctx := l.client.stopped
	for failures := 0; ctx.Err() == nil; {
		if !l.awaitWork(ctx) {
			return
		}
		answered, err := l.connectAndServe(ctx)
		if answered {
			failures = 0
		}
		l.client.stats.reconnects.Add(1)
		if hook := l.client.config.Hooks.Reconnect; hook != nil && ctx.Err() == nil {
			hook(l.shard, err)
		}
		l.takeBack()
		select {
		case <-ctx.Done():
		case <-time.After(l.client.clock.linkPause(failures)):
		}
		failures++
		l.reroute()
	}
}

func (l *link) awaitWork(ctx context.Context) bool {
	for {
		l.mu.Lock()
		work := len(l.waiting) > 0
		l.mu.Unlock()
		if work {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-l.wake:
		}
	}
}

// connectAndServe runs one stream to its end. answered says whether any reply came.
func (l *link) connectAndServe(ctx context.Context) (answered bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := l.dialer.open(ctx)
	if err != nil {
		return false, err
	}
	received := make(chan struct{})
	go func() {
		defer close(received)
		defer cancel()
		answered, err = l.receive(stream)
	}()
	sendErr := l.send(ctx, stream)
	cancel()
	<-received
	l.dialer.ended(stream, err)
	if err == nil {
		err = sendErr
	}
	return answered, err
}

// send sends what waits, as much as fits in each frame, until the stream ends.
func (l *link) send(ctx context.Context, stream kvv1.KV_ExecuteClient) error {
	for {
		now := time.Now()
		filled := l.fill(now)
		for _, k := range l.frame.over {
			k.expired(now)
		}
		clear(l.frame.over)
		if !filled {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-l.wake:
			}
			continue
		}
		l.frame.message.Epoch = uint64(l.client.cache.epoch())
		// Send encodes before it returns, so the frame's memory is free afterwards.
		if err := stream.Send(&l.frame.message); err != nil {
			return err
		}
	}
}

// fill moves waiting calls into the in-flight table and the frame, and those
// whose time is over aside: their callbacks must run without the lock.
func (l *link) fill(now time.Time) bool {
	config := &l.client.config
	f := &l.frame
	f.over = f.over[:0]
	l.mu.Lock()
	defer l.mu.Unlock()
	n, size, taken := 0, 0, 0
	for _, k := range l.waiting {
		if n == config.MaxFrameCommands {
			break
		}
		if k.isOver(now) {
			f.over = append(f.over, k)
			taken++
			continue
		}
		length := proto.Size(k.command)
		if n > 0 && size+length > config.MaxFrameBytes {
			break
		}
		size += length
		l.lastTag++
		r := f.requests[n]
		r.Tag, r.Command = l.lastTag, k.command
		r.TimeoutMillis = uint32(max(1, min(k.deadline.Sub(now), maxShardTime)/time.Millisecond))
		k.inFlight.Store(true)
		l.inFlight[l.lastTag] = k
		n++
		taken++
	}
	l.waiting = slices.Delete(l.waiting, 0, taken)
	f.message.Requests = f.requests[:n]
	return n > 0
}

// receive answers calls until the stream ends.
func (l *link) receive(stream kvv1.KV_ExecuteClient) (answered bool, err error) {
	var calls []*call
	for {
		m, err := stream.Recv()
		if err != nil {
			return answered, err
		}
		answered = true
		calls = calls[:0]
		l.mu.Lock()
		for _, reply := range m.GetReplies() {
			calls = append(calls, l.inFlight[reply.GetTag()])
			delete(l.inFlight, reply.GetTag())
		}
		l.mu.Unlock()
		for i, reply := range m.GetReplies() {
			if k := calls[i]; k != nil && !k.finished.Load() {
				k.answered(l.shard, reply)
			}
		}
		clear(calls)
	}
}

// takeBack puts what was in flight on a stream that ended in front of what
// waits, in the order in which it was sent: it goes out again with the same ids.
func (l *link) takeBack() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.inFlight) == 0 {
		return
	}
	back := make([]*call, 0, len(l.inFlight)+len(l.waiting))
	for _, tag := range slices.Sorted(maps.Keys(l.inFlight)) {
		k := l.inFlight[tag]
		k.uncertain.Store(true)
		k.inFlight.Store(false)
		back = append(back, k)
	}
	clear(l.inFlight)
	l.waiting = append(back, l.waiting...)
}

// reroute sends what waits for a shard that could not be reached elsewhere, if
// a newer placement says so.
func (l *link) reroute() {
	var elsewhere []*call
	l.mu.Lock()
	l.waiting = slices.DeleteFunc(l.waiting, func(k *call) bool {
		moved := l.client.cache.choose(k.vertices) != l.shard
		if moved {
			elsewhere = append(elsewhere, k)
		}
		return moved
	})
	l.mu.Unlock()
	for _, k := range elsewhere {
		l.client.route(k)
	}
}

// sweep gives up the calls whose time is over.
func (l *link) sweep(now time.Time) {
	var over []*call
	l.mu.Lock()
	for tag, k := range l.inFlight {
		if k.isOver(now) {
			delete(l.inFlight, tag)
			over = append(over, k)
		}
	}
	l.waiting = slices.DeleteFunc(l.waiting, func(k *call) bool {
		gone := k.isOver(now)
		if gone {
			over = append(over, k)
		}
		return gone
	})
	l.mu.Unlock()
	for _, k := range over {
		k.expired(now)
	}
}

func (l *link) failAll() {
	l.mu.Lock()
	all := append([]*call(nil), l.waiting...)
	for _, tag := range slices.Sorted(maps.Keys(l.inFlight)) {
		all = append(all, l.inFlight[tag])
	}
	clear(l.inFlight)
	l.waiting, l.closed = nil, true
	l.mu.Unlock()
	for _, k := range all {
		k.finish(nil, k.failure(Closed, errClosed))
	}
}
