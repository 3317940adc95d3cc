// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kolocate/kolocate/services/keyspace"
)

func vertex(i int) keyspace.Vertex { return keyspace.Vertex(fmt.Sprintf("user/%d", i)) }

// zipf draws commands over n vertices, low numbers the most.
func zipf(random *rand.Rand, n, commands int) [][]keyspace.Vertex {
	skew := rand.NewZipf(random, 1.2, 4, uint64(n-1))
	out := make([][]keyspace.Vertex, commands)
	for i := range out {
		for range 1 + random.IntN(12) {
			out[i] = append(out[i], vertex(int(skew.Uint64())))
		}
	}
	return out
}

func TestSketchKeepsTheBoundsOfSpaceSaving(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		s := NewSketch(Config{Vertices: 50, Edges: 80, Commands: 20})
		truth := map[string]float64{}
		slots := map[uint32]float64{}
		var total float64
		for _, command := range zipf(random, 400, 3000) {
			weight := 1 + random.Float64()
			s.Observe(command, 0, weight)
			for _, v := range distinct(command) {
				truth[string(v)] += weight
				slots[uint32(keyspace.SlotOf(v))] += weight
				total += weight
			}
		}
		r := s.Report(time.Second, 1)
		if len(r.GetVertices()) != 50 {
			t.Fatalf("seed %d: %d vertices held, expected 50", seed, len(r.GetVertices()))
		}
		held := map[string]bool{}
		for _, v := range r.GetVertices() {
			name := string(v.GetVertex())
			held[name] = true
			if v.GetCount() < truth[name]-1e-6 || v.GetCount()-v.GetError() > truth[name]+1e-6 {
				t.Errorf("seed %d: %s counted %.2f with error %.2f, true %.2f", seed, name, v.GetCount(), v.GetError(), truth[name])
			}
			if v.GetError() > total/50 {
				t.Errorf("seed %d: error %.2f of %s is over %.2f", seed, v.GetError(), name, total/50)
			}
			slots[uint32(keyspace.SlotOf(keyspace.Vertex(name)))] -= v.GetCount() - v.GetError()
		}
		for name, count := range truth {
			if count > total/50 && !held[name] {
				t.Errorf("seed %d: %s with %.2f of %.2f is not held", seed, name, count, total)
			}
		}
		for _, slot := range r.GetSlots() {
			slots[slot.GetSlot()] -= slot.GetCount()
		}
		for slot, left := range slots {
			if math.Abs(left) > 1e-5 {
				t.Errorf("seed %d: slot %d is off by %.3f", seed, slot, left)
			}
		}
	}
}

func TestSketchIsExactBelowItsBounds(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(7, 1))
	s := NewSketch(Config{})
	edges := map[[2]string]float64{}
	var multi float64
	for _, command := range zipf(random, 300, 2000) {
		s.Observe(command, 0, 2)
		vs := distinct(command)
		if len(vs) < 2 {
			continue
		}
		multi += 2
		for i, a := range vs {
			for _, b := range vs[i+1:] {
				each := 2 / float64(len(vs)*(len(vs)-1)/2)
				if len(vs) > CliqueLimit {
					if i > 0 {
						continue
					}
					each = 2 / float64(len(vs)-1)
				}
				edges[[2]string{string(min(a, b)), string(max(a, b))}] += each
			}
		}
	}
	r := s.Report(time.Second, 0.5)
	var sum float64
	for _, e := range r.GetEdges() {
		if want := edges[[2]string{string(e.GetA()), string(e.GetB())}]; math.Abs(want-e.GetWeight()) > 1e-9 || e.GetError() != 0 {
			t.Fatalf("edge %s-%s weighs %f (error %f), expected %f", e.GetA(), e.GetB(), e.GetWeight(), e.GetError(), want)
		}
		sum += e.GetWeight()
	}
	if len(r.GetEdges()) != len(edges) || math.Abs(sum-multi) > 1e-6 || r.GetMultiVertexCommands() != multi {
		t.Fatalf("%d edges of weight %f, commands of weight %f; expected %d edges, both weights %f",
			len(r.GetEdges()), sum, r.GetMultiVertexCommands(), len(edges), multi)
	}
	if len(r.GetSlots()) != 0 {
		t.Fatalf("%d slots with a rest, expected none", len(r.GetSlots()))
	}
	if again := s.Report(time.Second, 0.5); proto.Size(again) > 32 || s.Observed() != 0 {
		t.Fatalf("the sketch is not empty after a report: %v", again)
	}
}

