// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	planv1 "github.com/kolocate/kolocate/api/proto/plan/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// Version of the graphs read and the plans written.
const Version = 1

// Named errors of Make.
var (
	// ErrVersion says that the graph was written by a newer program.
	ErrVersion = errors.New("unknown version of the graph")
	// ErrOptions says that the options contradict each other or are out of range.
	ErrOptions = errors.New("invalid options")
)

// bytesShare is the part that stored bytes have in the weight of a vertex; load
// has the rest. With it a shard cannot become the home of everything that is
// large and idle.
const bytesShare = 0.1

// model is the graph in the form the planner works on. Shards are numbered from
// 0: first the targets, then those that must be emptied.
type model struct {
	graph   *planv1.Graph
	shards  []uint32
	targets int
	// By vertex.
	vertices []*planv1.GraphVertex
	start    []int32
	load     []float64 // part of the whole load
	size     []float64 // part of all bytes
	weight   []float64 // of both together; adds up to 1
	commands []command
	single   float64 // commands a second that touch one vertex
	home     [keyspace.Slots]int32
}

// command is a sampled command.
type command struct {
	vertices []int32
	weight   float64 // commands a second
}

// newModel checks the graph and reads it. It keeps the graph, and changes nothing in it.
func newModel(g *planv1.Graph) (*model, error) {
	switch {
	case g.GetVersion() == 0 || g.GetVersion() > Version:
		return nil, fmt.Errorf("plan for store %q: graph of version %d, this program reads %d: %w; use the release that wrote it", g.GetStore(), g.GetVersion(), Version, ErrVersion)
	case len(g.GetShards()) == 0:
		return nil, fmt.Errorf("plan for store %q: %w: it names no shard", g.GetStore(), ErrGraph)
	}
	m := &model{graph: g, vertices: slices.Clip(g.GetVertices()), single: g.GetSingleVertexWeight()}
	numbers := make(map[uint32]int32)
	number := func(shard uint32) (int32, error) {
		if shard == 0 || shard > keyspace.MaxShards {
			return 0, fmt.Errorf("plan for store %q: %w: shard %d, expected 1 to %d", g.GetStore(), ErrGraph, shard, keyspace.MaxShards)
		}
		n, known := numbers[shard]
		if !known {
			n = int32(len(m.shards)) //nolint:gosec // at most MaxShards
			numbers[shard] = n
			m.shards = append(m.shards, shard)
		}
		return n, nil
	}
	for _, shard := range g.GetShards() {
		if _, err := number(shard); err != nil {
			return nil, err
		}
	}
	m.targets = len(m.shards)
	if m.targets != len(g.GetShards()) {
		return nil, fmt.Errorf("plan for store %q: %w: a shard is named twice in %d", g.GetStore(), ErrGraph, g.GetShards())
	}
	if err := m.readHomes(number); err != nil {
		return nil, err
	}
	if err := m.readVertices(number); err != nil {
		return nil, err
	}
	if err := m.readCommands(); err != nil {
		return nil, err
	}
	if err := m.checkEdges(); err != nil {
		return nil, err
	}
	return m, nil
}

func (m *model) readHomes(number func(uint32) (int32, error)) error {
	next := uint32(0)
	for _, run := range m.graph.GetSlotHomes() {
		if run.GetFirst() != next || run.GetLast() < run.GetFirst() || run.GetLast() >= keyspace.Slots {
			return fmt.Errorf("plan for store %q: %w: homes of slots %d to %d, expected a run that starts at %d", m.graph.GetStore(), ErrGraph, run.GetFirst(), run.GetLast(), next)
		}
		n, err := number(run.GetShard())
		if err != nil {
			return err
		}
		for slot := run.GetFirst(); slot <= run.GetLast(); slot++ {
			m.home[slot] = n
		}
		next = run.GetLast() + 1
	}
	if next != keyspace.Slots {
		return fmt.Errorf("plan for store %q: %w: the homes of slots end at %d, expected %d", m.graph.GetStore(), ErrGraph, next, keyspace.Slots)
	}
	return nil
}

func (m *model) readVertices(number func(uint32) (int32, error)) error {
	present := keyspace.SlotSet{}
	for i, v := range m.vertices {
		bad := v.GetSlot() >= keyspace.Slots || !(v.GetLoad() >= 0) || math.IsInf(v.GetLoad(), 0) || !v.GetIsSlot() && len(v.GetName()) == 0
		if bad {
			return fmt.Errorf("plan for store %q: %w: vertex %d (%q) of slot %d with load %g", m.graph.GetStore(), ErrGraph, i, v.GetName(), v.GetSlot(), v.GetLoad())
		}
		n, err := number(v.GetShard())
		if err != nil {
			return err
		}
		if v.GetIsSlot() {
			if n != m.home[v.GetSlot()] {
				return fmt.Errorf("plan for store %q: %w: slot %d is at shard %d as a vertex and at shard %d by its home", m.graph.GetStore(), ErrGraph, v.GetSlot(), v.GetShard(), m.shards[m.home[v.GetSlot()]])
			}
			present.Add(keyspace.Slot(v.GetSlot())) //nolint:gosec // checked: below Slots
		}
		m.start = append(m.start, n)
	}
	if err := m.addStranded(number, &present); err != nil {
		return err
	}
	m.weigh()
	return nil
}

