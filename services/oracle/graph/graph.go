// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package graph owns the workload graph: which vertices are used, and which
// together, over a window that forgets. It has no clock, no goroutine and no
// I/O. The oracle merges the shards' reports into it and takes snapshots.
package graph

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// Config bounds a graph. Zero values stand for the defaults.
type Config struct {
	Store string
	Seed  uint64
	// HalfLife is the time after which a use counts half (5 minutes).
	HalfLife time.Duration
	// Vertices held one by one (50,000) and Edges (400,000); the lightest fold
	// into their slot. For short times a quarter more are held.
	Vertices, Edges int
	// Commands in the sample (20,000), and the vertices of all of them together (2,097,152).
	Commands, CommandVertices int
}

func (c Config) withDefaults() Config {
	for _, bound := range []struct {
		value *int
		usual int
	}{{&c.Vertices, 50000}, {&c.Edges, 400000}, {&c.Commands, 20000}, {&c.CommandVertices, 2 << 20}} {
		if *bound.value <= 0 {
			*bound.value = bound.usual
		}
	}
	if c.HalfLife <= 0 {
		c.HalfLife = 5 * time.Minute
	}
	return c
}

// node numbers what an edge or a command may point to: below keyspace.Slots the
// rest of a slot, from there on a hot vertex.
type node uint32

// Graph is the workload graph. One goroutine owns it.
//
// Decay is forward (Cormode, Shkapenyuk, Srivastava, Xu, "Forward decay", ICDE
// 2009): instead of all old counts shrinking, new ones enter with a factor that
// grows; it is divided out when reading. When the factor gets large, everything
// is rescaled once.
type Graph struct {
	config   Config
	landmark time.Time
	factor   float64

	index    map[keyspace.Vertex]node
	hot      []hotVertex
	free     []node
	slots    [keyspace.Slots]use
	edges    map[[2]node]float64
	commands *commands
	// Weight of commands of one vertex and of more, and the time observed by each shard.
	single, multi float64
	seconds       map[uint32]float64
}

type hotVertex struct {
	vertex keyspace.Vertex
	use
}

type use struct {
	count float64
	bytes uint64
}

// New returns an empty graph. Full at its default bounds it takes about 60 MB.
func New(config Config) *Graph {
	config = config.withDefaults()
	g := &Graph{config: config}
	g.commands = newCommands(config.Commands, config.CommandVertices, config.Seed)
	g.Reset()
	return g
}

// Reset forgets everything, as at the start of a rebalance that traces anew.
func (g *Graph) Reset() {
	g.landmark, g.factor = time.Time{}, 1
	g.index = make(map[keyspace.Vertex]node)
	g.hot, g.free = nil, nil
	clear(g.slots[:])
	g.edges = make(map[[2]node]float64)
	g.commands.reset()
	g.single, g.multi = 0, 0
	g.seconds = make(map[uint32]float64)
}

// Size returns the number of vertices held one by one, and of edges.
func (g *Graph) Size() (vertices, edges int) { return len(g.index), len(g.edges) }

// Merge adds what a shard reported for the window that ended at now. It returns
// an error that is ErrOtherStore if the report is of another store, and another
// error if a number in it makes no sense; then nothing of it is merged.
func (g *Graph) Merge(r *oraclev1.ReportRequest, now time.Time) error {
	if r.GetStore() != g.config.Store {
		return fmt.Errorf("merge report of shard %d: of store %q, expected %q: %w", r.GetShard(), r.GetStore(), g.config.Store, ErrOtherStore)
	}
	if err := checkReport(r); err != nil {
		return err
	}
	f := g.forward(now)
	g.seconds[r.GetShard()] += f * r.GetWindowSeconds()
	g.single += f * r.GetSingleVertexCommands()
	g.multi += f * r.GetMultiVertexCommands()
	for _, v := range r.GetVertices() {
		u := g.useOf(g.enter(keyspace.Vertex(v.GetVertex())))
		// The count less its error is certain; the rest is in the slot's.
		u.count += f * max(0, v.GetCount()-v.GetError())
		u.bytes = v.GetBytes()
	}
	for _, s := range r.GetSlots() {
		u := &g.slots[s.GetSlot()]
		u.count += f * s.GetCount()
		u.bytes = max(u.bytes, s.GetBytes())
	}
	for _, e := range r.GetEdges() {
		if weight := e.GetWeight() - e.GetError(); weight > 0 {
			g.addEdge(g.find(e.GetA()), g.find(e.GetB()), f*weight)
		}
	}
	for _, c := range r.GetCommands() {
		nodes := make([]node, 0, len(c.GetVertices()))
		for _, v := range c.GetVertices() {
			nodes = append(nodes, g.find(v))
		}
		g.commands.add(nodes, f*c.GetWeight())
	}
	g.trim()
	return nil
}

