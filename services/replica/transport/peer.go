// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	replicav1 "github.com/kolocate/kolocate/api/proto/replica/v1"
)

// peer is another member and what waits for it.
type peer struct {
	t       *Transport
	id      uint64
	address string
	conn    *grpc.ClientConn
	client  replicav1.ReplicaClient
	wake    chan struct{}

	mu         sync.Mutex
	queue      []*raftpb.Message
	queueBytes int
	// snapshot says that one is being streamed.
	snapshot bool
}

// enqueue appends a message, or drops it if the peer does not keep up.
func (p *peer) enqueue(m *raftpb.Message) {
	size := messageSize(m)
	p.mu.Lock()
	if len(p.queue) >= maxQueued || len(p.queue) > 0 && p.queueBytes+size > maxQueuedBytes {
		p.mu.Unlock()
		p.t.cfg.Handler.Unreachable(p.id)
		return
	}
	p.queue = append(p.queue, m)
	p.queueBytes += size
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// messageSize is about the encoded size.
func messageSize(m *raftpb.Message) int {
	size := 64
	for _, e := range m.GetEntries() {
		size += len(e.GetData()) + 24
	}
	return size
}

// take moves out what is queued.
func (p *peer) take() []*raftpb.Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.queue
	p.queue, p.queueBytes = nil, 0
	return out
}

// run sends until ctx ends, over one stream after the other.
func (p *peer) run(ctx context.Context) {
	wait, failing := firstBackoff, false
	for ctx.Err() == nil {
		sent, err := p.stream(ctx)
		if ctx.Err() != nil {
			return
		}
		if sent {
			wait, failing = firstBackoff, false
		}
		if !failing {
			p.t.cfg.Logger.Warn("lost the connection to a replica; trying again", "peer", p.id, "address", p.address, "error", err)
			failing = true
		}
		p.take()
		p.t.cfg.Handler.Unreachable(p.id)
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, lastBackoff)
	}
}

// stream opens a stream when there is something to send and sends until it fails. It says whether
// anything was sent.
func (p *peer) stream(ctx context.Context) (sent bool, err error) {
	var stream grpc.ClientStreamingClient[replicav1.SendRequest, replicav1.SendResponse]
	streamCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	for {
		select {
		case <-ctx.Done():
			return sent, fmt.Errorf("send to replica %d: %w", p.id, ctx.Err())
		case <-p.wake:
		}
		messages := p.take()
		if len(messages) == 0 {
			continue
		}
		if stream == nil {
			if stream, err = p.client.Send(streamCtx); err != nil {
				return sent, fmt.Errorf("open a stream to replica %d: %w", p.id, err)
			}
		}
		for len(messages) > 0 {
			var request *replicav1.SendRequest
			if request, messages, err = p.request(messages); err != nil {
				return sent, err
			}
			if err := stream.Send(request); err != nil {
				return sent, streamError(stream, err)
			}
		}
		sent = true
	}
}

// streamError finds out why a stream ended.
func streamError[Req, Resp any](stream grpc.ClientStreamingClient[Req, Resp], err error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	if _, why := stream.CloseAndRecv(); why != nil {
		return why //nolint:wrapcheck // the status of the peer, logged with its name
	}
	return err
}

// request encodes as many messages as go out together.
func (p *peer) request(messages []*raftpb.Message) (*replicav1.SendRequest, []*raftpb.Message, error) {
	request := &replicav1.SendRequest{Group: p.t.cfg.Group, To: p.id}
	size := 0
	for len(messages) > 0 && (size == 0 || size+messageSize(messages[0]) <= requestBytes) {
		encoded, err := proto.Marshal(messages[0])
		if err != nil {
			return nil, nil, fmt.Errorf("encode a message to replica %d: %w", p.id, err)
		}
		request.Messages = append(request.Messages, encoded)
		size += len(encoded)
		messages = messages[1:]
	}
	return request, messages, nil
}

// sendSnapshot streams the snapshot in the background, one at a time.
func (p *peer) sendSnapshot(m *raftpb.Message) {
	p.mu.Lock()
	busy := p.snapshot
	p.snapshot = true
	p.mu.Unlock()
	if busy {
		p.t.cfg.Handler.SnapshotSent(p.id, false)
		return
	}
	p.t.spawn(func() {
		start := time.Now()
		bytes, err := p.streamSnapshot(p.t.ctx, m)
		p.mu.Lock()
		p.snapshot = false
		p.mu.Unlock()
		log := p.t.cfg.Logger.With("peer", p.id, "index", m.GetSnapshot().GetMetadata().GetIndex(), "bytes", bytes, "took", time.Since(start))
		if err != nil {
			log.Warn("could not send a snapshot; trying again later", "error", err)
		} else {
			log.Info("sent a snapshot to a replica that lags")
		}
		p.t.cfg.Handler.SnapshotSent(p.id, err == nil)
	})
}

// streamSnapshot sends the message and the file of a snapshot.
func (p *peer) streamSnapshot(ctx context.Context, m *raftpb.Message) (total int64, err error) {
	file, err := p.t.cfg.Handler.OpenSnapshot(m)
	if err != nil {
		return 0, fmt.Errorf("open the snapshot: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	encoded, err := proto.Marshal(m)
	if err != nil {
		return 0, fmt.Errorf("encode the message of the snapshot: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(snapshotStall, func() { cancel(errStalled) })
	defer stalled.Stop()
	stream, err := p.client.SendSnapshot(ctx)
	if err != nil {
		return 0, fmt.Errorf("open a stream: %w", err)
	}
	for last := false; !last; {
		buffer := make([]byte, chunkBytes)
		n, err := io.ReadFull(file, buffer)
		last = errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !last {
			return total, fmt.Errorf("read the snapshot: %w", err)
		}
		chunk := &replicav1.SnapshotChunk{
			Group: p.t.cfg.Group, To: p.id, Message: encoded,
			Data: buffer[:n], Checksum: crc32.Checksum(buffer[:n], castagnoli), Last: last,
		}
		encoded = nil
		if err := stream.Send(chunk); err != nil {
			return total, errors.Join(streamError(stream, err), context.Cause(ctx))
		}
		total += int64(n)
		stalled.Reset(snapshotStall)
	}
	if _, err := stream.CloseAndRecv(); err != nil {
		return total, fmt.Errorf("finish the stream: %w", err)
	}
	return total, nil
}
