// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"container/heap"
	"math/rand/v2"

	"github.com/kolocate/kolocate/services/keyspace"
)

// reservoir is a uniform sample of commands in bounded memory: each gets a
// random rank and those with the least ranks are kept (bottom-k; Cohen and
// Kaplan, "Summarizing data using bottom-k sketches", PODC 2007, section 3). Two
// bounds hold: the number of commands, and the vertices of all of them together.
type reservoir struct {
	maxCommands, maxVertices int
	vertices                 int
	// Commands offered since the last reset.
	offered uint64
	// Ranks from here on are refused.
	limit float64
	held  rankHeap
}

type heldCommand struct {
	rank     float64
	order    uint64
	weight   float64
	vertices []keyspace.Vertex
}

func newReservoir(maxCommands, maxVertices int) *reservoir {
	return &reservoir{maxCommands: maxCommands, maxVertices: maxVertices, limit: 1}
}

// offer takes a command into the draw. own makes a vertex safe to keep.
func (r *reservoir) offer(random *rand.Rand, vertices []keyspace.Vertex, weight float64, own func(keyspace.Vertex) keyspace.Vertex) {
	r.offered++
	rank := random.Float64()
	if rank >= r.limit {
		return
	}
	kept := make([]keyspace.Vertex, len(vertices))
	for i, v := range vertices {
		kept[i] = own(v)
	}
	heap.Push(&r.held, heldCommand{rank: rank, order: r.offered, weight: weight, vertices: kept})
	r.vertices += len(kept)
	for len(r.held) > r.maxCommands || r.vertices > r.maxVertices {
		out, _ := heap.Pop(&r.held).(heldCommand)
		r.vertices -= len(out.vertices)
		r.limit = out.rank
	}
}

// scale is the number of offered commands that a held one stands for.
func (r *reservoir) scale() float64 {
	if len(r.held) == 0 {
		return 0
	}
	return float64(r.offered) / float64(len(r.held))
}

func (r *reservoir) reset() {
	clear(r.held)
	*r = reservoir{maxCommands: r.maxCommands, maxVertices: r.maxVertices, limit: 1, held: r.held[:0]}
}

// rankHeap has the greatest rank at its root.
type rankHeap []heldCommand

func (h rankHeap) Len() int           { return len(h) }
func (h rankHeap) Less(i, j int) bool { return h[i].rank > h[j].rank }
func (h rankHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push is called by container/heap alone.
func (h *rankHeap) Push(x any) { *h = append(*h, x.(heldCommand)) } //nolint:errcheck,forcetypeassert // offer pushes nothing else

// Pop is called by container/heap alone.
func (h *rankHeap) Pop() any {
	last := len(*h) - 1
	out := (*h)[last]
	(*h)[last] = heldCommand{}
	*h = (*h)[:last]
	return out
}
