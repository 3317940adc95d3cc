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

// maxHandoffs bounds the handoffs under way at one end at a time.
const maxHandoffs = 64

// outgoingPhase says how far a handoff is at its source.
type outgoingPhase uint8

const (
	outgoingCopying outgoingPhase = iota + 1
	// outgoingSealed: new commands are refused; once drained, the destination may
	// commit at any moment.
	outgoingSealed
	outgoingDone
	// outgoingRevoked: aborted or refused. The destination holds a tombstone, or
	// the seal was never logged.
	outgoingRevoked
)

// outgoing is a handoff of which this shard is the source.
type outgoing struct {
	handoff *shardv1.Handoff
	area    *area
	phase   outgoingPhase
	drained bool
	reason  string // why it was refused
}

func (o *outgoing) active() bool { return o.phase <= outgoingSealed }

func (c *Core) handoffEvent(id uint64, step HandoffStep, h *shardv1.Handoff, reason string) {
	c.emit(Effect{Kind: EffectHandoff, Handoff: &HandoffEvent{ID: id, Step: step, Handoff: h, Reason: reason}})
}

// handoffBegin logs, at the source, that a handoff has begun (DESIGN 3.5, step 2).
func (c *Core) handoffBegin(h *shardv1.Handoff) {
	id := h.GetId()
	if o := c.outgoing[id]; o != nil || id == 0 || c.endedHandoff(id) {
		return
	}
	a := newArea(h)
	o := &outgoing{handoff: h, area: a, phase: outgoingCopying}
	if o.reason = c.refuseOutgoing(h, a); o.reason != "" {
		o.phase = outgoingRevoked
		c.outgoing[id] = o
		c.handoffEvent(id, HandoffRefused, h, o.reason)
		o.slim()
		return
	}
	c.outgoing[id] = o
	c.relist()
	c.handoffEvent(id, HandoffBegun, h, "")
}

func (c *Core) refuseOutgoing(h *shardv1.Handoff, a *area) string {
	self := c.cfg.Shard
	to := keyspace.ShardID(h.To)
	switch {
	case keyspace.ShardID(h.From) != self:
		return fmt.Sprintf("begin handoff %d at %v: its source is %v; ask that shard", h.Id, self, keyspace.ShardID(h.From))
	case to == self || to == keyspace.NoShard || to > keyspace.MaxShards:
		return fmt.Sprintf("begin handoff %d at %v: its destination is %v; name another shard", h.Id, self, to)
	case len(a.whole)+len(a.named) == 0:
		return fmt.Sprintf("begin handoff %d at %v: it names no vertex and no slot", h.Id, self)
	case len(c.sources) >= maxHandoffs:
		return fmt.Sprintf("begin handoff %d at %v: %d handoffs are under way, at most %d are allowed; wait for one to end", h.Id, self, len(c.sources), maxHandoffs)
	}
	for _, slot := range a.whole {
		if !c.owner.slots.Has(slot) {
			return fmt.Sprintf("begin handoff %d at %v: slot %d is not owned there, but believed at %v", h.Id, self, slot, c.owner.forwardSlot[slot].to)
		}
	}
	for _, v := range a.named {
		if !c.owner.has(v) {
			return fmt.Sprintf("begin handoff %d at %v: vertex %q is not owned there, but believed at %v", h.Id, self, v, c.owner.hint(v))
		}
	}
	for _, o := range c.sources {
		if o.area.overlaps(a) {
			return fmt.Sprintf("begin handoff %d at %v: handoff %d of some of its vertices is under way; wait for it", h.Id, self, o.handoff.Id)
		}
	}
	// A vertex on its way here may belong to a slot that is to go: it would have
	// to go along, but what is staged is not tracked.
	for _, in := range c.stagings {
		if in.area.overlaps(a) {
			return fmt.Sprintf("begin handoff %d at %v: some of its vertices are on their way here by handoff %d; wait for it", h.Id, self, in.handoff.Id)
		}
	}
	return ""
}

