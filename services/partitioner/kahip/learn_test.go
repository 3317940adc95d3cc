// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package kahip

import (
	"bufio"
	"compress/gzip"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	planv1 "github.com/kolocate/kolocate/api/proto/plan/v1"
	"github.com/kolocate/kolocate/services/keyspace"
	"github.com/kolocate/kolocate/services/oracle/graph"
	"github.com/kolocate/kolocate/services/partitioner/plan"
	"github.com/kolocate/kolocate/services/trace"
)

// network is who is a friend of whom.
type network [][]int

// communities draws a network of groups of 20 to 80 with most friends inside.
func communities(random *rand.Rand, users int) network {
	n := make(network, users)
	join := func(a, b int) {
		if a != b {
			n[a] = append(n[a], b)
			n[b] = append(n[b], a)
		}
	}
	for first := 0; first < users; {
		size := min(20+random.IntN(61), users-first)
		for a := first; a < first+size; a++ {
			for range 4 + random.IntN(8) {
				join(a, first+random.IntN(size))
			}
			if random.IntN(100) < 8 {
				join(a, random.IntN(users))
			}
		}
		first += size
	}
	return n
}

// edgeList reads lines of two numbers, gzipped.
func edgeList(t *testing.T, path string) network {
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	var n network
	for lines := bufio.NewScanner(unzipped); lines.Scan(); {
		var a, b int
		if _, err := fmt.Sscan(lines.Text(), &a, &b); err != nil {
			t.Fatal(err)
		}
		for len(n) <= max(a, b) {
			n = append(n, nil)
		}
		n[a], n[b] = append(n[a], b), append(n[b], a)
	}
	return n
}

func user(i int) keyspace.Vertex { return keyspace.Vertex("user/" + strconv.Itoa(i)) }

