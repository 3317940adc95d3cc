// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"fmt"
	"sync"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

const (
	// maxFrameReplies and maxFrameBytes bound one message of replies.
	maxFrameReplies = 512
	maxFrameBytes   = 1 << 20
)

// outbox holds the replies that wait to be sent on one stream, and bounds what
// is under way on it.
type outbox struct {
	wake, room  chan struct{}
	maxRequests int
	maxBytes    int

	mu       sync.Mutex
	replies  []outReply
	bytes    int
	inFlight int

	// The sender's: the frame and its memory, used again for each message.
	frame    []*kvv1.Reply
	memory   []kvv1.Reply
	sending  []outReply
	response kvv1.ExecuteResponse
}

type outReply struct {
	tag   uint64
	size  int
	reply *kvv1.Reply
}

func newOutbox(limits *Limits) *outbox {
	return &outbox{
		wake: make(chan struct{}, 1), room: make(chan struct{}, 1),
		maxRequests: limits.MaxStreamRequests, maxBytes: limits.MaxStreamBytes,
		memory: make([]kvv1.Reply, maxFrameReplies),
	}
}

// maxReplyBytes bounds one reply: the largest command with room around it.
const maxReplyBytes = 2 * keyspace.MaxCommandBytes

func (o *outbox) put(r *request, reply *kvv1.Reply) {
	size := replySize(reply)
	if size > maxReplyBytes {
		message := fmt.Sprintf("the result has %d bytes, at most %d can be sent: read fewer or smaller values at a time", size, maxReplyBytes)
		if reply = unknownReply(message); r.reads {
			reply = &kvv1.Reply{Outcome: kvv1.Outcome_OUTCOME_REJECTED, Message: message}
		}
		size = replySize(reply)
	}
	o.mu.Lock()
	o.replies = append(o.replies, outReply{tag: r.tag, size: size, reply: reply})
	o.bytes += size
	o.mu.Unlock()
}

func (o *outbox) flush() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// replySize estimates the bytes of a reply on the wire.
func replySize(reply *kvv1.Reply) int {
	size := 32 + len(reply.GetMessage())
	for _, op := range reply.GetResult().GetOps() {
		size += 16 + len(op.GetValue())
		for _, e := range op.GetEntries() {
			size += 16 + len(e.GetKey()) + len(e.GetValue())
		}
	}
	for _, h := range reply.GetHints() {
		size += 8 + len(h.GetVertex())
	}
	return size
}

// awaitRoom waits until more requests may be read, and counts them.
func (o *outbox) awaitRoom(ctx context.Context) error {
	for {
		o.mu.Lock()
		free := o.inFlight < o.maxRequests && o.bytes < o.maxBytes
		o.mu.Unlock()
		if free {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-o.room:
		}
	}
}

func (o *outbox) began(requests int) {
	o.mu.Lock()
	o.inFlight += requests
	o.mu.Unlock()
}

// next returns the next message of replies, nil if none waits. It is valid until the next call.
func (o *outbox) next(epoch uint64) *kvv1.ExecuteResponse {
	o.mu.Lock()
	n, size := 0, 0
	for n < len(o.replies) && n < maxFrameReplies && (n == 0 || size+o.replies[n].size <= maxFrameBytes) {
		size += o.replies[n].size
		n++
	}
	clear(o.sending)
	o.sending = append(o.sending[:0], o.replies[:n]...)
	rest := copy(o.replies, o.replies[n:])
	clear(o.replies[rest:])
	o.replies = o.replies[:rest]
	o.bytes -= size
	o.inFlight -= n
	o.mu.Unlock()
	if n == 0 {
		return nil
	}
	select {
	case o.room <- struct{}{}:
	default:
	}
	o.frame = o.frame[:0]
	for i := range o.sending {
		// The core's replies may be shared with its state: only a copy gets the tag.
		from, to := o.sending[i].reply, &o.memory[i]
		to.Tag, to.Outcome, to.Result, to.Message = o.sending[i].tag, from.GetOutcome(), from.GetResult(), from.GetMessage()
		to.Hints, to.MultiShard = from.GetHints(), from.GetMultiShard()
		o.frame = append(o.frame, to)
	}
	o.response.Replies, o.response.Epoch = o.frame, epoch
	return &o.response
}

// idle says that no request is under way and no reply waits.
func (o *outbox) idle() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.inFlight == 0
}