// relist rebuilds the short lists of handoffs that each command is checked against.
func (c *Core) relist() {
	c.sources, c.stagings, c.sealed = nil, nil, 0
	for _, id := range slices.Sorted(maps.Keys(c.outgoing)) {
		if o := c.outgoing[id]; o.active() {
			c.sources = append(c.sources, o)
			if o.phase == outgoingSealed {
				c.sealed++
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(c.incoming)) {
		if in := c.incoming[id]; in.phase == incomingStaging {
			c.stagings = append(c.stagings, in)
		}
	}
}

func (c *Core) sealedAny() bool { return c.sealed > 0 }

func (c *Core) stagingAny() bool { return len(c.stagings) > 0 }

// handoffSeal logs that new commands on the vertices are refused from here on.
func (c *Core) handoffSeal(id uint64) {
	o := c.outgoing[id]
	if o == nil || o.phase != outgoingCopying {
		return
	}
	o.phase = outgoingSealed
	c.relist()
	c.handoffEvent(id, HandoffSealed, o.handoff, "")
}

// noteDrained finds sealed handoffs that nothing under way touches any more. It
// runs after each entry; once drained, a handoff stays so.
func (c *Core) noteDrained() {
	for _, o := range c.sources {
		if o.phase == outgoingSealed && !o.drained && c.isDrained(o) {
			o.drained = true
			c.handoffEvent(o.handoff.Id, HandoffDrained, o.handoff, "")
		}
	}
}

func (c *Core) isDrained(o *outgoing) bool {
	for _, a := range c.pending {
		if a.phase == attemptExecuted {
			continue
		}
		if isRangeScan(a.command) || o.area.hasAny(a.vertices) {
			return false
		}
	}
	for _, u := range c.queues.all {
		if !u.gone && (u.ranged || o.area.hasAny(u.vertices)) {
			return false
		}
	}
	return true
}

// handoffDone logs that the destination has committed: the vertices are no longer
// owned. Their keys are deleted bit by bit.
func (c *Core) handoffDone(id uint64) error {
	o := c.outgoing[id]
	if o == nil || o.phase != outgoingSealed {
		return nil
	}
	if !o.drained {
		return fmt.Errorf("end handoff %d at %v: the destination has committed vertices that are still in use here; the log is not a correct one", id, c.cfg.Shard)
	}
	o.phase = outgoingDone
	c.owner.give(o.area, keyspace.ShardID(o.handoff.To), id)
	c.sweepLater(o.area)
	c.relist()
	c.handoffEvent(id, HandoffDone, o.handoff, "")
	o.slim()
	return nil
}

// slim drops what a handoff that has ended needs no more.
func (o *outgoing) slim() {
	o.handoff, o.area = slimHandoff(o.handoff), nil
}

func slimHandoff(h *shardv1.Handoff) *shardv1.Handoff {
	return &shardv1.Handoff{Id: h.Id, From: h.From, To: h.To}
}

// handoffRevoke logs, at the source, that an aborted handoff is over. The leader
// proposes it once the destination has logged its tombstone, or if the seal has
// not been proposed: without a seal the destination can't commit.
func (c *Core) handoffRevoke(id uint64) {
	o := c.outgoing[id]
	if o == nil || !o.active() {
		return
	}
	o.phase = outgoingRevoked
	c.relist()
	c.handoffEvent(id, HandoffRevoked, o.handoff, "")
	o.slim()
}

// sweep is a background deletion of keys that are not owned.
type sweep struct {
	area    *area
	targets []target
	// from is where to go on in the first target.
	from place
}

func (c *Core) sweepLater(a *area) {
	s := &sweep{area: a, targets: a.targets()}
	if len(s.targets) > 0 {
		s.from = s.targets[0].start()
		c.sweeps = append(c.sweeps, s)
	}
}

// sweepSome deletes a bounded number of keys that are not owned.
func (c *Core) sweepSome() {
	left := c.cfg.SweepKeys
	for left > 0 && len(c.sweeps) > 0 {
		s := c.sweeps[0]
		left -= c.sweepTarget(s, left)
		if len(s.targets) == 0 {
			c.sweeps = c.sweeps[1:]
		}
	}
}

// sweepTarget works at the first target of a sweep and returns the keys looked
// at, at least 1 so that empty targets count too.
func (c *Core) sweepTarget(s *sweep, limit int) int {
	t := s.targets[0]
	var found []place
	c.keys.places.Ascend(s.from, func(p place) bool {
		if !t.has(p) || len(found) == limit {
			return false
		}
		found = append(found, p)
		return true
	})
	for _, p := range found {
		if !c.owner.has(p.vertex) {
			c.keys.delete(p.key)
		}
	}
	if len(found) == limit {
		s.from = found[limit-1]
		return limit
	}
	s.targets = s.targets[1:]
	if len(s.targets) > 0 {
		s.from = s.targets[0].start()
	}
	return len(found) + 1
}

// sweeping says whether keys in an area wait to be deleted.
func (c *Core) sweeping(a *area) bool {
	return slices.ContainsFunc(c.sweeps, func(s *sweep) bool { return s.area.overlaps(a) })
}
