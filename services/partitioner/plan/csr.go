// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import "math"

// weightSum is what integer weights of vertices, and of edges from both ends,
// add up to at most, apart from rounding up.
const weightSum = 1 << 29

// cliqueLimit is the number of vertices up to which the shards expand a command
// into a clique, and above into a star (trace.CliqueLimit).
const cliqueLimit = 8

// csr returns the graph for a partitioner. The commands in without are taken
// out of the edges again, so that a plan can be checked against them.
func (m *model) csr(without []command) *CSR {
	edges := m.graph.GetEdges()
	weights := make([]float64, len(edges))
	index := map[[2]uint32]int{}
	for i, e := range edges {
		weights[i] = e.GetWeight()
		if len(without) > 0 {
			index[[2]uint32{e.GetA(), e.GetB()}] = i
		}
	}
	for _, c := range without {
		expand(c, func(a, b int32, weight float64) {
			if i, known := index[[2]uint32{uint32(min(a, b)), uint32(max(a, b))}]; known { //nolint:gosec // indexes are not negative
				weights[i] = max(0, weights[i]-weight)
			}
		})
	}
	return m.rows(weights)
}

// expand calls add for the edges that a command stands for.
func expand(c command, add func(a, b int32, weight float64)) {
	n := len(c.vertices)
	if n > cliqueLimit {
		for _, v := range c.vertices[1:] {
			add(c.vertices[0], v, c.weight/float64(n-1))
		}
		return
	}
	for i, a := range c.vertices {
		for _, b := range c.vertices[i+1:] {
			add(a, b, c.weight/float64(n*(n-1)/2))
		}
	}
}

// rows writes the edges of a weight above 0 in compressed rows.
func (m *model) rows(weights []float64) *CSR {
	n := len(m.vertices)
	g := &CSR{VertexWeights: make([]int32, n), Offsets: make([]int32, n+1)}
	for v, weight := range m.weight {
		g.VertexWeights[v] = int32(max(1, math.Round(weight*weightSum)))
	}
	var sum float64
	for i, e := range m.graph.GetEdges() {
		if weights[i] > 0 {
			sum += 2 * weights[i]
			g.Offsets[e.GetA()+1]++
			g.Offsets[e.GetB()+1]++
		}
	}
	for v := range n {
		g.Offsets[v+1] += g.Offsets[v]
	}
	g.Neighbours = make([]int32, g.Offsets[n])
	g.EdgeWeights = make([]int32, g.Offsets[n])
	next := append([]int32(nil), g.Offsets[:n]...)
	for i, e := range m.graph.GetEdges() {
		if weights[i] <= 0 {
			continue
		}
		a, b := int32(e.GetA()), int32(e.GetB()) //nolint:gosec // checked: below n
		weight := int32(max(1, math.Round(weights[i]*weightSum/sum)))
		g.Neighbours[next[a]], g.EdgeWeights[next[a]] = b, weight
		g.Neighbours[next[b]], g.EdgeWeights[next[b]] = a, weight
		next[a]++
		next[b]++
	}
	return g
}
