// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package relabel owns the naming of parts: which part becomes which shard, so
// that the least has to move. It knows nothing of graphs and does no I/O. Plans
// are made with it.
package relabel

import "math"

// Assign solves the assignment problem: overlap[p][s] is what stays in place if
// part p becomes shard s, and the result gives each part a shard of its own so
// that the sum is greatest. There may be fewer parts than shards, not more; all
// rows have the same length. Ties resolve the same way in every run.
//
// It is the Hungarian method with potentials and shortest augmenting paths
// (Jonker and Volgenant, "A shortest augmenting path algorithm for dense and
// sparse linear assignment problems", Computing 38, 1987), in O(parts² · shards).
func Assign(overlap [][]float64) []int {
	parts := len(overlap)
	if parts == 0 {
		return nil
	}
	m := matching{cost: overlap, shards: len(overlap[0])}
	m.rowPotential = make([]float64, parts+1)
	m.columnPotential = make([]float64, m.shards+1)
	m.rowOf = make([]int, m.shards+1)
	for row := 1; row <= parts; row++ {
		m.augment(row)
	}
	result := make([]int, parts)
	for column := 1; column <= m.shards; column++ {
		if row := m.rowOf[column]; row > 0 {
			result[row-1] = column - 1
		}
	}
	return result
}

// matching counts rows and columns from 1; column 0 is where a search starts.
type matching struct {
	cost                          [][]float64
	shards                        int
	rowPotential, columnPotential []float64
	// rowOf is the row matched to a column; 0 if none.
	rowOf []int
}

// augment matches one more row along the cheapest alternating path.
func (m *matching) augment(row int) {
	distance := make([]float64, m.shards+1)
	previous := make([]int, m.shards+1)
	done := make([]bool, m.shards+1)
	for column := range distance {
		distance[column] = math.Inf(1)
	}
	m.rowOf[0] = row
	at := 0
	for m.rowOf[at] != 0 {
		done[at] = true
		current, step, next := m.rowOf[at], math.Inf(1), 0
		for column := 1; column <= m.shards; column++ {
			if done[column] {
				continue
			}
			// The greatest overlap is the least negative one.
			reduced := -m.cost[current-1][column-1] - m.rowPotential[current] - m.columnPotential[column]
			if reduced < distance[column] {
				distance[column], previous[column] = reduced, at
			}
			if distance[column] < step {
				step, next = distance[column], column
			}
		}
		for column := 0; column <= m.shards; column++ {
			if done[column] {
				m.rowPotential[m.rowOf[column]] += step
				m.columnPotential[column] -= step
			} else {
				distance[column] -= step
			}
		}
		at = next
	}
	for at != 0 {
		m.rowOf[at] = m.rowOf[previous[at]]
		at = previous[at]
	}
}
