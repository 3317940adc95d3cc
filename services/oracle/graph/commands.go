// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package graph

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// commands is a sample of commands in bounded memory, each with a probability
// that follows its weight: bottom-k with exponential ranks (Cohen and Kaplan,
// "Summarizing data using bottom-k sketches", PODC 2007, section 4). A command
// of weight w gets the rank Exp(1)/w, and the least ranks are kept. Weights are
// in forward units (see Graph), so that old commands give way to new ones
// without being touched. Ranks are kept as logarithms.
type commands struct {
	max, maxVertices int
	vertices         int
	random           *rand.Rand
	// Least rank among those that were dropped.
	threshold float64
	held      []command
}

type command struct {
	rank   float64
	weight float64
	// Node numbers, in the order in which the command declared its vertices.
	nodes []node
}

func newCommands(bound, maxVertices int, seed uint64) *commands {
	return &commands{max: bound, maxVertices: maxVertices, random: rand.New(rand.NewPCG(seed, 0x636f6d6d616e6473)), threshold: math.Inf(1)}
}

// add takes a command of a weight above 0 into the draw. Until the next trim
// the sample may be over its bounds.
func (c *commands) add(nodes []node, weight float64) {
	rank := math.Log(c.random.ExpFloat64()) - math.Log(weight)
	if rank >= c.threshold {
		return
	}
	c.held = append(c.held, command{rank: rank, weight: weight, nodes: nodes})
	c.vertices += len(nodes)
	if len(c.held) > c.max+c.max/4 || c.vertices > c.maxVertices+c.maxVertices/4 {
		c.trim()
	}
}

// trim drops the highest ranks until both bounds hold.
func (c *commands) trim() {
	if len(c.held) <= c.max && c.vertices <= c.maxVertices {
		return
	}
	slices.SortFunc(c.held, func(a, b command) int { return cmp.Compare(a.rank, b.rank) })
	for len(c.held) > c.max || c.vertices > c.maxVertices {
		last := len(c.held) - 1
		c.threshold = c.held[last].rank
		c.vertices -= len(c.held[last].nodes)
		c.held[last] = command{}
		c.held = c.held[:last]
	}
}

// weightOf returns what a held command stands for: its weight over the
// probability that it was kept.
func (c *commands) weightOf(held command) float64 {
	if math.IsInf(c.threshold, 1) {
		return held.weight
	}
	kept := -math.Expm1(-held.weight * math.Exp(c.threshold))
	return held.weight / kept
}

// rescale multiplies all weights.
func (c *commands) rescale(factor float64) {
	shift := math.Log(factor)
	for i := range c.held {
		c.held[i].weight *= factor
		c.held[i].rank -= shift
	}
	c.threshold -= shift
}

func (c *commands) reset() {
	clear(c.held)
	c.held, c.vertices, c.threshold = c.held[:0], 0, math.Inf(1)
}