func checkReport(r *oraclev1.ReportRequest) error {
	bad := func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) || x < 0 }
	refuse := func(what string) error {
		return fmt.Errorf("merge report of shard %d: %s makes no sense", r.GetShard(), what)
	}
	if bad(r.GetWindowSeconds()) || bad(r.GetSingleVertexCommands()) || bad(r.GetMultiVertexCommands()) {
		return refuse("its window or a count of commands")
	}
	for _, v := range r.GetVertices() {
		if bad(v.GetCount()) || bad(v.GetError()) || len(v.GetVertex()) == 0 {
			return refuse(fmt.Sprintf("vertex %q counted %g with error %g", v.GetVertex(), v.GetCount(), v.GetError()))
		}
	}
	for _, s := range r.GetSlots() {
		if bad(s.GetCount()) || s.GetSlot() >= keyspace.Slots {
			return refuse(fmt.Sprintf("slot %d counted %g", s.GetSlot(), s.GetCount()))
		}
	}
	for _, e := range r.GetEdges() {
		if bad(e.GetWeight()) || bad(e.GetError()) {
			return refuse(fmt.Sprintf("edge %q-%q of weight %g", e.GetA(), e.GetB(), e.GetWeight()))
		}
	}
	for _, c := range r.GetCommands() {
		if bad(c.GetWeight()) || c.GetWeight() == 0 || len(c.GetVertices()) == 0 {
			return refuse(fmt.Sprintf("a command of %d vertices and weight %g", len(c.GetVertices()), c.GetWeight()))
		}
	}
	return nil
}

// forward returns the factor with which a use at now enters.
func (g *Graph) forward(now time.Time) float64 {
	if g.landmark.IsZero() {
		g.landmark = now
	}
	// A clock that went back counts as standing still.
	if age := now.Sub(g.landmark); age > 0 {
		g.factor = max(g.factor, math.Exp2(float64(age)/float64(g.config.HalfLife)))
	}
	if g.factor > 1<<40 {
		g.rescale(now)
	}
	return g.factor
}

func (g *Graph) rescale(now time.Time) {
	by := 1 / g.factor
	for i := range g.hot {
		g.hot[i].count *= by
	}
	for i := range g.slots {
		g.slots[i].count *= by
	}
	for e := range g.edges {
		g.edges[e] *= by
	}
	for s := range g.seconds {
		g.seconds[s] *= by
	}
	g.commands.rescale(by)
	g.single, g.multi = g.single*by, g.multi*by
	g.landmark, g.factor = now, 1
}

// enter returns the node of a vertex, made if it is new.
func (g *Graph) enter(v keyspace.Vertex) node {
	if n, held := g.index[v]; held {
		return n
	}
	var n node
	if last := len(g.free) - 1; last >= 0 {
		n, g.free = g.free[last], g.free[:last]
	} else {
		n = node(keyspace.Slots + len(g.hot)) //nolint:gosec // bounded by Config.Vertices
		g.hot = append(g.hot, hotVertex{})
	}
	g.hot[n-keyspace.Slots] = hotVertex{vertex: v}
	g.index[v] = n
	return n
}

// find returns the node that stands for a vertex: its own, or its slot's.
func (g *Graph) find(v []byte) node {
	if n, held := g.index[keyspace.Vertex(v)]; held {
		return n
	}
	return node(keyspace.SlotOf(keyspace.Vertex(v)))
}

func (g *Graph) useOf(n node) *use {
	if n < keyspace.Slots {
		return &g.slots[n]
	}
	return &g.hot[n-keyspace.Slots].use
}

func (g *Graph) addEdge(a, b node, weight float64) {
	switch {
	case a == b:
		return
	case a > b:
		a, b = b, a
	}
	g.edges[[2]node{a, b}] += weight
}

// trim folds the lightest vertices into their slots and drops the lightest
// edges, once a quarter more than the bound is held.
func (g *Graph) trim() {
	if len(g.index) > g.config.Vertices+g.config.Vertices/4 {
		g.fold()
	}
	if len(g.edges) <= g.config.Edges+g.config.Edges/4 {
		return
	}
	order := g.sortedEdges()
	slices.SortStableFunc(order, func(x, y [2]node) int { return cmp.Compare(g.edges[y], g.edges[x]) })
	for _, e := range order[g.config.Edges:] {
		delete(g.edges, e)
	}
}

// fold gives the uses, edges and commands of the lightest vertices to their slots.
func (g *Graph) fold() {
	order := make([]node, 0, len(g.index))
	for n := range g.hot {
		if g.hot[n].vertex != "" {
			order = append(order, node(keyspace.Slots+n))
		}
	}
	slices.SortFunc(order, func(x, y node) int {
		a, b := &g.hot[x-keyspace.Slots], &g.hot[y-keyspace.Slots]
		return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.vertex, b.vertex))
	})
	moved := make(map[node]node)
	for _, n := range order[g.config.Vertices:] {
		v := &g.hot[n-keyspace.Slots]
		slot := node(keyspace.SlotOf(v.vertex))
		moved[n] = slot
		g.slots[slot].count += v.count
		g.slots[slot].bytes += v.bytes
		delete(g.index, v.vertex)
		*v = hotVertex{}
		g.free = append(g.free, n)
	}
	to := func(n node) node {
		if slot, gone := moved[n]; gone {
			return slot
		}
		return n
	}
	for _, e := range g.sortedEdges() {
		if a, b := to(e[0]), to(e[1]); a != e[0] || b != e[1] {
			weight := g.edges[e]
			delete(g.edges, e)
			g.addEdge(a, b, weight)
		}
	}
	for _, c := range g.commands.held {
		for i, n := range c.nodes {
			c.nodes[i] = to(n)
		}
	}
}

// sortedEdges returns the edges in an order that is the same in every run.
func (g *Graph) sortedEdges() [][2]node {
	order := make([][2]node, 0, len(g.edges))
	for e := range g.edges {
		order = append(order, e)
	}
	slices.SortFunc(order, func(x, y [2]node) int { return cmp.Or(cmp.Compare(x[0], y[0]), cmp.Compare(x[1], y[1])) })
	return order
}
