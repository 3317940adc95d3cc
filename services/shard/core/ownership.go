// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"maps"
	"slices"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// forward points to where a vertex or slot went, by which handoff.
type forward struct {
	to      keyspace.ShardID
	handoff uint64
}

// ownership says which vertices a shard owns: those of its slots except out, and
// those in. A vertex that does not exist yet is owned by the same rule.
type ownership struct {
	slots keyspace.SlotSet
	in    map[keyspace.Vertex]struct{}
	// out holds vertices of owned slots that live elsewhere. That they do is a
	// fact; the shard is a hint, dropped like any other pointer.
	out map[keyspace.Vertex]forward
	// What is known of vertices and slots that are not owned: only hints.
	forwardVertex map[keyspace.Vertex]forward
	forwardSlot   map[keyspace.Slot]forward
}

func newOwnership() ownership {
	return ownership{
		in:            map[keyspace.Vertex]struct{}{},
		out:           map[keyspace.Vertex]forward{},
		forwardVertex: map[keyspace.Vertex]forward{},
		forwardSlot:   map[keyspace.Slot]forward{},
	}
}

func (o *ownership) clone() ownership {
	return ownership{
		slots: o.slots, in: maps.Clone(o.in), out: maps.Clone(o.out),
		forwardVertex: maps.Clone(o.forwardVertex), forwardSlot: maps.Clone(o.forwardSlot),
	}
}

func (o *ownership) has(v keyspace.Vertex) bool {
	if o.slots.Has(keyspace.SlotOf(v)) {
		if len(o.out) == 0 {
			return true
		}
		_, out := o.out[v]
		return !out
	}
	_, in := o.in[v]
	return in
}

// hint returns the shard at which a vertex that is not owned is believed to be.
func (o *ownership) hint(v keyspace.Vertex) keyspace.ShardID {
	if f, out := o.out[v]; out {
		return f.to
	}
	if f, known := o.forwardVertex[v]; known {
		return f.to
	}
	return o.forwardSlot[keyspace.SlotOf(v)].to
}

// give takes an area away, leaving forwarding pointers. The exceptions of its
// slots have gone with it.
func (o *ownership) give(a *area, to keyspace.ShardID, handoff uint64) {
	for _, slot := range a.whole {
		o.slots.Remove(slot)
		o.forwardSlot[slot] = forward{to: to, handoff: handoff}
	}
	if len(a.whole) > 0 {
		for v, at := range o.out {
			if a.slots.Has(keyspace.SlotOf(v)) {
				delete(o.out, v)
				o.forwardVertex[v] = forward{to: at.to, handoff: handoff}
			}
		}
	}
	for _, v := range a.named {
		if o.slots.Has(keyspace.SlotOf(v)) {
			o.out[v] = forward{to: to, handoff: handoff}
			continue
		}
		delete(o.in, v)
		o.forwardVertex[v] = forward{to: to, handoff: handoff}
	}
}

// take adds an area. exceptions are the vertices of its slots that live elsewhere.
func (o *ownership) take(a *area, exceptions []*kvv1.Hint, handoff uint64) {
	for _, slot := range a.whole {
		o.slots.Add(slot)
		delete(o.forwardSlot, slot)
	}
	if len(a.whole) > 0 {
		maps.DeleteFunc(o.forwardVertex, func(v keyspace.Vertex, _ forward) bool {
			return a.slots.Has(keyspace.SlotOf(v))
		})
	}
	for _, e := range exceptions {
		v := keyspace.Vertex(e.GetVertex())
		// A vertex that came here on its own while its slot was away is owned.
		if _, here := o.in[v]; here || !a.slots.Has(keyspace.SlotOf(v)) {
			continue
		}
		o.out[v] = forward{handoff: handoff}
		if isShard(e.GetShard()) {
			o.out[v] = forward{to: keyspace.ShardID(e.GetShard()), handoff: handoff}
		}
	}
	if len(a.whole) > 0 {
		maps.DeleteFunc(o.in, func(v keyspace.Vertex, _ struct{}) bool {
			return a.slots.Has(keyspace.SlotOf(v))
		})
	}
	for _, v := range a.named {
		delete(o.forwardVertex, v)
		if o.slots.Has(keyspace.SlotOf(v)) {
			delete(o.out, v)
		} else {
			o.in[v] = struct{}{}
		}
	}
}

// exceptions lists the vertices of an area's slots that live elsewhere.
func (o *ownership) exceptions(a *area) []*kvv1.Hint {
	var list []*kvv1.Hint
	if len(a.whole) == 0 {
		return nil
	}
	for _, v := range slices.Sorted(maps.Keys(o.out)) {
		if a.slots.Has(keyspace.SlotOf(v)) {
			list = append(list, &kvv1.Hint{Vertex: []byte(v), Shard: uint32(o.out[v].to)})
		}
	}
	return list
}

// forget drops the forwarding pointers of a handoff whose epoch is known
// everywhere. From then on the placement knows at least as much.
func (o *ownership) forget(handoff uint64) {
	for v, f := range o.out {
		if f.handoff == handoff {
			o.out[v] = forward{}
		}
	}
	maps.DeleteFunc(o.forwardVertex, func(_ keyspace.Vertex, f forward) bool { return f.handoff == handoff })
	maps.DeleteFunc(o.forwardSlot, func(_ keyspace.Slot, f forward) bool { return f.handoff == handoff })
}

// successors adds to set every shard that something of this one is believed to
// have gone to.
func (o *ownership) successors(set map[keyspace.ShardID]struct{}) {
	for _, f := range o.out {
		set[f.to] = struct{}{}
	}
	for _, f := range o.forwardVertex {
		set[f.to] = struct{}{}
	}
	for _, f := range o.forwardSlot {
		set[f.to] = struct{}{}
	}
	delete(set, keyspace.NoShard)
}

// ownsAll says whether every vertex there could be is owned.
func (o *ownership) ownsAll() bool {
	return len(o.out) == 0 && o.slots.Len() == keyspace.Slots
}
