// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package wire owns the form that placements and deltas have on the wire.
// It holds no state and opens no connection.
// The oracle encodes with it; shards, clients and the edge decode.
package wire

import (
	"fmt"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// EncodePlacement returns the wire form of a placement.
func EncodePlacement(store string, p *keyspace.Placement) *oraclev1.PlacementSnapshot {
	s := &oraclev1.PlacementSnapshot{Store: store, Epoch: uint64(p.Epoch())}
	for slot := range uint32(keyspace.Slots) {
		shard := uint32(p.ShardOfSlot(keyspace.Slot(slot)))
		s.Slots = appendSlot(s.Slots, slot, shard)
	}
	for _, o := range p.OverridesSorted() {
		s.Overrides = append(s.Overrides, &oraclev1.Override{Vertex: []byte(o.Vertex), Shard: uint32(o.To)})
	}
	return s
}

func appendSlot(ranges []*oraclev1.SlotRange, slot, shard uint32) []*oraclev1.SlotRange {
	if n := len(ranges); n > 0 && ranges[n-1].GetLast()+1 == slot && ranges[n-1].GetShard() == shard {
		ranges[n-1].Last = slot
		return ranges
	}
	return append(ranges, &oraclev1.SlotRange{First: slot, Last: slot, Shard: shard})
}

// DecodePlacement reads the wire form of a placement. Every slot must be covered.
func DecodePlacement(s *oraclev1.PlacementSnapshot) (*keyspace.Placement, error) {
	var slots [keyspace.Slots]keyspace.ShardID
	for _, run := range s.GetSlots() {
		if run.GetFirst() > run.GetLast() || run.GetLast() >= keyspace.Slots {
			return nil, fmt.Errorf("read placement of epoch %d: slots %d to %d, expected an ascending range below %d", s.GetEpoch(), run.GetFirst(), run.GetLast(), keyspace.Slots)
		}
		for slot := run.GetFirst(); slot <= run.GetLast(); slot++ {
			slots[slot] = keyspace.ShardID(run.GetShard())
		}
	}
	overrides := make(map[keyspace.Vertex]keyspace.ShardID, len(s.GetOverrides()))
	for _, o := range s.GetOverrides() {
		overrides[keyspace.Vertex(o.GetVertex())] = keyspace.ShardID(o.GetShard())
	}
	return keyspace.NewPlacement(keyspace.Epoch(s.GetEpoch()), &slots, overrides)
}

// EncodeDelta returns the wire form of a delta. Consecutive deltas must not be
// merged into one: whether an override survives depends on each step.
func EncodeDelta(delta keyspace.Delta) *oraclev1.PlacementDelta {
	out := &oraclev1.PlacementDelta{FromEpoch: uint64(delta.From), ToEpoch: uint64(delta.To)}
	for _, m := range delta.Slots {
		out.Slots = appendSlot(out.Slots, uint32(m.Slot), uint32(m.To))
	}
	for _, m := range delta.Overrides {
		out.Overrides = append(out.Overrides, &oraclev1.Override{Vertex: []byte(m.Vertex), Shard: uint32(m.To)})
	}
	return out
}

// DecodeDelta reads the wire form of a delta.
func DecodeDelta(p *oraclev1.PlacementDelta) (keyspace.Delta, error) {
	delta := keyspace.Delta{From: keyspace.Epoch(p.GetFromEpoch()), To: keyspace.Epoch(p.GetToEpoch())}
	for _, run := range p.GetSlots() {
		if run.GetFirst() > run.GetLast() || run.GetLast() >= keyspace.Slots {
			return delta, fmt.Errorf("read placement delta to epoch %d: slots %d to %d, expected an ascending range below %d", p.GetToEpoch(), run.GetFirst(), run.GetLast(), keyspace.Slots)
		}
		for slot := run.GetFirst(); slot <= run.GetLast(); slot++ {
			delta.Slots = append(delta.Slots, keyspace.SlotMove{Slot: keyspace.Slot(slot), To: keyspace.ShardID(run.GetShard())}) //nolint:gosec // checked above
		}
	}
	for _, o := range p.GetOverrides() {
		delta.Overrides = append(delta.Overrides, keyspace.VertexMove{Vertex: keyspace.Vertex(o.GetVertex()), To: keyspace.ShardID(o.GetShard())})
	}
	return delta, nil
}
