// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package graph

import (
	"cmp"
	"slices"
	"time"

	planv1 "github.com/kolocate/kolocate/api/proto/plan/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// SnapshotOptions say what a snapshot carries beside the graph.
type SnapshotOptions struct {
	Now time.Time
	// Shards that vertices may live on after the plan.
	Shards []keyspace.ShardID
	// As the shards counted them over the window, 0 to 1.
	MPOShare, Imbalance float64
}

// leastRate is the number of commands a second below which a slot's rest is
// left out: it is what decay leaves of nothing.
const leastRate = 1e-9

// Snapshot returns the graph as it is at a placement, in commands a second. The
// caller owns the result; it shares no memory with the graph.
func (g *Graph) Snapshot(p *keyspace.Placement, o SnapshotOptions) *planv1.Graph {
	per := g.perSecond(o.Now)
	out := &planv1.Graph{
		Version: Version, Store: g.config.Store, Epoch: uint64(p.Epoch()),
		SingleVertexWeight: g.single * per, MeasuredMpoShare: o.MPOShare, MeasuredImbalance: o.Imbalance,
		SlotHomes: homes(p),
	}
	for _, shard := range o.Shards {
		out.Shards = append(out.Shards, uint32(shard))
	}
	g.commands.trim()
	at := g.snapshotVertices(p, per, out)
	for _, e := range g.sortedEdges() {
		a, b := at[e[0]], at[e[1]]
		out.Edges = append(out.Edges, &planv1.GraphEdge{A: min(a, b), B: max(a, b), Weight: g.edges[e] * per})
	}
	slices.SortFunc(out.Edges, func(x, y *planv1.GraphEdge) int { return cmp.Or(cmp.Compare(x.A, y.A), cmp.Compare(x.B, y.B)) })
	g.snapshotCommands(at, per, out)
	for _, move := range p.OverridesSorted() {
		if _, held := g.index[move.Vertex]; !held {
			out.UntracedOverrides = append(out.UntracedOverrides, &planv1.Override{Vertex: []byte(move.Vertex), Shard: uint32(move.To)})
		}
	}
	return out
}

// perSecond turns a count in forward units into a rate.
func (g *Graph) perSecond(now time.Time) float64 {
	g.forward(now)
	// The shards observe the same time, each its own commands.
	var observed float64
	for _, seconds := range g.seconds {
		observed = max(observed, seconds)
	}
	if observed == 0 {
		return 0
	}
	return 1 / observed
}

// snapshotVertices writes the hot vertices in the order of their names, then the
// slots that have a use, and returns the index of each node.
func (g *Graph) snapshotVertices(p *keyspace.Placement, per float64, out *planv1.Graph) map[node]uint32 {
	needed := make(map[node]bool)
	for e := range g.edges {
		needed[e[0]], needed[e[1]] = true, true
	}
	for _, c := range g.commands.held {
		for _, n := range c.nodes {
			needed[n] = true
		}
	}
	at := make(map[node]uint32, len(g.index))
	names := make([]keyspace.Vertex, 0, len(g.index))
	for v := range g.index {
		names = append(names, v)
	}
	slices.Sort(names)
	for _, v := range names {
		n := g.index[v]
		u := g.useOf(n)
		at[n] = uint32(len(out.Vertices)) //nolint:gosec // bounded by Config.Vertices
		out.Vertices = append(out.Vertices, &planv1.GraphVertex{
			Name: []byte(v), Slot: uint32(keyspace.SlotOf(v)), Shard: uint32(p.ShardOf(v)), Load: u.count * per, Bytes: u.bytes,
		})
	}
	for slot := range node(keyspace.Slots) {
		if g.slots[slot].count*per < leastRate && !needed[slot] {
			continue
		}
		at[slot] = uint32(len(out.Vertices)) //nolint:gosec // bounded by Config.Vertices and keyspace.Slots
		out.Vertices = append(out.Vertices, &planv1.GraphVertex{
			IsSlot: true, Slot: uint32(slot), Shard: uint32(p.ShardOfSlot(keyspace.Slot(slot))),
			Load: g.slots[slot].count * per, Bytes: g.slots[slot].bytes,
		})
	}
	return at
}

func (g *Graph) snapshotCommands(at map[node]uint32, per float64, out *planv1.Graph) {
	var sum float64
	// Number of the last command that named a vertex: several vertices of one
	// may have folded into the same slot.
	named := make([]int, len(out.Vertices))
	for number, held := range g.commands.held {
		c := &planv1.SampledCommand{Weight: g.commands.weightOf(held)}
		sum += c.Weight
		for _, n := range held.nodes {
			if i := at[n]; named[i] != number+1 {
				named[i] = number + 1
				c.Vertices = append(c.Vertices, i)
			}
		}
		out.Commands = append(out.Commands, c)
	}
	if sum == 0 {
		return
	}
	// The number of commands is known better than the sample can say it.
	scale := g.multi * per / sum
	for _, c := range out.Commands {
		c.Weight *= scale
	}
}

func homes(p *keyspace.Placement) []*planv1.SlotHome {
	var runs []*planv1.SlotHome
	for slot := range uint32(keyspace.Slots) {
		shard := uint32(p.ShardOfSlot(keyspace.Slot(slot)))
		if n := len(runs); n > 0 && runs[n-1].Shard == shard {
			runs[n-1].Last = slot
		} else {
			runs = append(runs, &planv1.SlotHome{First: slot, Last: slot, Shard: shard})
		}
	}
	return runs
}
