// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package keyspace

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Placement maps every vertex to a shard: by its override if it has one, else
// by its slot. A Placement is immutable and may be read concurrently.
type Placement struct {
	epoch     Epoch
	slots     *[Slots]ShardID
	overrides map[Vertex]ShardID
}

// ErrEpochGap says that a delta does not start at the placement's epoch. The
// whole placement must be fetched instead.
var ErrEpochGap = errors.New("delta does not start at this epoch")

// NewPlacement returns a placement. Each slot must have a shard. The arguments
// are copied; an override that names the shard of its slot is left out.
func NewPlacement(epoch Epoch, slots *[Slots]ShardID, overrides map[Vertex]ShardID) (*Placement, error) {
	copied := *slots
	for slot, shard := range &copied {
		if shard == NoShard || shard > MaxShards {
			return nil, fmt.Errorf("build placement of epoch %d: slot %d is at shard %d, expected 1 to %d", epoch, slot, shard, MaxShards)
		}
	}
	p := &Placement{epoch: epoch, slots: &copied, overrides: make(map[Vertex]ShardID, len(overrides))}
	for vertex, shard := range overrides {
		if shard == NoShard || shard > MaxShards {
			return nil, fmt.Errorf("build placement of epoch %d: vertex %q is at shard %d, expected 1 to %d", epoch, vertex, shard, MaxShards)
		}
		if copied[SlotOf(vertex)] != shard {
			p.overrides[vertex] = shard
		}
	}
	return p, nil
}

// EvenPlacement returns the placement a store of that many shards starts with:
// epoch 1, the slots split into runs of nearly the same length.
func EvenPlacement(shards int) (*Placement, error) {
	if shards < 1 || shards > MaxShards {
		return nil, fmt.Errorf("build placement: %d shards, expected 1 to %d", shards, MaxShards)
	}
	var slots [Slots]ShardID
	for slot := range slots {
		slots[slot] = ShardID(slot*shards/Slots + 1) //nolint:gosec // at most MaxShards
	}
	return NewPlacement(1, &slots, nil)
}

// Epoch returns the placement's epoch.
func (p *Placement) Epoch() Epoch { return p.epoch }

// ShardOf returns the shard of a vertex, whether the vertex exists or not.
func (p *Placement) ShardOf(v Vertex) ShardID {
	if shard, ok := p.overrides[v]; ok {
		return shard
	}
	return p.slots[SlotOf(v)]
}

// ShardOfSlot returns the home of the vertices of a slot that have no override.
func (p *Placement) ShardOfSlot(slot Slot) ShardID { return p.slots[slot] }

// Override returns the shard of the override of a vertex, if there is one.
func (p *Placement) Override(v Vertex) (ShardID, bool) {
	shard, ok := p.overrides[v]
	return shard, ok
}

// Overrides returns the number of overrides.
func (p *Placement) Overrides() int { return len(p.overrides) }

// OverridesSorted returns the overrides in the order of their vertices.
func (p *Placement) OverridesSorted() []VertexMove {
	moves := make([]VertexMove, 0, len(p.overrides))
	for _, v := range slices.Sorted(maps.Keys(p.overrides)) {
		moves = append(moves, VertexMove{Vertex: v, To: p.overrides[v]})
	}
	return moves
}

// SlotMove says that a slot is at a shard from an epoch on.
type SlotMove struct {
	Slot Slot
	To   ShardID
}

// VertexMove says that a vertex is at a shard from an epoch on; NoShard means
// that it follows its slot again.
type VertexMove struct {
	Vertex Vertex
	To     ShardID
}

// Delta is what changed from one epoch to a later one. Slots are applied
// before overrides. An override stays when its slot moves, unless Overrides says otherwise.
type Delta struct {
	From, To  Epoch
	Slots     []SlotMove
	Overrides []VertexMove
}

// Apply returns the placement after the delta. It returns ErrEpochGap if the
// delta starts at another epoch, and another error if it names no valid shard or slot.
func (p *Placement) Apply(d Delta) (*Placement, error) {
	if d.From != p.epoch {
		return nil, fmt.Errorf("apply delta %d to %d to placement of epoch %d: %w", d.From, d.To, p.epoch, ErrEpochGap)
	}
	if d.To <= d.From {
		return nil, fmt.Errorf("apply delta: it leads from epoch %d back to %d; epochs only grow", d.From, d.To)
	}
	next := &Placement{epoch: d.To, slots: p.slots, overrides: p.overrides}
	if len(d.Slots) > 0 {
		copied := *p.slots
		for _, m := range d.Slots {
			if m.Slot >= Slots || m.To == NoShard || m.To > MaxShards {
				return nil, fmt.Errorf("apply delta to epoch %d: slot %d to shard %d, expected slots below %d and shards 1 to %d", d.To, m.Slot, m.To, Slots, MaxShards)
			}
			copied[m.Slot] = m.To
		}
		next.slots = &copied
	}
	if len(d.Slots) > 0 || len(d.Overrides) > 0 {
		if err := next.override(d); err != nil {
			return nil, err
		}
	}
	return next, nil
}

// override applies the overrides of a delta and drops those that name the shard of their slot.
func (p *Placement) override(d Delta) error {
	p.overrides = maps.Clone(p.overrides)
	for _, m := range d.Overrides {
		switch {
		case m.To > MaxShards:
			return fmt.Errorf("apply delta to epoch %d: vertex %q to shard %d, expected 0 to %d", d.To, m.Vertex, m.To, MaxShards)
		case m.To == NoShard:
			delete(p.overrides, m.Vertex)
		default:
			p.overrides[m.Vertex] = m.To
		}
	}
	maps.DeleteFunc(p.overrides, func(v Vertex, shard ShardID) bool { return p.slots[SlotOf(v)] == shard })
	return nil
}

// Diff returns the delta that leads from one placement to a later one, in the
// order of slots and vertices.
func Diff(from, to *Placement) Delta {
	d := Delta{From: from.epoch, To: to.epoch}
	for slot := range Slots {
		if shard := to.slots[slot]; shard != from.slots[slot] {
			d.Slots = append(d.Slots, SlotMove{Slot: Slot(slot), To: shard})
		}
	}
	for v, shard := range to.overrides {
		if old, ok := from.overrides[v]; !ok || old != shard {
			d.Overrides = append(d.Overrides, VertexMove{Vertex: v, To: shard})
		}
	}
	for v := range from.overrides {
		if _, ok := to.overrides[v]; !ok {
			d.Overrides = append(d.Overrides, VertexMove{Vertex: v, To: NoShard})
		}
	}
	slices.SortFunc(d.Overrides, func(a, b VertexMove) int {
		if a.Vertex < b.Vertex {
			return -1
		}
		return 1
	})
	return d
}

// Counts returns the number of slots and of overrides at each shard.
func (p *Placement) Counts() (slots, overrides map[ShardID]int) {
	slots, overrides = map[ShardID]int{}, map[ShardID]int{}
	for _, shard := range p.slots {
		slots[shard]++
	}
	for _, shard := range p.overrides {
		overrides[shard]++
	}
	return slots, overrides
}
