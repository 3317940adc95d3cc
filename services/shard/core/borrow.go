// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// hold is called when a delivered attempt is first at all its vertices. It is
// where ways of execution part: this is Borrow (DynaStar), in which the sources
// lend their vertices to the coordinator.
func (c *Core) hold(a *attempt) {
	a.phase = attemptHolding
	if a.key.coordinator == c.cfg.Shard && (a.inputs != nil || len(a.claims) == 1) {
		c.execute(a)
		return
	}
	c.emitAttempt(a)
}

// input says what this shard lends to an attempt. The state stays as it is while
// the attempt holds its vertices, so each call gives the same.
func (c *Core) input(a *attempt) *shardv1.Input {
	in := &shardv1.Input{Attempt: a.key.proto(), Shard: uint32(c.cfg.Shard)}
	budget := maxScanBytes / len(a.claims)
	if isRangeScan(a.command) {
		p := c.scanOwned(a.command, budget)
		in.Scanned, in.More = p.entries, p.more
		return in
	}
	reads := valuesRead(a.command)
	size := 0
	for _, key := range a.mine {
		state := &shardv1.KeyState{Key: key, Version: c.clock}
		name := text(a.command.Keys[key])
		if cl, found := c.keys.get(name); found {
			state.Found, state.Version = true, cl.version
			if _, read := reads[name]; read {
				state.Value = cl.value
				size += len(cl.value)
			}
		}
		in.States = append(in.States, state)
	}
	if size > maxLentBytes {
		return &shardv1.Input{Attempt: in.Attempt, Shard: in.Shard, Refused: tooMuchLent(fmt.Sprintf("%d bytes from %v", size, c.cfg.Shard))}
	}
	in.Scanned, in.More = c.keys.scanForLending(a.command, a.mine, budget)
	return in
}

// maxLentBytes bounds what the shards of one command lend together, so that it
// fits into one log entry, and its result and writes into one message.
const maxLentBytes = 7 << 20

func tooMuchLent(what string) string {
	return fmt.Sprintf("a command over several shards may read values of %d bytes together from the others, this one reads %s; read fewer keys at once", maxLentBytes, what)
}

// valuesRead returns the keys whose values a command needs; those it only writes
// need not be lent. It goes by name: a key may be declared twice.
func valuesRead(cmd *kvv1.Command) map[string]struct{} {
	reads := map[string]struct{}{}
	for _, compare := range cmd.Compares {
		reads[text(cmd.Keys[compare.Key])] = struct{}{}
	}
	for _, ops := range [2][]*kvv1.Op{cmd.ThenOps, cmd.ElseOps} {
		for _, op := range ops {
			if op.Kind == kvv1.OpKind_OP_KIND_GET || op.Kind == kvv1.OpKind_OP_KIND_INCREMENT {
				reads[text(cmd.Keys[op.Key])] = struct{}{}
			}
		}
	}
	return reads
}

// boundInputs returns the inputs, or if together they are too much, refusals in
// their place.
func boundInputs(inputs []*shardv1.Input) []*shardv1.Input {
	size := 0
	for _, in := range inputs {
		for _, s := range in.States {
			size += len(s.Value)
		}
		for _, kv := range in.Scanned {
			size += len(kv.Key) + len(kv.Value)
		}
	}
	if size <= maxScanBytes {
		return inputs
	}
	refused := make([]*shardv1.Input, len(inputs))
	for i, in := range inputs {
		refused[i] = &shardv1.Input{Attempt: in.Attempt, Shard: in.Shard, Refused: tooMuchLent(fmt.Sprintf("%d bytes from %d shards", size, len(inputs)))}
	}
	return refused
}

// inputs logs, at the coordinator, what all the others lent.
func (c *Core) inputs(e *shardv1.Inputs) {
	a := c.pending[attemptKeyOf(e.GetAttempt())]
	if a == nil || a.key.coordinator != c.cfg.Shard || a.inputs != nil || a.phase < attemptDecided {
		return
	}
	for _, other := range a.others() {
		if inputOf(e.Inputs, other) == nil {
			return
		}
	}
	a.inputs = e.Inputs
	if a.phase == attemptHolding {
		c.execute(a)
		c.pump()
	}
}

func inputOf(inputs []*shardv1.Input, shard keyspace.ShardID) *shardv1.Input {
	for _, in := range inputs {
		if keyspace.ShardID(in.Shard) == shard {
			return in
		}
	}
	return nil
}

// execute runs an attempt at its coordinator, answers the client and gives back
// what was lent.
func (c *Core) execute(a *attempt) {
	var result *kvv1.Result
	written := 0
	var perShard map[keyspace.ShardID][]*shardv1.KeyState
	if isRangeScan(a.command) {
		result = c.executeRangeScan(a)
	} else {
		x := c.execution(a.command)
		x.lent = gatherLent(a)
		x.version = c.versionAbove(a)
		result = x.run()
		if len(x.writes) > 0 {
			c.clock = x.version
			written, perShard = c.applyWrites(a, x.writes)
		}
	}
	for _, other := range a.others() {
		a.returns = append(a.returns, outgoingReturn{to: other, message: &shardv1.Return{
			Attempt: a.key.proto(), States: perShard[other], Result: result,
		}})
	}
	if !PureRead(a.command) {
		c.leaveProgress(a.command)
	}
	a.phase = attemptExecuted
	a.inputs = nil
	c.remember(a.command, result, a.vertices)
	c.executed++
	c.executedMulti++
	c.reply(a.origin, &kvv1.Reply{Outcome: kvv1.Outcome_OUTCOME_OK, Result: result, MultiShard: len(a.claims) > 1})
	c.trace(a, written, true)
	c.queues.remove(a.unit)
	a.unit = nil
	if len(a.claims) == 1 {
		c.endAttempt(a)
		return
	}
	c.emitAttempt(a)
}

