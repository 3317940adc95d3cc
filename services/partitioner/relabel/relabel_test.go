// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package relabel

import (
	"math"
	"math/rand/v2"
	"testing"
)

// best tries every assignment.
func best(overlap [][]float64, row int, used []bool) float64 {
	if row == len(overlap) {
		return 0
	}
	greatest := math.Inf(-1)
	for s := range used {
		if !used[s] {
			used[s] = true
			greatest = max(greatest, overlap[row][s]+best(overlap, row+1, used))
			used[s] = false
		}
	}
	return greatest
}

func TestAssignIsOptimal(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 1))
	for round := range 3000 {
		parts := 1 + random.IntN(6)
		shards := parts + random.IntN(2)
		overlap := make([][]float64, parts)
		for p := range overlap {
			overlap[p] = make([]float64, shards)
			for s := range overlap[p] {
				if round%2 == 0 {
					overlap[p][s] = float64(random.IntN(4)) // many ties
				} else {
					overlap[p][s] = random.ExpFloat64() * 1000
				}
			}
		}
		got := Assign(overlap)
		used := make([]bool, shards)
		var sum float64
		for p, s := range got {
			if used[s] {
				t.Fatalf("round %d: shard %d given twice: %v", round, s, got)
			}
			used[s] = true
			sum += overlap[p][s]
		}
		if want := best(overlap, 0, make([]bool, shards)); math.Abs(sum-want) > 1e-9*max(1, want) {
			t.Fatalf("round %d: %v keeps %f, the best keeps %f; overlap %v", round, got, sum, want, overlap)
		}
	}
}

func TestAssignOfNothing(t *testing.T) {
	t.Parallel()
	if got := Assign(nil); len(got) != 0 {
		t.Fatalf("assigned %v", got)
	}
}

func BenchmarkAssign64(b *testing.B) {
	random := rand.New(rand.NewPCG(1, 1))
	overlap := make([][]float64, 64)
	for p := range overlap {
		for range 64 {
			overlap[p] = append(overlap[p], random.Float64())
		}
	}
	for b.Loop() {
		Assign(overlap)
	}
}
