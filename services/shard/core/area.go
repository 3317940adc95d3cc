// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"slices"

	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// area is the set of vertices that a handoff names: some by name, some by slot.
type area struct {
	slots    keyspace.SlotSet
	vertices map[keyspace.Vertex]struct{}
	// named and whole list them in ascending order.
	named []keyspace.Vertex
	whole []keyspace.Slot
}

func newArea(h *shardv1.Handoff) *area {
	a := &area{vertices: make(map[keyspace.Vertex]struct{}, len(h.GetVertices()))}
	for _, slot := range h.GetSlots() {
		if slot < keyspace.Slots {
			a.slots.Add(keyspace.Slot(slot))
		}
	}
	for slot := range keyspace.Slot(keyspace.Slots) {
		if a.slots.Has(slot) {
			a.whole = append(a.whole, slot)
		}
	}
	for _, v := range h.GetVertices() {
		vertex := keyspace.Vertex(v)
		if _, dup := a.vertices[vertex]; dup {
			continue
		}
		a.vertices[vertex] = struct{}{}
		a.named = append(a.named, vertex)
	}
	slices.Sort(a.named)
	return a
}

func (a *area) has(v keyspace.Vertex) bool {
	if len(a.vertices) > 0 {
		if _, named := a.vertices[v]; named {
			return true
		}
	}
	return len(a.whole) > 0 && a.slots.Has(keyspace.SlotOf(v))
}

func (a *area) hasAny(vertices []keyspace.Vertex) bool {
	return slices.ContainsFunc(vertices, a.has)
}

// overlaps says whether some vertex may lie in both areas.
func (a *area) overlaps(b *area) bool {
	for i := range a.slots {
		if a.slots[i]&b.slots[i] != 0 {
			return true
		}
	}
	return slices.ContainsFunc(a.named, b.has) || slices.ContainsFunc(b.named, a.has)
}

// target is a run of places: a slot or a vertex.
type target struct {
	slot   keyspace.Slot
	vertex keyspace.Vertex
	named  bool
}

func (t target) start() place { return place{slot: t.slot, vertex: t.vertex} }

func (t target) has(p place) bool {
	return p.slot == t.slot && (!t.named || p.vertex == t.vertex)
}

// targets lists the area as runs of places, slots first.
func (a *area) targets() []target {
	list := make([]target, 0, len(a.whole)+len(a.named))
	for _, slot := range a.whole {
		list = append(list, target{slot: slot})
	}
	for _, v := range a.named {
		if slot := keyspace.SlotOf(v); !a.slots.Has(slot) {
			list = append(list, target{slot: slot, vertex: v, named: true})
		}
	}
	return list
}

// names says whether a vertex is in the area by name.
func (a *area) names(v keyspace.Vertex) bool {
	_, named := a.vertices[v]
	return named
}

// handoff lists the area as a handoff would.
func (a *area) handoff() *shardv1.Handoff {
	h := &shardv1.Handoff{}
	for _, slot := range a.whole {
		h.Slots = append(h.Slots, uint32(slot))
	}
	for _, v := range a.named {
		h.Vertices = append(h.Vertices, []byte(v))
	}
	return h
}