// learn runs commands from a hash placement, 15 % of them posts, and returns the
// graph that the oracle has learnt from the sketches of four shards.
func (n network) learn(t *testing.T, p *keyspace.Placement, shards, commands int) *planv1.Graph {
	random := rand.New(rand.NewPCG(11, 11))
	sketches := make([]*trace.Sketch, shards)
	for i := range sketches {
		sketches[i] = trace.NewSketch(trace.Config{Store: "s", Shard: keyspace.ShardID(i + 1), Seed: uint64(i)})
	}
	g := graph.New(graph.Config{Store: "s", HalfLife: time.Hour})
	now := time.Unix(1000, 0)
	report := func() {
		now = now.Add(10 * time.Second)
		for _, s := range sketches {
			if err := g.Merge(s.Report(10*time.Second, 1), now); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range commands {
		poster := random.IntN(len(n))
		vertices := []keyspace.Vertex{user(poster)}
		var written uint64
		if random.Float64() < 0.15 {
			for _, friend := range n[poster] {
				vertices = append(vertices, user(friend))
			}
			written = 100 * uint64(len(vertices))
		}
		sketches[p.ShardOf(user(poster))-1].Observe(vertices, written, 1)
		if i%10000 == 9999 {
			report()
		}
	}
	report()
	var ids []keyspace.ShardID
	for i := range shards {
		ids = append(ids, keyspace.ShardID(i+1))
	}
	return g.Snapshot(p, graph.SnapshotOptions{Now: now, Shards: ids})
}

// share is the true share of multi-shard commands, over the posts of all users.
func (n network) share(place func(keyspace.Vertex) keyspace.ShardID) float64 {
	crossing := 0
	for poster, friends := range n {
		for _, friend := range friends {
			if place(user(friend)) != place(user(poster)) {
				crossing++
				break
			}
		}
	}
	return 0.15 * float64(crossing) / float64(len(n))
}

// placed returns the placement after all steps of a plan.
func placed(t *testing.T, p *keyspace.Placement, made *planv1.Plan) *keyspace.Placement {
	for _, step := range made.GetSteps() {
		d := keyspace.Delta{From: p.Epoch(), To: p.Epoch() + 1}
		for _, v := range step.GetVertices() {
			if at := p.ShardOf(keyspace.Vertex(v)); at != keyspace.ShardID(step.GetFrom()) {
				t.Fatalf("step %d moves %s from %d, it is at %d", step.GetNumber(), v, step.GetFrom(), at)
			}
			d.Overrides = append(d.Overrides, keyspace.VertexMove{Vertex: keyspace.Vertex(v), To: keyspace.ShardID(step.GetTo())})
		}
		for _, slot := range step.GetSlots() {
			d.Slots = append(d.Slots, keyspace.SlotMove{Slot: keyspace.Slot(slot), To: keyspace.ShardID(step.GetTo())})
		}
		next, err := p.Apply(d)
		if err != nil {
			t.Fatal(err)
		}
		p = next
	}
	return p
}

// TestPlanLearntFromSketches goes the whole way from executed commands to a plan
// and holds its prediction against the truth. KOLOCATE_TEST_GRAPH names a gzipped
// edge list to do it on, instead of a drawn network.
func TestPlanLearntFromSketches(t *testing.T) {
	const shards = 4
	n := communities(rand.New(rand.NewPCG(3, 3)), 4000)
	if path := os.Getenv("KOLOCATE_TEST_GRAPH"); path != "" {
		n = edgeList(t, path)
	}
	start, err := keyspace.EvenPlacement(shards)
	if err != nil {
		t.Fatal(err)
	}
	counts := []int{20000, 60000}
	if testing.Short() {
		counts = counts[:1]
	}
	for _, commands := range counts {
		g := n.learn(t, start, shards, commands)
		began := time.Now()
		made, err := plan.Make(context.Background(), g, &planv1.PlanOptions{Seed: 1, MinimumGain: 0.01}, Partitioner{})
		if err != nil {
			t.Fatal(err)
		}
		took := time.Since(began)
		end := placed(t, start, made)
		before, after, said := n.share(start.ShardOf), n.share(end.ShardOf), made.GetPrediction()
		t.Logf("%d commands, %d vertices, %d edges, %d sampled: share %.4f to %.4f (ratio %.3f), predicted %.4f to %.4f; imbalance %.3f to %.3f; %d moved in %d steps, %d overrides; %.2f s, %.2f s in the partitioner",
			commands, len(g.GetVertices()), len(g.GetEdges()), len(g.GetCommands()), before, after, after/before, said.GetMpoShareBefore(), said.GetMpoShareAfter(),
			said.GetImbalanceBefore(), said.GetImbalanceAfter(), said.GetMovedVertices(), len(made.GetSteps()), said.GetOverridesAfter(), took.Seconds(), took.Seconds())
		if after > 0.4*before {
			t.Errorf("%d commands: share of multi-shard commands %.4f after %.4f, expected at most 0.4 of it", commands, after, before)
		}
		if math.Abs(after-said.GetMpoShareAfter()) > 0.01 || math.Abs(before-said.GetMpoShareBefore()) > 0.01 {
			t.Errorf("%d commands: predicted %.4f to %.4f, true %.4f to %.4f", commands, said.GetMpoShareBefore(), said.GetMpoShareAfter(), before, after)
		}
		if said.GetImbalanceAfter() > 0.15 {
			t.Errorf("%d commands: imbalance %.3f", commands, said.GetImbalanceAfter())
		}
		if end.Overrides() != int(said.GetOverridesAfter()) {
			t.Errorf("%d commands: %d overrides, predicted %d", commands, end.Overrides(), said.GetOverridesAfter())
		}
		again, err := plan.Make(context.Background(), g, &planv1.PlanOptions{Seed: 1, MinimumGain: 0.01}, Partitioner{})
		if err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(made, again) {
			t.Errorf("%d commands: the same graph gave another plan", commands)
		}
	}
}
