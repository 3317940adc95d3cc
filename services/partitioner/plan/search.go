// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	planv1 "github.com/kolocate/kolocate/api/proto/plan/v1"
	"github.com/kolocate/kolocate/services/partitioner/relabel"
)

const (
	// startWork bounds the partitions of one search together, in vertices and
	// ends of edges. Small graphs are cheap to partition, and the best of several
	// is much better than the first; a large one is partitioned once.
	startWork = 3e6
	maxStarts = 8
	// finalists are improved thoroughly.
	finalists = 2
)

// search looks for the placement with the least share of multi-shard commands.
type search struct {
	model       *model
	options     options
	partitioner Partitioner
}

// candidate is a placement and what it costs: commands a second that cross
// shards, and what moving there takes away, in the same unit.
type candidate struct {
	name  string
	shard []int32
	multi float64
	cost  float64
}

// run returns the best placement for the commands, and what became of the others.
// The commands in without must not be learnt from.
func (s *search) run(ctx context.Context, commands, without []command, starts int) (candidate, []*planv1.Rejected, error) {
	commands = merged(commands)
	candidates := []candidate{s.improve("improving the present placement without the partitioner", s.model.start, commands)}
	graph := s.model.csr(without)
	for i := range starts {
		parts, err := s.partitioner.Partition(ctx, graph, s.model.targets, PartitionOptions{
			Imbalance: s.options.imbalance, Preconfiguration: s.options.preconfiguration, Seed: s.options.seed + uint64(i),
		})
		if err != nil {
			return candidate{}, nil, fmt.Errorf("plan for store %q: %w", s.model.graph.GetStore(), err)
		}
		if len(parts) != len(s.model.vertices) {
			return candidate{}, nil, fmt.Errorf("plan for store %q: %s answered with %d parts for %d vertices", s.model.graph.GetStore(), s.partitioner.Name(), len(parts), len(s.model.vertices))
		}
		name := fmt.Sprintf("%s %s with seed %d", s.partitioner.Name(), s.options.preconfiguration, s.options.seed+uint64(i))
		candidates = append(candidates, s.improve(name, s.model.relabelled(parts), commands))
	}
	slices.SortStableFunc(candidates, func(a, b candidate) int { return cmp.Compare(a.multi+a.cost, b.multi+b.cost) })
	best := candidate{}
	var rejected []*planv1.Rejected
	for i, c := range candidates {
		if i < finalists {
			c = s.deepen(c, commands)
		}
		switch {
		case best.shard == nil:
			best = c
		case c.multi+c.cost < best.multi+best.cost:
			rejected = append(rejected, s.reject(best, c))
			best = c
		default:
			rejected = append(rejected, s.reject(c, best))
		}
	}
	return best, rejected, context.Cause(ctx)
}

// starts is the number of partitions that a search of this graph can afford.
func (m *model) starts() int {
	work := float64(len(m.vertices) + 2*len(m.graph.GetEdges()) + 1)
	return int(min(max(1, startWork/work), maxStarts))
}

// improve takes a first look at what can be made of a placement.
func (s *search) improve(name string, shard []int32, commands []command) candidate {
	state := newState(s.model, commands, shard, s.options.imbalance)
	state.empty()
	state.anneal(quickScales, 3, s.random())
	state.empty()
	return s.judge(name, state.shard, commands)
}

// deepen makes the most of a candidate and takes the moves back that do not pay.
func (s *search) deepen(c candidate, commands []command) candidate {
	state := newState(s.model, commands, c.shard, s.options.imbalance)
	state.anneal(deepScales, 8, s.random())
	state.empty()
	state.anneal(quickScales, 8, s.random())
	state.takeBack(s.model)
	s.model.holdSlots(state)
	return s.judge(c.name, state.shard, commands)
}

func (s *search) judge(name string, shard []int32, commands []command) candidate {
	c := candidate{name: name, shard: shard, multi: multi(commands, shard)}
	for v, to := range shard {
		if to != s.model.start[v] {
			c.cost += s.model.cost(v)
		}
	}
	return c
}

func (s *search) random() *rand.Rand { return rand.New(rand.NewPCG(s.options.seed, 0x706c616e)) }

