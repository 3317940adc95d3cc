// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"math"
	"math/rand/v2"
)

// Sampler picks executed commands at a rate, each with the same probability and
// independently of the others. It is deterministic for a seed. It draws one
// random number a picked command, not one a command: the gaps between picks
// are geometric. One goroutine owns it.
type Sampler struct {
	random *rand.Rand
	rate   float64
	gap    uint64
}

// NewSampler returns a sampler with a rate from 0 (nothing) to 1 (everything).
// A rate outside is taken as the nearer bound.
func NewSampler(seed uint64, rate float64) *Sampler {
	s := &Sampler{random: rand.New(rand.NewPCG(seed, 0x73616d706c6572))}
	s.SetRate(rate)
	return s
}

// SetRate changes the rate from the next command on.
func (s *Sampler) SetRate(rate float64) {
	if !(rate > 0) { // NaN counts as 0
		rate = 0
	}
	rate = min(rate, 1)
	if rate == s.rate {
		return
	}
	s.rate = rate
	s.draw()
}

// Rate returns the rate in force.
func (s *Sampler) Rate() float64 { return s.rate }

// Next says whether to observe the next executed command, and with which
// weight: the number of executed commands that it stands for, 1/rate.
func (s *Sampler) Next() (weight float64, picked bool) {
	if s.rate == 0 {
		return 0, false
	}
	if s.gap > 0 {
		s.gap--
		return 0, false
	}
	s.draw()
	return 1 / s.rate, true
}

// draw sets the number of commands to pass over before the next pick.
func (s *Sampler) draw() {
	if s.rate == 0 || s.rate == 1 {
		s.gap = 0
		return
	}
	// The inverse of the geometric distribution; 1-Float64 is in (0, 1].
	gap := math.Floor(math.Log(1-s.random.Float64()) / math.Log1p(-s.rate))
	s.gap = uint64(min(gap, math.MaxInt32))
}
