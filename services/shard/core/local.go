// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// commands applies a batch of single-shard commands.
func (c *Core) commands(batch []*shardv1.Submitted) {
	for _, s := range batch {
		c.submit(s.Origin, s.Command)
	}
}

// submit runs a single-shard command, queues it, or says why not.
func (c *Core) submit(origin uint64, cmd *kvv1.Command) {
	if err := Validate(cmd); err != nil {
		c.reply(origin, rejected(err.Error()))
		return
	}
	if isRangeScan(cmd) {
		c.submitRangeScan(origin, cmd)
		return
	}
	reads := PureRead(cmd)
	if !reads {
		if r := c.known(cmd); r != nil {
			c.reply(origin, r)
			return
		}
	}
	var few [4]keyspace.Vertex
	vertices := appendVertices(few[:0], cmd.Keys, nil)
	if r := c.refuse(vertices); r != nil {
		c.reply(origin, r)
		return
	}
	if c.queues.busy(cmd, vertices, reads) {
		c.wait(&unit{origin: origin, command: cmd, vertices: append([]keyspace.Vertex(nil), vertices...), reads: reads})
		return
	}
	c.runLocal(origin, cmd, vertices)
}

func (c *Core) submitRangeScan(origin uint64, cmd *kvv1.Command) {
	if !c.owner.ownsAll() || c.sealedAny() {
		c.reply(origin, retry("a scan over all shards must be coordinated: more than one shard owns keys"))
		return
	}
	u := &unit{origin: origin, command: cmd, ranged: true, reads: true}
	if c.wait(u) {
		c.queues.ready = append(c.queues.ready, u)
		c.pump()
	}
}

// wait queues a single-shard command, unless too many wait.
func (c *Core) wait(u *unit) bool {
	if c.queues.waiting >= c.cfg.MaxQueued {
		c.reply(u.origin, retry(fmt.Sprintf("%v has %d commands waiting for held vertices, its bound MaxQueued", c.cfg.Shard, c.queues.waiting)))
		return false
	}
	if !u.reads {
		c.enterProgress(u.command)
	}
	c.queues.add(u)
	return true
}

// known answers an update that has run already, that is under way, or whose
// result the client has acknowledged. It returns nil for a new one.
func (c *Core) known(cmd *kvv1.Command) *kvv1.Reply {
	id, ok := commandKeyOf(cmd)
	if !ok {
		return nil
	}
	if c.records.forgotten(id) {
		return rejected(fmt.Sprintf("command %d of client %x: the client has acknowledged it already; use a new sequence for a new command", id.sequence, id.client))
	}
	if rec := c.records.get(id); rec != nil {
		return &kvv1.Reply{Outcome: kvv1.Outcome_OUTCOME_OK, Result: rec.result}
	}
	if c.progress[id] > 0 {
		return retry("the same command is in progress")
	}
	return nil
}

// refuse answers a command on vertices that are not all served here.
func (c *Core) refuse(vertices []keyspace.Vertex) *kvv1.Reply {
	for _, v := range vertices {
		if owned, _, _ := c.Owns(v); !owned {
			return c.moved(vertices)
		}
	}
	return nil
}

// moved answers a command some of whose vertices are not served here, with what
// is known of all of them. If one is on its way here, the answer is RETRY.
func (c *Core) moved(vertices []keyspace.Vertex) *kvv1.Reply {
	r := &kvv1.Reply{Outcome: kvv1.Outcome_OUTCOME_MOVED, Message: fmt.Sprintf("not all of the command's keys are at %v", c.cfg.Shard)}
	coming := false
	for _, v := range vertices {
		owned, hint, incoming := c.Owns(v)
		if owned {
			hint = c.cfg.Shard
		}
		coming = coming || incoming
		if hint != keyspace.NoShard {
			r.Hints = append(r.Hints, &kvv1.Hint{Vertex: []byte(v), Shard: uint32(hint)})
		}
	}
	if coming {
		r.Outcome = kvv1.Outcome_OUTCOME_RETRY
		r.Message = fmt.Sprintf("a key of the command is on its way to %v", c.cfg.Shard)
	}
	return r
}

