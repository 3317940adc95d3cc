// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"math"
	"math/rand/v2"
	"slices"
)

// sizeTolerance is the least tolerance for stored bytes. A shard that holds a bit
// more than the others does no harm, as one that works more does.
const sizeTolerance = 0.25

// state is a placement under improvement, with the counts that make the effect
// of a move cheap to compute. It minimises the weight of commands that cross
// shards: the cut nets of a hypergraph, not the cut edges of a graph.
type state struct {
	model    *model
	commands []command
	shard    []int32
	// By shard, parts of the whole load and of all bytes; and what a target may have.
	loads, sizes         []float64
	loadLimit, sizeLimit float64
	// of[v] lists the commands that touch v; counts[c*shards+s] is the number of
	// vertices of command c in shard s.
	of     [][]int32
	counts []int32
	dirty  []bool
	gains  []float64
}

func newState(m *model, commands []command, shard []int32, imbalance float64) *state {
	s := &state{
		model: m, commands: commands, shard: slices.Clone(shard),
		loads: make([]float64, len(m.shards)), loadLimit: (1 + imbalance) / float64(m.targets),
		sizes: make([]float64, len(m.shards)), sizeLimit: (1 + max(sizeTolerance, imbalance)) / float64(m.targets),
		of: make([][]int32, len(shard)), counts: make([]int32, len(commands)*len(m.shards)),
		dirty: make([]bool, len(shard)), gains: make([]float64, len(m.shards)),
	}
	for v, at := range shard {
		s.loads[at] += m.load[v]
		s.sizes[at] += m.size[v]
	}
	degree := make([]int32, len(shard))
	var pins int
	for _, c := range commands {
		pins += len(c.vertices)
		for _, v := range c.vertices {
			degree[v]++
		}
	}
	all := make([]int32, pins)
	for v, d := range degree {
		s.of[v], all = all[:0:d], all[d:]
	}
	for c, command := range commands {
		for _, v := range command.vertices {
			s.of[v] = append(s.of[v], int32(c))
			s.counts[c*len(m.shards)+int(shard[v])]++
		}
	}
	return s
}

// penalty is what a command costs with a number of vertices outside the shard
// that has most of them: 0 with none, near 1 with many. With a wide scale the
// last strays of a command are worth fetching even while others are still
// elsewhere; the narrower it is, the nearer to the true cost of 0 or 1.
type penalty []float64

func newPenalty(scale float64, commands []command) penalty {
	most := 1
	for _, c := range commands {
		most = max(most, len(c.vertices))
	}
	p := make(penalty, most+1)
	for out := range p {
		p[out] = -math.Expm1(-float64(out) / scale)
	}
	return p
}

// evaluate sets gains[b] to the fall of the penalties if v moved to shard b.
func (s *state) evaluate(v int, p penalty) {
	k := len(s.model.shards)
	clear(s.gains)
	from := int(s.shard[v])
	for _, c := range s.of[v] {
		counts := s.counts[int(c)*k : int(c)*k+k]
		size, weight := len(s.commands[c].vertices), s.commands[c].weight
		var most, rest int32 // the most in one shard, with v and without it
		for b, n := range counts {
			most = max(most, n)
			if b == from {
				n--
			}
			rest = max(rest, n)
		}
		before := p[size-int(most)]
		for b, n := range counts {
			if b != from {
				s.gains[b] += weight * (before - p[size-int(max(rest, n+1))])
			}
		}
	}
}

// move puts v into another shard.
func (s *state) move(v int, to int32) {
	k := len(s.model.shards)
	from := s.shard[v]
	s.shard[v] = to
	s.loads[from] -= s.model.load[v]
	s.loads[to] += s.model.load[v]
	s.sizes[from] -= s.model.size[v]
	s.sizes[to] += s.model.size[v]
	for _, c := range s.of[v] {
		s.counts[int(c)*k+int(from)]--
		s.counts[int(c)*k+int(to)]++
		for _, u := range s.commands[c].vertices {
			s.dirty[u] = true
		}
	}
}

// fits says whether v may move to a target: in load and in bytes that stays
// within its limit, or at least below what the shard that v leaves has now.
func (s *state) fits(v int, to int32) bool {
	from := s.shard[v]
	load, size := s.loads[to]+s.model.load[v], s.sizes[to]+s.model.size[v]
	return int(to) < s.model.targets &&
		(load <= s.loadLimit || load < s.loads[from]) &&
		(size <= s.sizeLimit || size < s.sizes[from])
}

