// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"container/heap"
	"slices"
)

// order returns the vertices that a placement moves, such that early ones bring
// the most: again and again the command is taken that comes together in one
// shard for the fewest moves by its weight, and the moves it still misses are
// made. Vertices that complete no command follow, the busiest first, and
// slots last, because a slot may move only after the vertices that leave it for
// elsewhere.
func (m *model) order(shard []int32) []int32 {
	moves := func(v int32) bool { return shard[v] != m.start[v] }
	of := make(map[int32][]int)
	queue := &completions{}
	commands := merged(m.commands)
	missing := make([]int, len(commands))
	for i, c := range commands {
		if crosses(c, shard) {
			continue
		}
		for _, v := range c.vertices {
			if moves(v) && !m.vertices[v].GetIsSlot() {
				missing[i]++
				of[v] = append(of[v], i)
			}
		}
		if missing[i] > 0 {
			*queue = append(*queue, completion{command: i, missing: missing[i], weight: c.weight})
		}
	}
	heap.Init(queue)
	var order []int32
	placed := make([]bool, len(shard))
	for queue.Len() > 0 {
		next, _ := heap.Pop(queue).(completion)
		if next.missing != missing[next.command] {
			continue // a newer entry stands for it
		}
		for _, v := range commands[next.command].vertices {
			if !moves(v) || placed[v] || m.vertices[v].GetIsSlot() {
				continue
			}
			placed[v] = true
			order = append(order, v)
			for _, c := range of[v] {
				missing[c]--
				if missing[c] > 0 {
					heap.Push(queue, completion{command: c, missing: missing[c], weight: commands[c].weight})
				}
			}
		}
	}
	var rest []int32
	for v := range shard {
		if v := int32(v); moves(v) && !placed[v] {
			rest = append(rest, v)
		}
	}
	slices.SortStableFunc(rest, func(a, b int32) int {
		x, y := m.vertices[a], m.vertices[b]
		if x.GetIsSlot() != y.GetIsSlot() {
			if y.GetIsSlot() {
				return -1
			}
			return 1
		}
		return cmp.Compare(y.GetLoad(), x.GetLoad())
	})
	return append(order, rest...)
}

type completion struct {
	command, missing int
	weight           float64
}

// completions has the command of the most weight for a missing move at its root.
type completions []completion

func (q completions) Len() int { return len(q) }
func (q completions) Less(i, j int) bool {
	a, b := q[i].weight*float64(q[j].missing), q[j].weight*float64(q[i].missing)
	if a != b {
		return a > b
	}
	return q[i].command < q[j].command
}
func (q completions) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push is called by container/heap alone.
func (q *completions) Push(x any) { *q = append(*q, x.(completion)) } //nolint:errcheck,forcetypeassert // order pushes nothing else

// Pop is called by container/heap alone.
func (q *completions) Pop() any {
	last := len(*q) - 1
	out := (*q)[last]
	*q = (*q)[:last]
	return out
}

// within cuts an order of moves to what the limits allow: the longest start of
// it that keeps the numbers of moves, bytes and overrides, and that leaves the
// load no more uneven than the tolerance, or than it was. It says which limit
// cut it, if one did.
func (m *model) within(order []int32, shard []int32, o options) (kept []int32, cutBy string) {
	loads := make([]float64, len(m.shards))
	var sum, bytes float64
	for v, at := range m.start {
		loads[at] += m.vertices[v].GetLoad()
		sum += m.vertices[v].GetLoad()
	}
	mean := sum / float64(m.targets)
	allowed := max(slices.Max(loads), mean*(1+o.imbalance)+1e-9)
	overrides := m.overrides(m.start)
	cutBy = ""
	longest := 0
	for i, v := range order {
		vertex := m.vertices[v]
		bytes += float64(vertex.GetBytes())
		overrides += m.overrideDelta(v, shard[v])
		switch {
		case o.maxMoves > 0 && i >= o.maxMoves:
			cutBy = "the limit on moves"
		case o.maxBytes > 0 && bytes > float64(o.maxBytes):
			cutBy = "the limit on bytes"
		case o.maxOverrides > 0 && overrides > o.maxOverrides && !vertex.GetIsSlot():
			cutBy = "the limit on overrides"
		}
		if cutBy != "" {
			return order[:longest], cutBy
		}
		loads[m.start[v]] -= vertex.GetLoad()
		loads[shard[v]] += vertex.GetLoad()
		if slices.Max(loads) <= allowed {
			longest = i + 1
		}
	}
	// The whole order is what the search found to be balanced.
	return order, ""
}

// overrideDelta is by how much the number of overrides changes when a vertex
// goes to a shard while its slot stays at home.
func (m *model) overrideDelta(v, to int32) int {
	vertex := m.vertices[v]
	if vertex.GetIsSlot() {
		return 0
	}
	home := m.home[vertex.GetSlot()]
	switch {
	case m.start[v] == home && to != home:
		return 1
	case m.start[v] != home && to == home:
		return -1
	}
	return 0
}

// overrides is the number of overrides in force at a placement.
func (m *model) overrides(shard []int32) int {
	home := m.home
	stranded := make(map[string]bool)
	for v, vertex := range m.vertices {
		if vertex.GetIsSlot() {
			home[vertex.GetSlot()] = shard[v]
		}
	}
	count := 0
	for v, vertex := range m.vertices {
		if vertex.GetIsSlot() {
			continue
		}
		if shard[v] != home[vertex.GetSlot()] {
			count++
		}
		if v >= len(m.graph.GetVertices()) {
			stranded[string(vertex.GetName())] = true
		}
	}
	for _, o := range m.graph.GetUntracedOverrides() {
		if !stranded[string(o.GetVertex())] && m.shards[home[m.slotOf(o.GetVertex())]] != o.GetShard() {
			count++
		}
	}
	return count
}