// addStranded adds vertices without load for what lives on shards to be emptied
// and is not in the graph: it has to move all the same.
func (m *model) addStranded(number func(uint32) (int32, error), present *keyspace.SlotSet) error {
	for slot, home := range &m.home {
		if int(home) >= m.targets && !present.Has(keyspace.Slot(slot)) {
			m.vertices = append(m.vertices, &planv1.GraphVertex{IsSlot: true, Slot: uint32(slot), Shard: m.shards[home]})
			m.start = append(m.start, home)
		}
	}
	for _, o := range m.graph.GetUntracedOverrides() {
		n, err := number(o.GetShard())
		if err != nil {
			return err
		}
		if int(n) >= m.targets {
			slot := keyspace.SlotOf(keyspace.Vertex(o.GetVertex()))
			m.vertices = append(m.vertices, &planv1.GraphVertex{Name: o.GetVertex(), Slot: uint32(slot), Shard: o.GetShard()})
			m.start = append(m.start, n)
		}
	}
	return nil
}

// weigh sets the weight of each vertex from its load and bytes.
func (m *model) weigh() {
	n := len(m.vertices)
	m.load, m.size, m.weight = make([]float64, n), make([]float64, n), make([]float64, n)
	var load, bytes float64
	for _, v := range m.vertices {
		load += v.GetLoad()
		bytes += float64(v.GetBytes())
	}
	for i, v := range m.vertices {
		if load > 0 {
			m.load[i] = v.GetLoad() / load
		}
		if bytes > 0 {
			m.size[i] = float64(v.GetBytes()) / bytes
		}
		switch {
		case load > 0 && bytes > 0:
			m.weight[i] = (1-bytesShare)*m.load[i] + bytesShare*m.size[i]
		case load > 0 || bytes > 0:
			m.weight[i] = m.load[i] + m.size[i]
		default:
			m.weight[i] = 1 / float64(n)
		}
	}
}

func (m *model) readCommands() error {
	n := len(m.graph.GetVertices())
	for i, c := range m.graph.GetCommands() {
		if !(c.GetWeight() > 0) || math.IsInf(c.GetWeight(), 0) || len(c.GetVertices()) == 0 {
			return fmt.Errorf("plan for store %q: %w: command %d of %d vertices weighs %g", m.graph.GetStore(), ErrGraph, i, len(c.GetVertices()), c.GetWeight())
		}
		vertices := make([]int32, 0, len(c.GetVertices()))
		for _, v := range c.GetVertices() {
			if int64(v) >= int64(n) {
				return fmt.Errorf("plan for store %q: %w: command %d names vertex %d of %d", m.graph.GetStore(), ErrGraph, i, v, n)
			}
			vertices = append(vertices, int32(v)) //nolint:gosec // below n
		}
		first := vertices[0]
		slices.Sort(vertices)
		vertices = slices.Compact(vertices)
		// The first vertex stays first: it is the centre of a star.
		at, _ := slices.BinarySearch(vertices, first)
		copy(vertices[1:at+1], vertices[:at])
		vertices[0] = first
		m.commands = append(m.commands, command{vertices: vertices, weight: c.GetWeight()})
	}
	return nil
}

func (m *model) checkEdges() error {
	n := len(m.graph.GetVertices())
	for _, e := range m.graph.GetEdges() {
		if e.GetA() >= e.GetB() || int64(e.GetB()) >= int64(n) || !(e.GetWeight() >= 0) || math.IsInf(e.GetWeight(), 0) {
			return fmt.Errorf("plan for store %q: %w: edge %d-%d of weight %g among %d vertices", m.graph.GetStore(), ErrGraph, e.GetA(), e.GetB(), e.GetWeight(), n)
		}
	}
	return nil
}

// total is the number of commands a second.
func (m *model) total(commands []command) float64 {
	sum := m.single
	for _, c := range commands {
		sum += c.weight
	}
	return sum
}

// multi is the number of commands a second that cross shards.
func multi(commands []command, shard []int32) float64 {
	var sum float64
	for _, c := range commands {
		if crosses(c, shard) {
			sum += c.weight
		}
	}
	return sum
}

func crosses(c command, shard []int32) bool {
	for _, v := range c.vertices[1:] {
		if shard[v] != shard[c.vertices[0]] {
			return true
		}
	}
	return false
}

// imbalance is how far the busiest target is over the mean load, 0 for none.
func (m *model) imbalance(shard []int32) float64 {
	loads := make([]float64, len(m.shards))
	var sum float64
	for v, s := range shard {
		loads[s] += m.vertices[v].GetLoad()
		sum += m.vertices[v].GetLoad()
	}
	if sum == 0 {
		return 0
	}
	return slices.Max(loads)*float64(m.targets)/sum - 1
}

// cut is the weight of the edges between shards.
func (m *model) cut(shard []int32) float64 {
	var sum float64
	for _, e := range m.graph.GetEdges() {
		if shard[e.GetA()] != shard[e.GetB()] {
			sum += e.GetWeight()
		}
	}
	return sum
}

// merged returns the commands with equal ones put together, in a fixed order.
func merged(commands []command) []command {
	out := slices.Clone(commands)
	slices.SortStableFunc(out, func(a, b command) int {
		return cmp.Or(cmp.Compare(len(a.vertices), len(b.vertices)), slices.Compare(a.vertices, b.vertices))
	})
	n := 0
	for _, c := range out {
		if n > 0 && slices.Equal(out[n-1].vertices, c.vertices) {
			out[n-1].weight += c.weight
			continue
		}
		out[n] = c
		n++
	}
	return out[:n]
}

// split draws a fifth of the commands for the check of a prediction.
func split(commands []command, random *rand.Rand) (train, check []command) {
	for _, c := range commands {
		if random.IntN(5) == 0 {
			check = append(check, c)
		} else {
			train = append(train, c)
		}
	}
	return train, check
}
