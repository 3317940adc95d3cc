// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// call is one command on its way to an answer. At any time it is in one place:
// the queue or the in-flight table of a link, or the clock's queue of retries;
// whoever takes it out there owns the fields without a lock of their own.
type call struct {
	client   *Client
	ctx      context.Context //nolint:containedctx // the caller's, looked at while the call waits
	op       string
	command  *kvv1.Command
	sequence uint64
	vertices []keyspace.Vertex
	update   bool
	started  time.Time
	deadline time.Time
	callback func(*kvv1.Reply, error)
	hasSlot  bool

	finished atomic.Bool
	shard    atomic.Uint32
	// inFlight: sent and not answered. uncertain: an earlier sending was never
	// answered, so that the command may have run.
	inFlight, uncertain atomic.Bool

	attempts  int // pauses before retries so far
	redirects int // answers MOVED since the last pause
	due       time.Time
}

// maxRedirects bounds the redirects that are followed without a pause.
const maxRedirects = 4

type opKey struct{}

// withOp names the operation for errors and hooks.
func withOp(ctx context.Context, op string) context.Context {
	return context.WithValue(ctx, opKey{}, op)
}

func newCall(ctx context.Context, c *Client, command *kvv1.Command, callback func(*kvv1.Reply, error)) *call {
	now := time.Now()
	k := &call{client: c, ctx: ctx, op: "do", command: command, callback: callback, started: now, deadline: now.Add(c.config.Timeout)}
	if op, ok := ctx.Value(opKey{}).(string); ok {
		k.op = op
	}
	if deadline, ok := ctx.Deadline(); ok {
		k.deadline = deadline
	}
	k.update = isUpdate(command)
	k.vertices = make([]keyspace.Vertex, len(command.GetKeys()))
	for i, key := range command.GetKeys() {
		k.vertices[i] = keyspace.VertexOf(string(key))
	}
	return k
}

func isUpdate(command *kvv1.Command) bool {
	for _, ops := range [2][]*kvv1.Op{command.GetThenOps(), command.GetElseOps()} {
		for _, op := range ops {
			switch op.GetKind() {
			case kvv1.OpKind_OP_KIND_PUT, kvv1.OpKind_OP_KIND_DELETE, kvv1.OpKind_OP_KIND_INCREMENT:
				return true
			default:
			}
		}
	}
	return false
}

// identify gives an update without an id the next one. Every retry sends the same.
func (k *call) identify() error {
	if !k.update || k.command.GetId() != nil {
		return nil
	}
	sequence, below, err := k.client.ids.Take()
	if err != nil {
		return err
	}
	k.sequence = sequence
	k.command = &kvv1.Command{
		Id:   &kvv1.CommandId{Client: k.client.id, Sequence: sequence, AcknowledgedBelow: below},
		Keys: k.command.GetKeys(), Compares: k.command.GetCompares(),
		ThenOps: k.command.GetThenOps(), ElseOps: k.command.GetElseOps(),
	}
	return nil
}

// answered handles the shard's reply. The call is in no queue.
func (k *call) answered(from keyspace.ShardID, reply *kvv1.Reply) {
	c := k.client
	k.inFlight.Store(false)
	switch reply.GetOutcome() {
	case kvv1.Outcome_OUTCOME_OK:
		if refused := reply.GetResult().GetRefused(); refused != "" {
			k.finish(nil, k.failure(Refused, errors.New(refused)))
			return
		}
		// A shard that passed the command on says where its vertices are.
		c.cache.learn(reply.GetHints())
		k.finish(reply, nil)
	case kvv1.Outcome_OUTCOME_REJECTED:
		k.finish(nil, k.failure(Rejected, errors.New(reply.GetMessage())))
	case kvv1.Outcome_OUTCOME_MOVED:
		c.stats.redirects.Add(1)
		if hook := c.config.Hooks.Redirect; hook != nil {
			hook(from)
		}
		c.cache.learn(reply.GetHints())
		k.redirects++
		if k.redirects <= maxRedirects && c.cache.choose(k.vertices) != from {
			c.route(k)
			return
		}
		k.retry("moved, but no newer place is known")
	case kvv1.Outcome_OUTCOME_UNKNOWN:
		k.uncertain.Store(true)
		k.retry(reply.GetMessage())
	default:
		c.cache.learn(reply.GetHints())
		k.retry(reply.GetMessage())
	}
}

// retry sends the call again, with the same id, after a pause.
func (k *call) retry(reason string) {
	k.client.stats.retries.Add(1)
	if hook := k.client.config.Hooks.Retry; hook != nil {
		hook(keyspace.ShardID(k.shard.Load()), reason)
	}
	k.redirects = 0
	k.client.clock.schedule(k)
}

func (k *call) isOver(now time.Time) bool {
	return k.finished.Load() || k.ctx.Err() != nil || !now.Before(k.deadline)
}

// expired gives the call up if its time is over or its caller went away.
func (k *call) expired(now time.Time) bool {
	switch {
	case k.finished.Load():
	case k.ctx.Err() != nil:
		k.giveUp(k.ctx.Err())
	case !now.Before(k.deadline):
		k.giveUp(context.DeadlineExceeded)
	default:
		return false
	}
	return true
}

// giveUp ends the call without an answer. It may be called from any goroutine.
func (k *call) giveUp(cause error) {
	kind := DeadlineExceeded
	if k.update && (k.inFlight.Load() || k.uncertain.Load()) {
		kind = Unknown
	}
	k.finish(nil, k.failure(kind, cause))
}

func (k *call) failure(kind Kind, cause error) *Error {
	e := &Error{Op: k.op, Kind: kind, Cause: cause}
	if keys := k.command.GetKeys(); len(keys) > 0 {
		e.Key = keys[0]
	}
	return e
}

// finish delivers the result once; later calls do nothing.
func (k *call) finish(reply *kvv1.Reply, err *Error) {
	if !k.finished.CompareAndSwap(false, true) {
		return
	}
	c := k.client
	c.stats.commands.Add(1)
	if k.sequence != 0 {
		c.ids.Answer(k.sequence)
	}
	if k.hasSlot {
		<-c.slots
	}
	if reply.GetMultiShard() {
		c.stats.multiShard.Add(1)
	}
	var failure error
	if err != nil {
		c.stats.failed.Add(1)
		failure = err
	}
	if hook := c.config.Hooks.Done; hook != nil {
		hook(k.op, time.Since(k.started), reply.GetMultiShard(), failure)
	}
	k.callback(reply, failure)
}
