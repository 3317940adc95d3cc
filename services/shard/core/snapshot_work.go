// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"maps"
	"slices"

	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// encodeWork encodes what is under way: attempts, waiting commands, handoffs and
// background deletions.
func (c *Core) encodeWork() encoder {
	var e encoder
	e.number(uint64(len(c.pending)))
	for _, a := range c.pendingSorted() {
		a.encode(&e)
	}
	e.number(c.queues.next)
	e.number(uint64(c.queues.live)) //nolint:gosec // a count
	for _, u := range c.queues.all {
		if !u.gone {
			u.encode(&e)
		}
	}
	e.number(uint64(len(c.outgoing)))
	for _, id := range slices.Sorted(maps.Keys(c.outgoing)) {
		o := c.outgoing[id]
		e.message(o.handoff)
		e.number(uint64(o.phase))
		e.flag(o.drained)
		e.text(o.reason)
	}
	e.number(uint64(len(c.incoming)))
	for _, id := range slices.Sorted(maps.Keys(c.incoming)) {
		in := c.incoming[id]
		e.number(id)
		e.flag(in.handoff != nil)
		if in.handoff != nil {
			e.message(in.handoff)
		}
		e.number(uint64(in.phase))
		e.number(in.attempt)
		e.number(in.next)
	}
	e.number(uint64(len(c.sweeps)))
	for _, s := range c.sweeps {
		s.encode(&e)
	}
	return e
}

func (c *Core) decodeWork(d *decoder) {
	for range d.count() {
		a := decodeAttempt(d, c.cfg)
		c.pending[a.key] = a
	}
	c.queues.next = d.number()
	for range d.count() {
		if u := c.decodeUnit(d); d.err == nil {
			c.queues.insert(u)
		}
	}
	for range d.count() {
		o := &outgoing{handoff: &shardv1.Handoff{}}
		d.message(o.handoff)
		o.area = newArea(o.handoff)
		o.phase = outgoingPhase(d.number()) //nolint:gosec // one of a few
		o.drained = d.flag()
		o.reason = d.text()
		c.outgoing[o.handoff.Id] = o
	}
	for range d.count() {
		id := d.number()
		in := &incoming{}
		if d.flag() {
			in.handoff = &shardv1.Handoff{}
			d.message(in.handoff)
			in.area = newArea(in.handoff)
		}
		in.phase = incomingPhase(d.number()) //nolint:gosec // one of a few
		in.attempt = d.number()
		in.next = d.number()
		c.incoming[id] = in
	}
	for range d.count() {
		c.sweeps = append(c.sweeps, decodeSweep(d))
	}
	if d.err == nil {
		c.derive()
	}
}

// derive rebuilds what follows from the state.
func (c *Core) derive() {
	for _, a := range c.pending {
		if a.phase <= attemptDecided {
			c.undelivered.Set(a)
		}
		if a.key.coordinator == c.cfg.Shard {
			c.coordinated.Set(a.key.number, struct{}{})
		}
		if a.phase != attemptExecuted && !PureRead(a.command) {
			c.enterProgress(a.command)
		}
	}
	for _, u := range c.queues.all {
		if u.attempt == nil && !u.reads {
			c.enterProgress(u.command)
		}
	}
	c.relist()
}

func (a *attempt) encode(e *encoder) {
	e.message(&shardv1.Propose{Attempt: a.key.proto(), Command: a.command, Claims: a.claims})
	e.number(a.origin)
	e.number(uint64(a.phase))
	e.message(a.vote.proto())
	e.message(a.order.proto())
	e.flag(a.inputs != nil)
	e.message(&shardv1.Inputs{Inputs: a.inputs})
	e.number(uint64(len(a.returns)))
	for _, r := range a.returns {
		e.number(uint64(r.to))
		e.message(r.message)
	}
}

func decodeAttempt(d *decoder, cfg Config) *attempt {
	p := &shardv1.Propose{}
	d.message(p)
	if d.err == nil && (Validate(p.GetCommand()) != nil || checkClaims(p, attemptKeyOf(p.Attempt).coordinator) != "") {
		d.fail(fmt.Errorf("attempt %v in it has a malformed command", p.Attempt))
	}
	if d.err != nil {
		return &attempt{}
	}
	a := newAttempt(attemptKeyOf(p.Attempt), p, cfg.Shard)
	a.origin = d.number()
	a.phase = attemptPhase(d.number()) //nolint:gosec // one of a few
	var at shardv1.Timestamp
	d.message(&at)
	a.vote = stampOf(&at)
	d.message(&at)
	a.order = stampOf(&at)
	some := d.flag()
	var inputs shardv1.Inputs
	d.message(&inputs)
	if some {
		a.inputs = inputs.Inputs
	}
	for range d.count() {
		r := outgoingReturn{to: d.shard(), message: &shardv1.Return{}}
		d.message(r.message)
		a.returns = append(a.returns, r)
	}
	return a
}

func (u *unit) encode(e *encoder) {
	e.number(u.sequence)
	e.flag(u.attempt != nil)
	if u.attempt != nil {
		e.message(u.attempt.key.proto())
		return
	}
	e.message(&shardv1.Submitted{Origin: u.origin, Command: u.command})
}

func (c *Core) decodeUnit(d *decoder) *unit {
	u := &unit{sequence: d.number()}
	if d.flag() {
		var key shardv1.Attempt
		d.message(&key)
		u.attempt = c.pending[attemptKeyOf(&key)]
		if u.attempt == nil {
			d.fail(fmt.Errorf("a unit in it belongs to attempt %v, which is not in it", attemptKeyOf(&key)))
			return u
		}
		u.command, u.vertices = u.attempt.command, u.attempt.vertices
	} else {
		var s shardv1.Submitted
		d.message(&s)
		if d.err == nil && Validate(s.Command) != nil {
			d.fail(fmt.Errorf("a waiting command in it is malformed: %w", Validate(s.Command)))
		}
		if d.err != nil {
			return u
		}
		u.origin, u.command, u.vertices = s.Origin, s.Command, Vertices(s.Command)
	}
	u.ranged, u.reads = isRangeScan(u.command), PureRead(u.command)
	return u
}

func (s *sweep) encode(e *encoder) {
	e.message(s.area.handoff())
	e.number(uint64(len(s.targets)))
	e.number(uint64(s.from.slot))
	e.text(string(s.from.vertex))
	e.text(s.from.key)
}

func decodeSweep(d *decoder) *sweep {
	var h shardv1.Handoff
	d.message(&h)
	s := &sweep{area: newArea(&h)}
	all := s.area.targets()
	left := d.number()
	if left > uint64(len(all)) {
		d.fail(errShort)
		left = 0
	}
	s.targets = all[uint64(len(all))-left:]
	s.from = place{slot: d.slot()}
	s.from.vertex = keyspace.Vertex(d.text())
	s.from.key = d.text()
	return s
}
