// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"

	"github.com/kolocate/kolocate/services/keyspace"
)

// CheckInvariants returns an error that names the first broken invariant. It
// walks the state: for tests and the simulator.
func (c *Core) CheckInvariants() error {
	for _, check := range []func() error{c.checkKeys, c.checkOwnership, c.checkQueues, c.checkAttempts, c.checkBounds} {
		if err := check(); err != nil {
			return fmt.Errorf("check %v at entry %d: %w", c.cfg.Shard, c.index, err)
		}
	}
	return nil
}

func (c *Core) checkKeys() error {
	if c.keys.cells.Len() != c.keys.places.Len() {
		return fmt.Errorf("%d keys, but %d places", c.keys.cells.Len(), c.keys.places.Len())
	}
	var problem error
	size := uint64(0)
	c.keys.places.Scan(func(p place) bool {
		cl, found := c.keys.get(p.key)
		size += uint64(len(p.key) + len(cl.value))
		switch {
		case !found || placeOf(p.key) != p:
			problem = fmt.Errorf("place %v has no key", p)
		case c.owner.has(p.vertex) && cl.version > c.clock:
			problem = fmt.Errorf("key %q has version %d above the clock %d", p.key, cl.version, c.clock)
		case !c.owner.has(p.vertex) && !c.excused(p.vertex):
			problem = fmt.Errorf("key %q is neither owned, nor staged, nor waits to be deleted", p.key)
		}
		return problem == nil
	})
	if problem == nil && size != c.keys.bytes {
		problem = fmt.Errorf("keys and values have %d bytes, but %d are counted", size, c.keys.bytes)
	}
	return problem
}

// excused says that a key of a vertex that is not owned may be here.
func (c *Core) excused(v keyspace.Vertex) bool {
	for _, in := range c.stagings {
		if in.area.has(v) {
			return true
		}
	}
	for _, s := range c.sweeps {
		if s.area.has(v) {
			return true
		}
	}
	return false
}

func (c *Core) checkOwnership() error {
	for v := range c.owner.in {
		if c.owner.slots.Has(keyspace.SlotOf(v)) {
			return fmt.Errorf("vertex %q is marked in, but its slot is owned", v)
		}
	}
	for v := range c.owner.out {
		if !c.owner.slots.Has(keyspace.SlotOf(v)) {
			return fmt.Errorf("vertex %q is marked out, but its slot is not owned", v)
		}
	}
	for _, o := range c.sources {
		for _, v := range o.area.named {
			if !c.owner.has(v) {
				return fmt.Errorf("vertex %q of handoff %d under way is not owned", v, o.handoff.Id)
			}
		}
	}
	return nil
}

func (c *Core) checkQueues() error {
	if len(c.queues.ready) > 0 {
		return fmt.Errorf("%d units are ready but not started", len(c.queues.ready))
	}
	last := uint64(0)
	for _, u := range c.queues.all {
		if u.gone {
			continue
		}
		if u.sequence <= last {
			return fmt.Errorf("unit %d comes after unit %d", u.sequence, last)
		}
		last = u.sequence
		for _, v := range u.vertices {
			if !c.owner.has(v) {
				return fmt.Errorf("a unit waits for vertex %q, which is not owned", v)
			}
		}
		waits := u.attempt == nil || u.attempt.phase == attemptDelivered
		if waits && c.queues.runnable(u) {
			return fmt.Errorf("unit %d could run, but waits", u.sequence)
		}
	}
	return nil
}

func (c *Core) checkAttempts() error {
	for key, a := range c.pending {
		if key != a.key || a.phase < attemptVoted || a.phase > attemptExecuted {
			return fmt.Errorf("attempt %v is kept as %v in phase %d", a.key, key, a.phase)
		}
		if c.finished.has(key) {
			return fmt.Errorf("attempt %v is pending and finished", key)
		}
		queued := a.phase == attemptDelivered || a.phase == attemptHolding
		if queued != (a.unit != nil && !a.unit.gone) {
			return fmt.Errorf("attempt %v is %v, but its unit says otherwise", key, a.phase)
		}
		if a.order.clock > c.clock {
			return fmt.Errorf("attempt %v has timestamp %d above the clock %d", key, a.order.clock, c.clock)
		}
	}
	first, some := c.undelivered.Min()
	if some && first.phase == attemptDecided {
		return fmt.Errorf("attempt %v is first and decided, but not delivered", first.key)
	}
	return nil
}

func (c *Core) checkBounds() error {
	switch {
	case c.queues.waiting > c.cfg.MaxQueued:
		return fmt.Errorf("%d commands wait, MaxQueued is %d", c.queues.waiting, c.cfg.MaxQueued)
	case len(c.pending) > c.cfg.MaxPending:
		return fmt.Errorf("%d attempts are pending, MaxPending is %d", len(c.pending), c.cfg.MaxPending)
	case c.records.byID.Len() > c.cfg.MaxRecords:
		return fmt.Errorf("%d records, MaxRecords is %d", c.records.byID.Len(), c.cfg.MaxRecords)
	}
	return nil
}