// runLocal executes a single-shard command whose turn it is.
func (c *Core) runLocal(origin uint64, cmd *kvv1.Command, vertices []keyspace.Vertex) {
	if isRangeScan(cmd) {
		c.reply(origin, &kvv1.Reply{Outcome: kvv1.Outcome_OUTCOME_OK, Result: mergeParts([]part{c.scanOwned(cmd, maxScanBytes)}, scanLimit(cmd.ThenOps[0]))})
		return
	}
	x := c.execution(cmd)
	x.version = c.clock + 1
	reply := &kvv1.Reply{Outcome: kvv1.Outcome_OUTCOME_OK, Result: x.run()}
	written := 0
	if len(x.writes) > 0 {
		c.clock = x.version
		for i := range x.writes {
			written += c.write(x.writes[i].key, x.writes[i].keyState)
		}
	}
	c.remember(cmd, reply.Result, vertices)
	c.executed++
	c.reply(origin, reply)
	if c.tracing {
		c.emit(Effect{Kind: EffectExecuted, Executed: &Executed{
			Vertices: append([]keyspace.Vertex(nil), vertices...), Coordinator: true, ReadOnly: PureRead(cmd), BytesWritten: written,
		}})
	}
}

// execution readies the core's only execution for a command: it is used again
// for each, so that a command does not allocate one.
func (c *Core) execution(cmd *kvv1.Command) *execution {
	x := &c.scratch
	*x = execution{keys: &c.keys, cmd: cmd}
	x.writes = x.few[:0]
	return x
}

// scanOwned reads what the shard owns of a range scan's range.
func (c *Core) scanOwned(cmd *kvv1.Command, maxBytes int) part {
	op := cmd.ThenOps[0]
	var owned func(string) bool
	if len(c.sweeps) > 0 || c.stagingAny() {
		owned = func(key string) bool { return c.owner.has(keyspace.VertexOf(key)) }
	}
	entries, more := c.keys.scanRange(text(cmd.Keys[0]), text(op.End), scanLimit(op), maxBytes, owned)
	return part{entries: entries, more: more}
}

// write sets or deletes a key and returns the bytes written.
func (c *Core) write(key string, state keyState) int {
	if state.found {
		c.keys.set(key, cell{value: state.value, version: state.version})
	} else {
		c.keys.delete(key)
	}
	for _, t := range c.trackers {
		t.written(key)
	}
	return len(key) + len(state.value)
}

// remember keeps the record of an executed command, unless it can only read.
func (c *Core) remember(cmd *kvv1.Command, result *kvv1.Result, vertices []keyspace.Vertex) {
	id, ok := commandKeyOf(cmd)
	if !ok || PureRead(cmd) {
		return
	}
	c.records.acknowledge(id.client, cmd.Id.AcknowledgedBelow, c.now)
	rec := newRecord(id, result, vertices, c.now)
	c.records.add(rec)
	for _, t := range c.trackers {
		t.recorded(rec)
	}
}

func (c *Core) emit(e Effect) { c.effects = append(c.effects, e) }

func (c *Core) reply(origin uint64, r *kvv1.Reply) { c.emit(replyEffect(origin, r)) }

func (c *Core) send(to keyspace.ShardID, m *shardv1.Message) { c.emit(sendEffect(to, m)) }

func rejected(message string) *kvv1.Reply {
	return &kvv1.Reply{Outcome: kvv1.Outcome_OUTCOME_REJECTED, Message: message}
}

func retry(message string) *kvv1.Reply {
	return &kvv1.Reply{Outcome: kvv1.Outcome_OUTCOME_RETRY, Message: message}
}

// Read runs a pure read on the applied state. When ok is false the command must
// go through the log: it writes, meets vertices that are held or have queued
// commands, or is a scan over several shards. A read of vertices that are not
// owned is answered MOVED with hints, or RETRY if they are on their way here.
// The caller has made sure that the state is fresh enough (a ReadIndex).
func (c *Core) Read(cmd *kvv1.Command) (reply *kvv1.Reply, ok bool) {
	if !PureRead(cmd) {
		return nil, false
	}
	if err := Validate(cmd); err != nil {
		return rejected(err.Error()), true
	}
	if isRangeScan(cmd) {
		return nil, false
	}
	var few [4]keyspace.Vertex
	vertices := appendVertices(few[:0], cmd.Keys, nil)
	if r := c.refuse(vertices); r != nil {
		return r, true
	}
	if c.queues.busy(cmd, vertices, true) {
		return nil, false
	}
	x := c.execution(cmd)
	return &kvv1.Reply{Outcome: kvv1.Outcome_OUTCOME_OK, Result: x.run()}, true
}