func (s *search) reject(c, better candidate) *planv1.Rejected {
	total := s.model.total(s.model.commands)
	return &planv1.Rejected{
		Alternative: c.name,
		Reason: fmt.Sprintf("%s of the sampled commands would cross shards and moving would cost %s; %s: %s and %s",
			percent(c.multi, total), percent(c.cost, total), better.name, percent(better.multi, total), percent(better.cost, total)),
	}
}

// The price of a move in commands: the vertex is paused for a moment and a
// record of the move is kept, and each page of its bytes crosses two disks and a
// network. It is set against what the move saves over the horizon.
const (
	horizonSeconds  = 600
	commandsPerMove = 1
	bytesPerCommand = 4096
)

// cost is the price of moving a vertex, in commands a second over the horizon.
func (m *model) cost(v int) float64 {
	return (commandsPerMove + float64(m.vertices[v].GetBytes())/bytesPerCommand) / horizonSeconds
}

// relabelled gives each part the target in which most of it lies already,
// measured by what need not be moved.
func (m *model) relabelled(parts []int32) []int32 {
	overlap := make([][]float64, m.targets)
	for p := range overlap {
		overlap[p] = make([]float64, m.targets)
	}
	for v, p := range parts {
		if at := m.start[v]; int(at) < m.targets {
			overlap[p][at] += m.cost(v)
		}
	}
	target := relabel.Assign(overlap)
	shard := make([]int32, len(parts))
	for v, p := range parts {
		shard[v] = int32(target[p]) //nolint:gosec // at most MaxShards
	}
	return shard
}

// takeBack undoes the moves that gain less than they cost, the least used
// vertices first, as long as that keeps the balance.
func (s *state) takeBack(m *model) {
	p := newPenalty(1, s.commands)
	pull := m.pulls()
	var moved []int
	for v, at := range s.shard {
		if at != m.start[v] && int(m.start[v]) < m.targets {
			moved = append(moved, v)
		}
	}
	slices.SortStableFunc(moved, func(a, b int) int { return cmp.Compare(m.weight[a], m.weight[b]) })
	for range 3 {
		changed := false
		for _, v := range moved {
			back := m.start[v]
			if s.shard[v] == back || !s.fits(v, back) {
				continue
			}
			s.evaluate(v, p)
			loss := -s.gains[back] + edgeShare*pull.between(v, s.shard[v], back, s.shard)
			if loss < m.cost(v) {
				s.move(v, back)
				changed = true
			}
		}
		if !changed {
			return
		}
	}
}

// edgeShare weighs the edges against the sampled commands when a move is taken
// back. The edges know of commands that the sample misses.
const edgeShare = 0.2

// pulls are the edges of each vertex.
type pulls struct {
	of    [][]int32
	edges []*planv1.GraphEdge
}

func (m *model) pulls() pulls {
	p := pulls{of: make([][]int32, len(m.vertices)), edges: m.graph.GetEdges()}
	for i, e := range p.edges {
		p.of[e.GetA()] = append(p.of[e.GetA()], int32(i))
		p.of[e.GetB()] = append(p.of[e.GetB()], int32(i))
	}
	return p
}

// between is how much more edge weight a vertex has to one shard than to another.
func (p pulls) between(v int, one, other int32, shard []int32) float64 {
	var sum float64
	for _, i := range p.of[v] {
		e := p.edges[i]
		u := e.GetA()
		if int(u) == v {
			u = e.GetB()
		}
		switch shard[u] {
		case one:
			sum += e.GetWeight()
		case other:
			sum -= e.GetWeight()
		}
	}
	return sum
}

// holdSlots keeps a slot where it is if one of its hot vertices stays there
// without an override: moving the slot would take that vertex along.
func (m *model) holdSlots(s *state) {
	held := make(map[uint32]bool)
	for v, vertex := range m.vertices {
		at := m.start[v]
		if !vertex.GetIsSlot() && at == m.home[vertex.GetSlot()] && s.shard[v] == at {
			held[vertex.GetSlot()] = true
		}
	}
	for v, vertex := range m.vertices {
		if vertex.GetIsSlot() && s.shard[v] != m.start[v] && held[vertex.GetSlot()] {
			s.move(v, m.start[v])
		}
	}
}

func percent(part, whole float64) string {
	if whole == 0 {
		return "0.0 %"
	}
	return fmt.Sprintf("%.1f %%", 100*part/whole)
}
