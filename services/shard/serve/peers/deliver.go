// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
)

// deliverer sends messages to one shard. What is lost with a stream is repeated
// by the protocols.
type deliverer struct {
	link *link
	wake chan struct{}

	mu    sync.Mutex
	queue []*shardv1.Message
	sizes []int
	bytes int
}

func (d *deliverer) push(m *shardv1.Message) {
	size := proto.Size(m)
	if size > maxMessageBytes {
		// It would end the stream each time, and take the others with it.
		d.link.owner.config.Logger.Error("a message to a shard is too large to be sent: the command behind it cannot go on",
			"to", d.link.to, "bytes", size, "limit", maxMessageBytes)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.queue) >= maxQueuedMessages || len(d.queue) > 0 && d.bytes+size > maxQueuedBytes {
		return
	}
	d.queue, d.sizes = append(d.queue, m), append(d.sizes, size)
	d.bytes += size
	if len(d.queue) == 1 {
		signal(d.wake)
	}
}

func signal(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

func (d *deliverer) empty() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.queue) == 0
}

// unreachable changes nothing: what waits may be delivered to the next leader.
func (d *deliverer) unreachable() {}

// take moves a frame's worth out of the queue.
func (d *deliverer) take(into []*shardv1.Message) []*shardv1.Message {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, size := 0, 0
	for n < len(d.queue) && n < maxFrameItems && (n == 0 || size+d.sizes[n] <= maxFrameBytes) {
		size += d.sizes[n]
		n++
	}
	into = append(into, d.queue[:n]...)
	rest := copy(d.queue, d.queue[n:])
	clear(d.queue[rest:])
	d.queue = d.queue[:rest]
	d.sizes = d.sizes[:copy(d.sizes, d.sizes[n:])]
	d.bytes -= size
	return into
}

// stream sends what waits until the stream ends.
func (d *deliverer) stream(ctx context.Context, conn *grpc.ClientConn) (worked bool, trailer metadata.MD, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := shardv1.NewPeerClient(conn).Deliver(ctx)
	if err != nil {
		return false, nil, err
	}
	received := make(chan error, 1)
	go func() {
		defer cancel()
		for {
			if _, err := stream.Recv(); err != nil {
				received <- err
				return
			}
		}
	}()
	config := &d.link.owner.config
	envelope := &shardv1.Envelope{FromShard: uint32(config.Shard), ToShard: uint32(d.link.to), Store: config.Store}
	for {
		envelope.Messages = d.take(envelope.Messages[:0])
		if len(envelope.Messages) == 0 {
			select {
			case <-ctx.Done():
				err = ctx.Err()
			case <-d.wake:
				continue
			}
			break
		}
		envelope.Epoch = uint64(config.Epoch())
		if err = stream.Send(envelope); err != nil {
			break
		}
		worked = true
	}
	cancel()
	recvErr := <-received
	return worked, stream.Trailer(), why(err, recvErr)
}