func (c *Core) executeRangeScan(a *attempt) *kvv1.Result {
	parts := []part{c.scanOwned(a.command, maxScanBytes/len(a.claims))}
	for _, in := range a.inputs {
		parts = append(parts, part{entries: in.Scanned, more: in.More})
	}
	return mergeParts(parts, scanLimit(a.command.ThenOps[0]))
}

// gatherLent puts together what the others lent.
func gatherLent(a *attempt) *lent {
	l := &lent{states: map[string]keyState{}, scanned: map[keyspace.Vertex][]*kvv1.KeyValue{}}
	for _, in := range a.inputs {
		l.cut = l.cut || in.More
		if l.refused == "" {
			l.refused = in.Refused
		}
		for _, s := range in.States {
			if int(s.Key) < len(a.command.Keys) {
				key := text(a.command.Keys[s.Key])
				l.states[key] = keyState{found: s.Found, value: s.Value, version: s.Version}
				if v := keyspace.VertexOf(key); l.scanned[v] == nil {
					l.scanned[v] = []*kvv1.KeyValue{}
				}
			}
		}
		for _, kv := range in.Scanned {
			v := keyspace.VertexOf(text(kv.Key))
			l.scanned[v] = append(l.scanned[v], kv)
		}
	}
	for v := range l.scanned {
		sortEntries(l.scanned[v])
	}
	return l
}

// versionAbove returns a version above that of every key of the attempt. The
// state of an absent key carries its shard's clock, so that a key that was
// deleted goes on above the versions it had.
func (c *Core) versionAbove(a *attempt) uint64 {
	version := c.clock
	for _, in := range a.inputs {
		for _, s := range in.States {
			version = max(version, s.Version)
		}
	}
	return version + 1
}

// applyWrites writes what is owned here and sorts the rest by shard.
func (c *Core) applyWrites(a *attempt, writes []write) (int, map[keyspace.ShardID][]*shardv1.KeyState) {
	owner := map[string]*shardv1.KeyState{}
	shard := map[string]keyspace.ShardID{}
	for _, claim := range a.claims {
		if keyspace.ShardID(claim.Shard) == c.cfg.Shard {
			continue
		}
		for _, key := range claim.Keys {
			name := text(a.command.Keys[key])
			owner[name] = &shardv1.KeyState{Key: key}
			shard[name] = keyspace.ShardID(claim.Shard)
		}
	}
	written := 0
	perShard := map[keyspace.ShardID][]*shardv1.KeyState{}
	for _, w := range writes {
		state, elsewhere := owner[w.key]
		if !elsewhere {
			written += c.write(w.key, w.keyState)
			continue
		}
		state.Found, state.Value, state.Version = w.found, w.value, w.version
		perShard[shard[w.key]] = append(perShard[shard[w.key]], state)
	}
	return written, perShard
}

// giveBack logs, at a source, the new values of what it lent, and releases it.
func (c *Core) giveBack(r *shardv1.Return) {
	key := attemptKeyOf(r.GetAttempt())
	a := c.pending[key]
	if a == nil {
		if c.finished.has(key) {
			c.send(key.coordinator, returnAckMessage(key, c.cfg.Shard))
		}
		return
	}
	if a.phase != attemptHolding || key.coordinator == c.cfg.Shard {
		return
	}
	written := 0
	for _, s := range r.States {
		if int(s.Key) < len(a.command.Keys) {
			c.clock = max(c.clock, s.Version)
			written += c.write(text(a.command.Keys[s.Key]), keyState{found: s.Found, value: s.Value, version: s.Version})
		}
	}
	c.remember(a.command, r.Result, a.vertices)
	c.trace(a, written, false)
	c.queues.remove(a.unit)
	c.endAttempt(a)
	c.send(key.coordinator, returnAckMessage(key, c.cfg.Shard))
	c.pump()
}

func returnAckMessage(key attemptKey, shard keyspace.ShardID) *shardv1.Message {
	return &shardv1.Message{Body: &shardv1.Message_ReturnAck{ReturnAck: &shardv1.ReturnAck{Attempt: key.proto(), Shard: uint32(shard)}}}
}

// finish lets the coordinator forget attempts that all participants have released.
func (c *Core) finish(e *shardv1.Finish) {
	for _, at := range e.GetAttempts() {
		if a := c.pending[attemptKeyOf(at)]; a != nil && a.phase == attemptExecuted {
			c.endAttempt(a)
		}
	}
}

func (c *Core) trace(a *attempt, written int, coordinator bool) {
	if !c.tracing {
		return
	}
	vertices := a.vertices
	if coordinator {
		vertices = Vertices(a.command)
	}
	c.emit(Effect{Kind: EffectExecuted, Executed: &Executed{
		Vertices: vertices, MultiShard: true, Coordinator: coordinator, ReadOnly: PureRead(a.command), BytesWritten: written,
	}})
}
