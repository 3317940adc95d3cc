// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"unsafe"

	"github.com/tidwall/btree"

	"github.com/kolocate/kolocate/services/keyspace"
)

// text views bytes that nobody changes any more as a string, without a copy. The
// bytes of log entries belong to the core, so keys and values are kept as they are.
func text(b []byte) string {
	return unsafe.String(unsafe.SliceData(b), len(b)) //nolint:gosec // entries are immutable once applied (see Apply)
}

// raw is the reverse of text; nobody may change what it returns.
func raw(s string) []byte {
	return unsafe.Slice(unsafe.StringData(s), len(s)) //nolint:gosec // only handed to readers
}

// cell is what a key holds.
type cell struct {
	value   []byte
	version uint64
}

// place orders keys by slot, vertex and key, so that all keys of a vertex or of
// a slot lie together.
type place struct {
	slot   keyspace.Slot
	vertex keyspace.Vertex
	key    string
}

func placeLess(a, b place) bool {
	if a.slot != b.slot {
		return a.slot < b.slot
	}
	if a.vertex != b.vertex {
		return a.vertex < b.vertex
	}
	return a.key < b.key
}

func placeOf(key string) place {
	v := keyspace.VertexOf(key)
	return place{slot: keyspace.SlotOf(v), vertex: v, key: key}
}

// keys is the ordered keyspace of a shard: what it owns, what is staged for it,
// and what it no longer owns and has not deleted yet. Ownership alone says which.
type keys struct {
	cells  *btree.Map[string, cell]
	places *btree.BTreeG[place]
	bytes  uint64
}

func newKeys() keys {
	return keys{cells: &btree.Map[string, cell]{}, places: btree.NewBTreeGOptions(placeLess, btree.Options{NoLocks: true})}
}

// copy returns a copy in constant time; the two share nodes until one writes.
func (k *keys) copy() keys {
	return keys{cells: k.cells.Copy(), places: k.places.Copy(), bytes: k.bytes}
}

// Sizes tells how much vertices occupied when it was taken. It may be used by
// another goroutine while the core goes on.
type Sizes struct{ keys keys }

// Sizes takes a copy in constant time.
func (c *Core) Sizes() *Sizes { return &Sizes{keys: c.keys.copy()} }

// Of returns the bytes of a vertex's keys and values, and false if this shard
// holds none of them.
func (s *Sizes) Of(v keyspace.Vertex) (bytes uint64, known bool) {
	s.keys.ascendVertex(v, "", func(key string, c cell) bool {
		bytes += uint64(len(key) + len(c.value))
		return true
	})
	return bytes, bytes > 0
}

func (k *keys) get(key string) (cell, bool) { return k.cells.Get(key) }

func (k *keys) set(key string, c cell) {
	old, replaced := k.cells.Set(key, c)
	if replaced {
		k.bytes += uint64(len(c.value)) - uint64(len(old.value))
		return
	}
	k.bytes += uint64(len(key) + len(c.value))
	k.places.Set(placeOf(key))
}

func (k *keys) delete(key string) {
	old, existed := k.cells.Delete(key)
	if !existed {
		return
	}
	k.bytes -= uint64(len(key) + len(old.value))
	k.places.Delete(placeOf(key))
}

// ascendVertex calls f for the keys of v from start on, in key order, until f
// returns false.
func (k *keys) ascendVertex(v keyspace.Vertex, start string, f func(key string, c cell) bool) {
	pivot := place{slot: keyspace.SlotOf(v), vertex: v, key: start}
	k.places.Ascend(pivot, func(p place) bool {
		if p.vertex != v || p.slot != pivot.slot {
			return false
		}
		c, _ := k.cells.Get(p.key)
		return f(p.key, c)
	})
}
