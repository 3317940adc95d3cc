// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package kahip

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kolocate/kolocate/services/partitioner/plan"
)

// drawn returns a small connected graph, often with a heavy vertex.
func drawn(random *rand.Rand, n int) *plan.CSR {
	weight := make([][]int32, n)
	for v := range weight {
		weight[v] = make([]int32, n)
	}
	join := func(a, b int) {
		w := int32(1 + random.IntN(9))
		weight[a][b], weight[b][a] = w, w
	}
	for v := 1; v < n; v++ {
		join(v, random.IntN(v))
	}
	for range random.IntN(2 * n) {
		if a, b := random.IntN(n), random.IntN(n); a != b {
			join(a, b)
		}
	}
	g := &plan.CSR{Offsets: []int32{0}}
	for v := range n {
		g.VertexWeights = append(g.VertexWeights, int32(1+random.IntN(4)))
		for u, w := range weight[v] {
			if w > 0 {
				g.Neighbours = append(g.Neighbours, int32(u))
				g.EdgeWeights = append(g.EdgeWeights, w)
			}
		}
		g.Offsets = append(g.Offsets, int32(len(g.Neighbours)))
	}
	return g
}

func cut(g *plan.CSR, part []int32) int64 {
	var sum int64
	for v := range part {
		for at := g.Offsets[v]; at < g.Offsets[v+1]; at++ {
			if part[v] != part[g.Neighbours[at]] {
				sum += int64(g.EdgeWeights[at])
			}
		}
	}
	return sum / 2
}

// heaviest is KaHIP's bound on a part: (1+imbalance) times the mean, rounded up.
func heaviest(g *plan.CSR, part []int32, parts int) (weight, mean int64) {
	sums := make([]int64, parts)
	var sum int64
	for v, p := range part {
		sums[p] += int64(g.VertexWeights[v])
		sum += int64(g.VertexWeights[v])
	}
	return slices.Max(sums), (sum + int64(parts) - 1) / int64(parts)
}

// exhaustive is the dumb twin: it tries every partition within a bound on the parts.
func exhaustive(g *plan.CSR, parts int, bound int64) int64 {
	best := int64(-1)
	part := make([]int32, len(g.VertexWeights))
	sums := make([]int64, parts)
	var try func(v int)
	try = func(v int) {
		if v == len(part) {
			if c := cut(g, part); best < 0 || c < best {
				best = c
			}
			return
		}
		// Parts have no names: a vertex may open only the next empty one.
		for p := range parts {
			if sums[p]+int64(g.VertexWeights[v]) <= bound {
				part[v] = int32(p)
				sums[p] += int64(g.VertexWeights[v])
				try(v + 1)
				sums[p] -= int64(g.VertexWeights[v])
			}
			if sums[p] == 0 {
				break
			}
		}
	}
	try(0)
	return best
}

func TestPartitionAgainstTheOptimum(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 1))
	optimal, rounds := 0, 60
	for round := range rounds {
		n, parts := 6+random.IntN(7), 2+random.IntN(2)
		g := drawn(random, n)
		part, err := Partitioner{}.Partition(context.Background(), g, parts, plan.PartitionOptions{Imbalance: 0.2, Preconfiguration: "strong", Seed: uint64(round)})
		if err != nil {
			t.Fatal(err)
		}
		got := cut(g, part)
		weight, mean := heaviest(g, part, parts)
		// On such small graphs KaHIP may miss the tolerance by a vertex; it is
		// then compared with the best of what it allowed itself.
		if weight > mean+mean/5+4 {
			t.Errorf("round %d: a part weighs %d, the mean is %d", round, weight, mean)
		}
		best := exhaustive(g, parts, max(weight, mean))
		if got < best {
			t.Fatalf("round %d: cut %d is below the optimum %d: the twin is wrong", round, got, best)
		}
		if got == best {
			optimal++
		} else if got > 3*best {
			t.Errorf("round %d: cut %d, optimum %d", round, got, best)
		}
	}
	if optimal < rounds/2 {
		t.Errorf("%d of %d partitions were optimal, expected at least half", optimal, rounds)
	}
}

func TestPartitionIsTheSameForASeed(t *testing.T) {
	t.Parallel()
	g := drawn(rand.New(rand.NewPCG(2, 2)), 400)
	for _, preconfiguration := range plan.Preconfigurations {
		o := plan.PartitionOptions{Imbalance: 0.05, Preconfiguration: preconfiguration, Seed: 5}
		one, err := Partitioner{}.Partition(context.Background(), g, 4, o)
		if err != nil {
			t.Fatal(err)
		}
		two, err := Partitioner{}.Partition(context.Background(), g, 4, o)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(one, two) {
			t.Errorf("%s: two runs differ", preconfiguration)
		}
	}
}

func TestPartitionOfGraphsAtTheEdge(t *testing.T) {
	t.Parallel()
	alone := func(n int) *plan.CSR {
		g := &plan.CSR{Offsets: make([]int32, n+1)}
		for range n {
			g.VertexWeights = append(g.VertexWeights, 1)
		}
		return g
	}
	for _, preconfiguration := range plan.Preconfigurations {
		o := plan.PartitionOptions{Imbalance: 0.05, Preconfiguration: preconfiguration}
		for _, n := range []int{0, 1, 2, 3, 50} {
			part, err := Partitioner{}.Partition(context.Background(), alone(n), 4, o)
			if err != nil || len(part) != n {
				t.Errorf("%s, %d vertices without edges: %v, %v", preconfiguration, n, part, err)
			}
		}
	}
}

func TestPartitionRefusesBadInput(t *testing.T) {
	t.Parallel()
	good := plan.PartitionOptions{Imbalance: 0.05, Preconfiguration: "fast"}
	pair := &plan.CSR{VertexWeights: []int32{1, 1}, Offsets: []int32{0, 1, 2}, Neighbours: []int32{1, 0}, EdgeWeights: []int32{1, 1}}
	for name, try := range map[string]func() error{
		"unknown preconfiguration": func() error {
			_, err := Partitioner{}.Partition(context.Background(), pair, 2, plan.PartitionOptions{Imbalance: 0.05, Preconfiguration: "quick"})
			return err
		},
		"no parts": func() error {
			_, err := Partitioner{}.Partition(context.Background(), pair, 0, good)
			return err
		},
		"negative imbalance": func() error {
			_, err := Partitioner{}.Partition(context.Background(), pair, 2, plan.PartitionOptions{Imbalance: -1, Preconfiguration: "fast"})
			return err
		},
		"neighbour that is not there": func() error {
			g := *pair
			g.Neighbours = []int32{1, 2}
			_, err := Partitioner{}.Partition(context.Background(), &g, 2, good)
			if !errors.Is(err, plan.ErrGraph) {
				t.Errorf("expected ErrGraph, got %v", err)
			}
			return err
		},
		"cancelled": func() error {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			_, err := Partitioner{}.Partition(ctx, drawn(rand.New(rand.NewPCG(2, 2)), 3000), 4, plan.PartitionOptions{Imbalance: 0.01, Preconfiguration: "strong"})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("expected context.Canceled, got %v", err)
			}
			return err
		},
	} {
		if try() == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