func TestSketchWeightsAreUnbiasedUnderSampling(t *testing.T) {
	t.Parallel()
	const runs, commands = 60, 4000
	var hot, multi, reservoir float64
	for seed := range uint64(runs) {
		sampler := NewSampler(seed, 0.05)
		s := NewSketch(Config{Seed: seed, Commands: 40})
		for i := range commands {
			if i == commands/2 {
				sampler.SetRate(0.2)
			}
			weight, picked := sampler.Next()
			if !picked {
				continue
			}
			if i%4 == 0 {
				s.Observe([]keyspace.Vertex{"hot", vertex(i)}, 0, weight)
			} else {
				s.Observe([]keyspace.Vertex{vertex(i)}, 0, weight)
			}
		}
		r := s.Report(time.Second, 0.2)
		for _, v := range r.GetVertices() {
			if string(v.GetVertex()) == "hot" {
				hot += v.GetCount() / runs
			}
		}
		multi += r.GetMultiVertexCommands() / runs
		for _, c := range r.GetCommands() {
			reservoir += c.GetWeight() / runs
		}
	}
	for name, got := range map[string]float64{"hot vertex": hot, "multi-vertex commands": multi, "reservoir": reservoir} {
		if math.Abs(got-commands/4) > commands/4*0.06 {
			t.Errorf("%s: mean estimate %.1f, true %d", name, got, commands/4)
		}
	}
}

func TestReservoirIsUniformAndBounded(t *testing.T) {
	t.Parallel()
	picked := make([]int, 100)
	for seed := range uint64(2000) {
		r := newReservoir(10, 25)
		random := rand.New(rand.NewPCG(seed, 1))
		for i := range 100 {
			r.offer(random, []keyspace.Vertex{vertex(i), "b"}, 1, cloneVertex)
		}
		if len(r.held) != 10 || r.vertices != 20 || r.scale() != 10 {
			t.Fatalf("holds %d commands, %d vertices, scale %f", len(r.held), r.vertices, r.scale())
		}
		for _, held := range r.held {
			picked[held.order-1]++
		}
	}
	for i, n := range picked { // 200 expected, deviation 13
		if n < 140 || n > 260 {
			t.Errorf("command %d was held %d times in 2000, expected about 200", i, n)
		}
	}
	r := newReservoir(10, 25)
	random := rand.New(rand.NewPCG(1, 1))
	for i := range 50 {
		r.offer(random, []keyspace.Vertex{vertex(i), "b", "c", "d", "e", "f", "g"}, 1, cloneVertex)
		if r.vertices > 25 {
			t.Fatalf("%d vertices held, bound 25", r.vertices)
		}
	}
}

func TestSamplerPicksAtItsRate(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{0.01, 0.3, 1} {
		s := NewSampler(3, rate)
		n := 0
		for range 200000 {
			if weight, picked := s.Next(); picked {
				n++
				if weight != 1/rate {
					t.Fatalf("weight %f at rate %f", weight, rate)
				}
			}
		}
		if got := float64(n) / 200000; math.Abs(got-rate) > 0.05*rate {
			t.Errorf("rate %f picked %f", rate, got)
		}
	}
	for _, rate := range []float64{0, -1, math.NaN()} {
		if _, picked := NewSampler(3, rate).Next(); picked {
			t.Errorf("rate %f picked a command", rate)
		}
	}
}

func TestSketchIsDeterministic(t *testing.T) {
	t.Parallel()
	run := func() []byte {
		s := NewSketch(Config{Store: "s", Shard: 2, Vertices: 30, Edges: 40, Commands: 15, Seed: 9})
		for _, c := range zipf(rand.New(rand.NewPCG(5, 5)), 200, 1000) {
			s.Observe(c, 100, 1)
		}
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(s.Report(time.Second, 1))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if a, b := run(), run(); !bytes.Equal(a, b) {
		t.Fatal("two runs over the same input differ")
	}
}

func distinct(vs []keyspace.Vertex) []keyspace.Vertex {
	var out []keyspace.Vertex
	for _, v := range vs {
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}

func BenchmarkObserve(b *testing.B) {
	commands := zipf(rand.New(rand.NewPCG(1, 1)), 20000, 20000)
	s := NewSketch(Config{})
	b.ReportAllocs()
	for i := range b.N {
		s.Observe(commands[i%len(commands)], 100, 1)
	}
}