// room says whether a shard has room for v within its limits.
func (s *state) room(v int, to int32) bool {
	return s.loads[to]+s.model.load[v] <= s.loadLimit && s.sizes[to]+s.model.size[v] <= s.sizeLimit
}

// full says whether a shard is over a limit; rounding is no reason to move.
func (s *state) full(shard int) bool {
	return s.loads[shard] > s.loadLimit+1e-9 || s.sizes[shard] > s.sizeLimit+1e-9
}

// improve passes over the vertices in a drawn order and moves each where it
// gains most, until a pass moves nothing or the passes are used up. A vertex is
// looked at again only after something changed in one of its commands.
func (s *state) improve(p penalty, passes int, random *rand.Rand) {
	for v := range s.dirty {
		s.dirty[v] = len(s.of[v]) > 0
	}
	order := random.Perm(len(s.shard))
	for range passes {
		moved := false
		for _, v := range order {
			if !s.dirty[v] {
				continue
			}
			s.dirty[v] = false
			s.evaluate(v, p)
			best, most := s.shard[v], 1e-12
			for b := range int32(s.model.targets) { //nolint:gosec // at most MaxShards
				if b != s.shard[v] && s.gains[b] > most && s.fits(v, b) {
					best, most = b, s.gains[b]
				}
			}
			if best != s.shard[v] {
				s.move(v, best)
				moved = true
			}
		}
		if !moved {
			return
		}
	}
}

// deepScales are the widths of the penalty for a thorough improvement, from one
// that sees far to one near the true cost; quickScales for a first look.
var (
	deepScales  = []float64{50, 20, 8, 3, 1, 0.4}
	quickScales = []float64{3, 0.4}
)

// anneal improves with narrowing penalties and ends with the best placement met.
func (s *state) anneal(scales []float64, passes int, random *rand.Rand) {
	best, least := slices.Clone(s.shard), multi(s.commands, s.shard)
	for _, scale := range scales {
		s.improve(newPenalty(scale, s.commands), passes, random)
		if now := multi(s.commands, s.shard); now < least {
			least = now
			copy(best, s.shard)
		}
	}
	for v, to := range best {
		if s.shard[v] != to {
			s.move(v, to)
		}
	}
}

// empty moves everything off shards that are no targets, and off targets that
// are over their limit as much as must go: each vertex to the target where it
// costs least among those with room, the cheapest first.
func (s *state) empty() {
	p := newPenalty(3, s.commands)
	for from := range s.loads {
		target := from < s.model.targets
		if target && !s.full(from) {
			continue
		}
		for _, v := range s.cheapest(from, p) {
			if target && !s.full(from) {
				break
			}
			s.evaluate(v, p)
			to := int32(-1)
			for b := range int32(s.model.targets) { //nolint:gosec // at most MaxShards
				if int(b) != from && s.room(v, b) && (to < 0 || s.gains[b] > s.gains[to]) {
					to = b
				}
			}
			if to < 0 && !target {
				to = s.lightest()
			}
			if to >= 0 {
				s.move(v, to)
			}
		}
	}
}

// cheapest returns the vertices of a shard, those first that lose least for the
// weight they take away.
func (s *state) cheapest(from int, p penalty) []int {
	type offer struct {
		v    int
		cost float64
	}
	var offers []offer
	for v, at := range s.shard {
		if int(at) != from {
			continue
		}
		s.evaluate(v, p)
		best := math.Inf(-1)
		for b := range s.model.targets {
			if b != from {
				best = max(best, s.gains[b])
			}
		}
		offers = append(offers, offer{v: v, cost: -best / (s.model.weight[v] + 1e-12)})
	}
	slices.SortStableFunc(offers, func(a, b offer) int {
		switch {
		case a.cost < b.cost:
			return -1
		case a.cost > b.cost:
			return 1
		}
		return 0
	})
	order := make([]int, len(offers))
	for i, o := range offers {
		order[i] = o.v
	}
	return order
}

func (s *state) lightest() int32 {
	least := int32(0)
	for b := range int32(s.model.targets) { //nolint:gosec // at most MaxShards
		if s.loads[b] < s.loads[least] {
			least = b
		}
	}
	return least
}
