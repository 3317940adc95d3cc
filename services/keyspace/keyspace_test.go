// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package keyspace

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/quick"
)

// The check value stands in the Redis Cluster specification, appendix A.
func TestCRC16CheckValue(t *testing.T) {
	if got := CRC16("123456789"); got != 0x31C3 {
		t.Fatalf("CRC16(123456789) = %#x, want 0x31c3", got)
	}
}

// crc16Bitwise is the dumb twin of CRC16.
func crc16Bitwise(text string) uint16 {
	var crc uint16
	for _, b := range []byte(text) {
		for bit := 7; bit >= 0; bit-- {
			top := crc >> 15 & 1
			crc = crc<<1 ^ 0x1021*(top^uint16(b>>bit&1))
		}
	}
	return crc
}

func TestCRC16AgreesWithBitwise(t *testing.T) {
	if err := quick.CheckEqual(CRC16, crc16Bitwise, nil); err != nil {
		t.Fatal(err)
	}
}

// The cases of the Redis Cluster specification, section "Hash tags", and their
// neighbours.
func TestVertexOf(t *testing.T) {
	for key, want := range map[string]Vertex{
		"user1000":                   "user1000",
		"{user1000}.following":       "user1000",
		"{user1000}.followers":       "user1000",
		"foo{}{bar}":                 "foo{}{bar}",
		"foo{{bar}}zap":              "{bar",
		"foo{bar}{zap}":              "bar",
		"foo{bar":                    "foo{bar",
		"foo}bar{":                   "foo}bar{",
		"}{a}":                       "a",
		"{}":                         "{}",
		"{":                          "{",
		"{a}":                        "a",
		"\x00{\xff}":                 "\xff",
		"{" + strings.Repeat("x", 9): "{xxxxxxxxx",
	} {
		if got := VertexOf(key); got != want {
			t.Errorf("VertexOf(%q) = %q, want %q", key, got, want)
		}
	}
}

// Property: a key's vertex is the key or lies inside it, is never empty for a
// key that is not, and a tag put in front of any text decides alone.
func TestVertexOfProperties(t *testing.T) {
	inside := func(key string) bool {
		v := string(VertexOf(key))
		return v == key || strings.Contains(key, "{"+v+"}")
	}
	tagged := func(tag, rest string) bool {
		tag = strings.ReplaceAll(tag, "}", "")
		return tag == "" || VertexOf("{"+tag+"}"+rest) == Vertex(tag)
	}
	for _, property := range []any{inside, tagged} {
		if err := quick.Check(property, nil); err != nil {
			t.Error(err)
		}
	}
}

func TestSlotSetAgreesWithMap(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		var set SlotSet
		twin := map[Slot]bool{}
		for range 300 {
			slot := Slot(r.IntN(Slots))
			if r.IntN(3) == 0 {
				slot = Slot(r.IntN(70))
			}
			if r.IntN(3) == 0 {
				set.Remove(slot)
				delete(twin, slot)
			} else {
				set.Add(slot)
				twin[slot] = true
			}
		}
		rebuilt := SlotSet{}
		for _, run := range set.Ranges() {
			for slot := int(run.First); slot <= int(run.Last); slot++ {
				rebuilt.Add(Slot(slot))
				if !twin[Slot(slot)] {
					t.Fatalf("seed %d: ranges hold slot %d, the set does not", seed, slot)
				}
			}
		}
		if rebuilt != set || set.Len() != len(twin) {
			t.Fatalf("seed %d: %d slots by ranges, %d by Len, want %d", seed, rebuilt.Len(), set.Len(), len(twin))
		}
	}
}

func TestParseShard(t *testing.T) {
	for id := ShardID(1); id <= MaxShards; id++ {
		if got, err := ParseShard(id.String()); err != nil || got != id {
			t.Fatalf("ParseShard(%q) = %d, %v", id, got, err)
		}
	}
	for _, name := range []string{"", "shard-", "shard-0", "shard-01", "shard-65", "shard--1", "shard-1x", "Shard-1", "1", "shard-99999999999999999999"} {
		if got, err := ParseShard(name); err == nil {
			t.Errorf("ParseShard(%q) = %d, want an error", name, got)
		}
	}
}

func TestEvenPlacement(t *testing.T) {
	for shards := 1; shards <= MaxShards; shards++ {
		p, err := EvenPlacement(shards)
		if err != nil {
			t.Fatal(err)
		}
		count := map[ShardID]int{}
		for slot := range Slots {
			count[p.ShardOfSlot(Slot(slot))]++
		}
		for id := 1; id <= shards; id++ {
			if n := count[ShardID(id)]; n < Slots/shards || n > Slots/shards+1 {
				t.Errorf("%d shards: shard %d has %d slots", shards, id, n)
			}
		}
	}
	for _, shards := range []int{-1, 0, MaxShards + 1} {
		if _, err := EvenPlacement(shards); err == nil {
			t.Errorf("EvenPlacement(%d): no error", shards)
		}
	}
}

