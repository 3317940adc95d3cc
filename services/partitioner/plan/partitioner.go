// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"errors"
	"fmt"
	"math"
)

// Partitioner splits a graph into parts of nearly equal vertex weight so that
// little edge weight lies between them. It is deterministic for a seed.
type Partitioner interface {
	// Partition returns the part of each vertex, 0 to parts-1. It returns the
	// context's error when that ends first; the work may then go on in the
	// background until the process ends.
	Partition(ctx context.Context, graph *CSR, parts int, options PartitionOptions) ([]int32, error)
	// Name says what partitions, with its version.
	Name() string
}

// PartitionOptions are what a Partitioner must know beside the graph.
type PartitionOptions struct {
	// Imbalance tolerated: 0.05 lets a part weigh 5 % more than the mean.
	Imbalance float64
	// Preconfiguration is one of Preconfigurations.
	Preconfiguration string
	Seed             uint64
}

// Preconfigurations are KaHIP's, from fast to good; the social ones suit graphs
// with hubs.
var Preconfigurations = []string{"fast", "eco", "strong", "fastsocial", "ecosocial", "strongsocial"}

// DefaultPreconfiguration is taken when none is asked for (DESIGN.md, "Measured").
const DefaultPreconfiguration = "fastsocial"

// CSR is an undirected graph in compressed rows: the neighbours of v are
// Neighbours[Offsets[v]:Offsets[v+1]]. Every edge is there from both ends with
// the same weight; there are no loops and no edge twice.
type CSR struct {
	// VertexWeights are above 0 and add up to less than 2^31.
	VertexWeights []int32
	Offsets       []int32
	Neighbours    []int32
	// EdgeWeights are above 0, and those of all rows add up to less than 2^31.
	EdgeWeights []int32
}

// ErrGraph says that a graph breaks the rules of CSR.
var ErrGraph = errors.New("invalid graph")

// Check returns an error that is ErrGraph if a slice has the wrong length, a
// number is out of its range, or a row names a vertex that is not there. It
// takes the symmetry of the rows on trust.
func (g *CSR) Check() error {
	n := len(g.VertexWeights)
	if len(g.Offsets) != n+1 || g.Offsets[0] != 0 || int(g.Offsets[n]) != len(g.Neighbours) || len(g.EdgeWeights) != len(g.Neighbours) {
		return fmt.Errorf("%w: %d vertices, %d offsets, %d neighbours, %d edge weights do not fit together", ErrGraph, n, len(g.Offsets), len(g.Neighbours), len(g.EdgeWeights))
	}
	var vertices, edges int64
	for v, weight := range g.VertexWeights {
		if weight <= 0 {
			return fmt.Errorf("%w: vertex %d weighs %d, expected more than 0", ErrGraph, v, weight)
		}
		vertices += int64(weight)
		if g.Offsets[v] > g.Offsets[v+1] {
			return fmt.Errorf("%w: the row of vertex %d ends before it starts", ErrGraph, v)
		}
		for at := g.Offsets[v]; at < g.Offsets[v+1]; at++ {
			if u := g.Neighbours[at]; u < 0 || int(u) >= n || int(u) == v {
				return fmt.Errorf("%w: vertex %d has neighbour %d, expected another of 0 to %d", ErrGraph, v, u, n-1)
			}
			if g.EdgeWeights[at] <= 0 {
				return fmt.Errorf("%w: an edge of vertex %d weighs %d, expected more than 0", ErrGraph, v, g.EdgeWeights[at])
			}
			edges += int64(g.EdgeWeights[at])
		}
	}
	if vertices > math.MaxInt32 || edges > math.MaxInt32 {
		return fmt.Errorf("%w: vertex weights add up to %d and edge weights to %d, expected at most %d each", ErrGraph, vertices, edges, math.MaxInt32)
	}
	return nil
}
