// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// Property: placements and deltas survive the wire.
func TestRoundTrip(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 3))
		p, err := keyspace.EvenPlacement(1 + r.IntN(6))
		if err != nil {
			t.Fatal(err)
		}
		for range 10 {
			delta := keyspace.Delta{From: p.Epoch(), To: p.Epoch() + 1}
			for slot := range r.IntN(20) {
				delta.Slots = append(delta.Slots, keyspace.SlotMove{Slot: keyspace.Slot(slot * 3), To: keyspace.ShardID(1 + r.IntN(6))})
			}
			for range r.IntN(20) {
				v := keyspace.Vertex(fmt.Sprintf("v%d", r.IntN(100)))
				delta.Overrides = append(delta.Overrides, keyspace.VertexMove{Vertex: v, To: keyspace.ShardID(r.IntN(7))})
			}
			decoded, err := DecodeDelta(EncodeDelta(delta))
			if err != nil || !reflect.DeepEqual(decoded, delta) {
				t.Fatalf("seed %d: delta %+v became %+v (%v)", seed, delta, decoded, err)
			}
			if p, err = p.Apply(delta); err != nil {
				t.Fatal(err)
			}
		}
		again, err := DecodePlacement(EncodePlacement("s", p))
		if err != nil {
			t.Fatal(err)
		}
		if d := keyspace.Diff(p, again); len(d.Slots)+len(d.Overrides) > 0 || d.From != d.To {
			t.Fatalf("seed %d: placement differs after the wire: %+v", seed, d)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	for name, ranges := range map[string][]*oraclev1.SlotRange{
		"nothing covered": nil,
		"backwards":       {{First: 5, Last: 4, Shard: 1}},
		"too far":         {{First: 0, Last: keyspace.Slots, Shard: 1}},
	} {
		if _, err := DecodePlacement(&oraclev1.PlacementSnapshot{Epoch: 1, Slots: ranges}); err == nil {
			t.Errorf("placement, %s: no error", name)
		}
		if _, err := DecodeDelta(&oraclev1.PlacementDelta{FromEpoch: 1, ToEpoch: 2, Slots: ranges}); err == nil && ranges != nil {
			t.Errorf("delta, %s: no error", name)
		}
	}
}