// Property: any chain of deltas leads to where a plain map leads, Diff of two
// placements applied to the first gives the second, and deltas do not change
// the placement they start from.
func TestPlacementAgreesWithMap(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 2))
			shards := 1 + r.IntN(8)
			first, err := EvenPlacement(shards)
			if err != nil {
				t.Fatal(err)
			}
			twin := newTwin(first)
			p := first
			for range 20 {
				d := randomDelta(r, p, shards)
				if p, err = p.Apply(d); err != nil {
					t.Fatal(err)
				}
				twin.apply(d)
				twin.compare(t, p)
			}
			newTwin(mustEven(t, shards)).compare(t, first)
			again, err := first.Apply(Diff(first, p))
			if err != nil {
				t.Fatal(err)
			}
			if d := Diff(p, again); len(d.Slots)+len(d.Overrides) != 0 || again.Epoch() != p.Epoch() {
				t.Fatalf("Diff applied leads elsewhere: %+v", d)
			}
		})
	}
}

func mustEven(t *testing.T, shards int) *Placement {
	t.Helper()
	p, err := EvenPlacement(shards)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func vertexNumber(n int) Vertex { return Vertex(fmt.Sprintf("v%d", n)) }

func randomDelta(r *rand.Rand, p *Placement, shards int) Delta {
	d := Delta{From: p.Epoch(), To: p.Epoch() + 1 + Epoch(r.IntN(3))}
	for range r.IntN(4) {
		d.Slots = append(d.Slots, SlotMove{Slot: SlotOf(vertexNumber(r.IntN(30))), To: ShardID(1 + r.IntN(shards))})
	}
	for range r.IntN(6) {
		d.Overrides = append(d.Overrides, VertexMove{Vertex: vertexNumber(r.IntN(30)), To: ShardID(r.IntN(shards + 1))})
	}
	return d
}

// twin is the dumb version of a placement.
type twin struct {
	slots     map[Slot]ShardID
	overrides map[Vertex]ShardID
}

func newTwin(p *Placement) *twin {
	w := &twin{slots: map[Slot]ShardID{}, overrides: map[Vertex]ShardID{}}
	for slot := range Slots {
		w.slots[Slot(slot)] = p.ShardOfSlot(Slot(slot))
	}
	return w
}

func (w *twin) apply(d Delta) {
	for _, m := range d.Slots {
		w.slots[m.Slot] = m.To
	}
	for _, m := range d.Overrides {
		w.overrides[m.Vertex] = m.To
		if m.To == NoShard {
			delete(w.overrides, m.Vertex)
		}
	}
	maps.DeleteFunc(w.overrides, func(v Vertex, s ShardID) bool { return w.slots[SlotOf(v)] == s })
}

func (w *twin) compare(t *testing.T, p *Placement) {
	t.Helper()
	for n := range 30 {
		v := vertexNumber(n)
		want, ok := w.overrides[v]
		if !ok {
			want = w.slots[SlotOf(v)]
		}
		if got := p.ShardOf(v); got != want {
			t.Fatalf("epoch %d: ShardOf(%s) = %d, want %d", p.Epoch(), v, got, want)
		}
	}
	if p.Overrides() != len(w.overrides) || len(p.OverridesSorted()) != len(w.overrides) {
		t.Fatalf("epoch %d: %d overrides, want %d", p.Epoch(), p.Overrides(), len(w.overrides))
	}
}

func TestApplyRefuses(t *testing.T) {
	p := mustEven(t, 3)
	if _, err := p.Apply(Delta{From: 7, To: 8}); !errors.Is(err, ErrEpochGap) {
		t.Errorf("a delta from another epoch: %v, want ErrEpochGap", err)
	}
	for name, d := range map[string]Delta{
		"backwards":      {From: 1, To: 1},
		"slot too large": {From: 1, To: 2, Slots: []SlotMove{{Slot: Slots, To: 1}}},
		"slot nowhere":   {From: 1, To: 2, Slots: []SlotMove{{Slot: 1}}},
		"shard too high": {From: 1, To: 2, Overrides: []VertexMove{{Vertex: "a", To: MaxShards + 1}}},
	} {
		if _, err := p.Apply(d); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestLimits(t *testing.T) {
	var key *KeyError
	for length, bad := range map[int]bool{0: true, 1: false, MaxKeyBytes: false, MaxKeyBytes + 1: true} {
		if err := CheckKey(make([]byte, length)); errors.As(err, &key) != bad {
			t.Errorf("key of %d bytes: %v", length, err)
		}
	}
	var value *ValueError
	for length, bad := range map[int]bool{0: false, MaxValueBytes: false, MaxValueBytes + 1: true} {
		if err := CheckValue(make([]byte, length)); errors.As(err, &value) != bad {
			t.Errorf("value of %d bytes: %v", length, err)
		}
	}
}

func BenchmarkShardOf(b *testing.B) {
	p, err := EvenPlacement(4)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		p.ShardOf("user1000")
	}
}
