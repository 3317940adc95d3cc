// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package kahip

import (
	"context"
	"math/rand/v2"
	"testing"

	planv1 "github.com/kolocate/kolocate/api/proto/plan/v1"
	"github.com/kolocate/kolocate/services/keyspace"
	"github.com/kolocate/kolocate/services/partitioner/plan"
)

// BenchmarkPlan plans for 10,000 vertices, about 200,000 edges and 8,000 sampled
// commands, from a hash placement over 4 shards.
func BenchmarkPlan(b *testing.B) {
	const users, friends, posts = 10000, 20, 8000
	random := rand.New(rand.NewPCG(1, 1))
	start, err := keyspace.EvenPlacement(4)
	if err != nil {
		b.Fatal(err)
	}
	g := &planv1.Graph{
		Version: plan.Version, Store: "s", Epoch: 1, Shards: []uint32{1, 2, 3, 4}, SingleVertexWeight: 5.7 * posts,
		SlotHomes: []*planv1.SlotHome{{First: 0, Last: 4095, Shard: 1}, {First: 4096, Last: 8191, Shard: 2}, {First: 8192, Last: 12287, Shard: 3}, {First: 12288, Last: 16383, Shard: 4}},
	}
	of := make([][]uint32, users)
	edges := map[[2]uint32]bool{}
	for v := range uint32(users) {
		g.Vertices = append(g.Vertices, &planv1.GraphVertex{Name: []byte(user(int(v))), Slot: uint32(keyspace.SlotOf(user(int(v)))), Shard: uint32(start.ShardOf(user(int(v)))), Load: 1, Bytes: 1000})
		for range friends {
			u := v/100*100 + random.Uint32N(100)
			if random.IntN(50) == 0 {
				u = random.Uint32N(users)
			}
			if e := [2]uint32{min(u, v), max(u, v)}; u != v && !edges[e] {
				edges[e] = true
				of[u], of[v] = append(of[u], v), append(of[v], u)
				g.Edges = append(g.Edges, &planv1.GraphEdge{A: e[0], B: e[1], Weight: 0.05})
			}
		}
	}
	for range posts {
		v := random.Uint32N(users)
		g.Commands = append(g.Commands, &planv1.SampledCommand{Vertices: append([]uint32{v}, of[v]...), Weight: 1})
	}
	for b.Loop() {
		p, err := plan.Make(context.Background(), g, &planv1.PlanOptions{Seed: 1}, Partitioner{})
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(len(g.Edges)), "edges")
		b.ReportMetric(p.GetPrediction().GetMpoShareAfter()/p.GetPrediction().GetMpoShareBefore(), "share-ratio")
	}
}
