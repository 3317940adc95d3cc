// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

// summary holds the heaviest keys of a weighted stream in bounded memory:
// SpaceSaving (Metwally, Agrawal, El Abbadi, "Efficient computation of frequent
// and top-k elements in data streams", ICDT 2005, section 3), with weights.
//
// With capacity m and total weight W, for every key held:
// true <= count <= true + error, and error <= W/m; every key whose true weight
// is over W/m is held. While no more than m distinct keys were seen all counts are exact.
//
// Below capacity entries lie in arrival order. From the first overflow on they
// form a binary heap with the least count at the root; weights are positive, so
// an update only ever sinks an entry.
type summary[K comparable] struct {
	capacity int
	heaped   bool
	entries  []entry[K]
	index    map[K]int
}

type entry[K comparable] struct {
	key          K
	count, error float64
	// Largest amount of bytes that one command wrote to the key.
	bytes uint64
}

func newSummary[K comparable](capacity int) *summary[K] {
	return &summary[K]{capacity: capacity, index: make(map[K]int)}
}

// add counts a key with a weight above 0. When the summary is full and the key
// is new, it takes the place of the lightest key and inherits its count as error.
// own makes the key safe to keep; it is called only for a key that enters.
func (s *summary[K]) add(key K, weight float64, bytes uint64, own func(K) K) {
	if at, held := s.index[key]; held {
		e := &s.entries[at]
		e.count += weight
		e.bytes = max(e.bytes, bytes)
		if s.heaped {
			s.sink(at)
		}
		return
	}
	if len(s.entries) < s.capacity {
		key = own(key)
		s.index[key] = len(s.entries)
		s.entries = append(s.entries, entry[K]{key: key, count: weight, bytes: bytes})
		return
	}
	if !s.heaped {
		s.heaped = true
		for at := len(s.entries)/2 - 1; at >= 0; at-- {
			s.sink(at)
		}
	}
	least := &s.entries[0]
	delete(s.index, least.key)
	key = own(key)
	*least = entry[K]{key: key, count: least.count + weight, error: least.count, bytes: bytes}
	s.index[key] = 0
	s.sink(0)
}

// sink restores the heap below an entry whose count grew.
func (s *summary[K]) sink(at int) {
	for {
		child := 2*at + 1
		if child >= len(s.entries) {
			return
		}
		if right := child + 1; right < len(s.entries) && s.entries[right].count < s.entries[child].count {
			child = right
		}
		if s.entries[at].count <= s.entries[child].count {
			return
		}
		s.entries[at], s.entries[child] = s.entries[child], s.entries[at]
		s.index[s.entries[at].key] = at
		s.index[s.entries[child].key] = child
		at = child
	}
}

// reset empties the summary and keeps its memory.
func (s *summary[K]) reset() {
	s.heaped = false
	clear(s.entries)
	s.entries = s.entries[:0]
	clear(s.index)
}
