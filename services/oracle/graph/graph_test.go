// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package graph

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	planv1 "github.com/kolocate/kolocate/api/proto/plan/v1"
	"github.com/kolocate/kolocate/services/keyspace"
	"github.com/kolocate/kolocate/services/trace"
)

var epoch = time.Unix(100000, 0)

func even(t *testing.T, shards int) *keyspace.Placement {
	t.Helper()
	p, err := keyspace.EvenPlacement(shards)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func vertex(i int) keyspace.Vertex { return keyspace.Vertex(fmt.Sprintf("v%d", i)) }

// report observes drawn commands on n vertices.
func report(seed uint64, n, commands int) *oraclev1.ReportRequest {
	random := rand.New(rand.NewPCG(seed, 2))
	skew := rand.NewZipf(random, 1.3, 5, uint64(n-1))
	s := trace.NewSketch(trace.Config{Store: "s", Shard: 1, Seed: seed})
	for range commands {
		var vs []keyspace.Vertex
		for range 1 + random.IntN(5) {
			vs = append(vs, vertex(int(skew.Uint64())))
		}
		s.Observe(vs, 64, 2)
	}
	return s.Report(10*time.Second, 0.5)
}

func sums(g *planv1.Graph) (load, edges, commands float64) {
	for _, v := range g.GetVertices() {
		load += v.GetLoad()
	}
	for _, e := range g.GetEdges() {
		edges += e.GetWeight()
	}
	for _, c := range g.GetCommands() {
		commands += c.GetWeight()
	}
	return load, edges, commands
}

// TestFoldingKeepsTheSums bounds a graph tightly and looks for what got lost.
func TestFoldingKeepsTheSums(t *testing.T) {
	t.Parallel()
	for seed := range uint64(10) {
		g := New(Config{Store: "s", Vertices: 60, Commands: 100, HalfLife: time.Hour})
		var touches, multi float64
		for i := range 8 {
			r := report(seed*100+uint64(i), 500, 400)
			for _, v := range r.GetVertices() {
				touches += v.GetCount() - v.GetError()
			}
			for _, s := range r.GetSlots() {
				touches += s.GetCount()
			}
			multi += r.GetMultiVertexCommands()
			if err := g.Merge(r, epoch); err != nil {
				t.Fatal(err)
			}
			if n, _ := g.Size(); n > 75 {
				t.Fatalf("seed %d: %d vertices held, bound 60 and a quarter", seed, n)
			}
		}
		snapshot := g.Snapshot(even(t, 4), SnapshotOptions{Now: epoch, Shards: []keyspace.ShardID{1, 2, 3, 4}})
		load, _, commands := sums(snapshot)
		// All is in commands a second over 80 seconds.
		if math.Abs(load-touches/80) > 1e-6*touches {
			t.Errorf("seed %d: load %f, expected %f", seed, load, touches/80)
		}
		if math.Abs(commands-multi/80) > 1e-6*multi || len(snapshot.GetCommands()) != 100 {
			t.Errorf("seed %d: %d commands of weight %f, expected 100 of %f", seed, len(snapshot.GetCommands()), commands, multi/80)
		}
		checkSnapshot(t, snapshot)
	}
}

func checkSnapshot(t *testing.T, g *planv1.Graph) {
	t.Helper()
	for i, e := range g.GetEdges() {
		if e.GetA() >= e.GetB() || int(e.GetB()) >= len(g.GetVertices()) || e.GetWeight() <= 0 {
			t.Fatalf("edge %d: %v", i, e)
		}
	}
	for i, c := range g.GetCommands() {
		seen := map[uint32]bool{}
		for _, v := range c.GetVertices() {
			if int(v) >= len(g.GetVertices()) || seen[v] {
				t.Fatalf("command %d: %v", i, c)
			}
			seen[v] = true
		}
	}
}

func TestTheHeavyStayOneByOne(t *testing.T) {
	t.Parallel()
	g := New(Config{Store: "s", Vertices: 20, HalfLife: time.Hour})
	for i := range 20 {
		if err := g.Merge(report(uint64(i), 500, 400), epoch); err != nil {
			t.Fatal(err)
		}
	}
	held := map[string]bool{}
	for _, v := range g.Snapshot(even(t, 2), SnapshotOptions{Now: epoch}).GetVertices() {
		held[string(v.GetName())] = true
	}
	for i := range 8 {
		if !held[string(vertex(i))] {
			t.Errorf("vertex %d, one of the heaviest, is not held", i)
		}
	}
}

func TestDecay(t *testing.T) {
	t.Parallel()
	g := New(Config{Store: "s", HalfLife: time.Minute})
	touch := func(v string, at time.Time) {
		s := trace.NewSketch(trace.Config{Store: "s", Shard: 1})
		for range 60 {
			s.Observe([]keyspace.Vertex{keyspace.Vertex(v), "common"}, 0, 1)
		}
		if err := g.Merge(s.Report(time.Minute, 1), at); err != nil {
			t.Fatal(err)
		}
	}
	loads := func(at time.Time) map[string]float64 {
		out := map[string]float64{}
		snapshot := g.Snapshot(even(t, 2), SnapshotOptions{Now: at})
		for _, v := range snapshot.GetVertices() {
			out[string(v.GetName())] = v.GetLoad()
		}
		var commands float64
		for _, c := range snapshot.GetCommands() {
			commands += c.GetWeight()
		}
		out["commands"] = commands
		return out
	}
	touch("old", epoch)
	touch("new", epoch.Add(2*time.Minute))
	// The old counts a quarter: 15 of 75 touches, over 15 of 75 seconds.
	got := loads(epoch.Add(2 * time.Minute))
	for name, want := range map[string]float64{"old": 0.2, "new": 0.8, "common": 1, "commands": 1} {
		if math.Abs(got[name]-want) > 1e-9 {
			t.Errorf("%s has load %f, expected %f", name, got[name], want)
		}
	}
	// Far beyond the range of a factor.
	late := epoch.Add(3 * 365 * 24 * time.Hour)
	touch("late", late)
	got = loads(late)
	if math.Abs(got["late"]-1) > 1e-6 || got["old"] > 1e-6 || math.Abs(got["commands"]-1) > 1e-6 {
		t.Errorf("years later: %v", got)
	}
	// A clock that goes back changes nothing.
	touch("late", epoch)
	if got = loads(epoch); math.Abs(got["late"]-1) > 1e-6 {
		t.Errorf("after the clock went back: %v", got)
	}
	g.Reset()
	if v, e := g.Size(); v != 0 || e != 0 {
		t.Errorf("after a reset: %d vertices, %d edges", v, e)
	}
}

// TestTheSampleIsUnbiased draws a tenth of commands of different weights many
// times and compares the mean of the estimates with the truth.
func TestTheSampleIsUnbiased(t *testing.T) {
	t.Parallel()
	const runs = 400
	var heavy, light float64
	for seed := range uint64(runs) {
		c := newCommands(50, 1000, seed)
		for i := range 500 {
			weight := 1.0
			if i%10 == 0 {
				weight = 20
			}
			c.add([]node{node(i), node(i % 10)}, weight)
		}
		c.rescale(0.5)
		c.trim()
		for _, held := range c.held {
			if held.nodes[1] == 0 {
				heavy += 2 * c.weightOf(held) / runs
			} else {
				light += 2 * c.weightOf(held) / runs
			}
		}
	}
	if math.Abs(heavy-1000) > 30 || math.Abs(light-450) > 30 {
		t.Errorf("estimated %f and %f, true 1000 and 450", heavy, light)
	}
}

func TestSnapshotIsTheSameForTheSameInput(t *testing.T) {
	t.Parallel()
	run := func() []byte {
		g := New(Config{Store: "s", Vertices: 40, Edges: 100, Commands: 60, Seed: 3})
		for i := range 6 {
			if err := g.Merge(report(uint64(i), 300, 300), epoch.Add(time.Duration(i)*time.Minute)); err != nil {
				t.Fatal(err)
			}
		}
		data, err := Encode(g.Snapshot(even(t, 4), SnapshotOptions{Now: epoch.Add(6 * time.Minute)}))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	if !bytes.Equal(run(), run()) {
		t.Fatal("two runs differ")
	}
}

func TestSnapshotKnowsThePlacement(t *testing.T) {
	t.Parallel()
	p, err := even(t, 2).Apply(keyspace.Delta{From: 1, To: 2, Overrides: []keyspace.VertexMove{{Vertex: "v1", To: 1}, {Vertex: "unseen", To: 1}, {Vertex: "v1", To: 2}, {Vertex: "unseen", To: 2}}})
	if err != nil {
		t.Fatal(err)
	}
	g := New(Config{Store: "s"})
	if err := g.Merge(report(1, 50, 100), epoch); err != nil {
		t.Fatal(err)
	}
	snapshot := g.Snapshot(p, SnapshotOptions{Now: epoch, Shards: []keyspace.ShardID{1, 2}, MPOShare: 0.3, Imbalance: 0.2})
	for _, v := range snapshot.GetVertices() {
		if uint32(p.ShardOf(keyspace.Vertex(v.GetName()))) != v.GetShard() {
			t.Errorf("%s at shard %d", v.GetName(), v.GetShard())
		}
	}
	if n := len(snapshot.GetUntracedOverrides()); n > 1 || snapshot.GetEpoch() != 2 || snapshot.GetMeasuredMpoShare() != 0.3 {
		t.Errorf("%d untraced overrides, epoch %d, share %f", n, snapshot.GetEpoch(), snapshot.GetMeasuredMpoShare())
	}
	if runs := snapshot.GetSlotHomes(); len(runs) != 2 || runs[1].GetFirst() != 8192 || runs[1].GetLast() != 16383 || runs[1].GetShard() != 2 {
		t.Errorf("homes %v", runs)
	}
}

func TestMergeRefusesNonsense(t *testing.T) {
	t.Parallel()
	g := New(Config{Store: "s"})
	if err := g.Merge(&oraclev1.ReportRequest{Store: "other"}, epoch); !errors.Is(err, ErrOtherStore) {
		t.Errorf("report of another store: %v", err)
	}
	for name, r := range map[string]*oraclev1.ReportRequest{
		"window":  {WindowSeconds: math.NaN()},
		"vertex":  {Vertices: []*oraclev1.TracedVertex{{Vertex: []byte("a"), Count: -1}}},
		"name":    {Vertices: []*oraclev1.TracedVertex{{Count: 1}}},
		"slot":    {Slots: []*oraclev1.TracedSlot{{Slot: keyspace.Slots, Count: 1}}},
		"edge":    {Edges: []*oraclev1.TracedEdge{{A: []byte("a"), B: []byte("b"), Weight: math.Inf(1)}}},
		"command": {Commands: []*oraclev1.TracedCommand{{Weight: 1}}},
	} {
		r.Store = "s"
		if g.Merge(r, epoch) == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if v, e := g.Size(); v+e != 0 {
		t.Errorf("%d vertices and %d edges came in", v, e)
	}
}

func TestCodec(t *testing.T) {
	t.Parallel()
	g := New(Config{Store: "s"})
	if err := g.Merge(report(1, 200, 500), epoch); err != nil {
		t.Fatal(err)
	}
	snapshot := g.Snapshot(even(t, 4), SnapshotOptions{Now: epoch})
	data, err := Encode(snapshot)
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{1, 1000, len(data), 0} {
		var j Joiner
		for _, c := range Split(data, size) {
			if err := j.Add(c); err != nil {
				t.Fatal(err)
			}
		}
		whole, err := j.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		back, err := Decode(whole, "s")
		if err != nil || !proto.Equal(back, snapshot) {
			t.Fatalf("size %d: %v", size, err)
		}
	}
	chunks := Split(data, 1000)
	damaged := append([]byte(nil), chunks[1].Data...)
	damaged[5] ^= 1
	for name, torn := range map[string][]Chunk{
		"end missing":    chunks[:len(chunks)-1],
		"middle missing": append(append([]Chunk(nil), chunks[0]), chunks[2:]...),
		"damaged":        append([]Chunk{chunks[0], {Data: damaged}}, chunks[2:]...),
		"nothing":        nil,
		"more":           append(append([]Chunk(nil), chunks...), chunks[0]),
	} {
		var j Joiner
		var err error
		for _, c := range torn {
			if err == nil {
				err = j.Add(c)
			}
		}
		if err == nil {
			_, err = j.Bytes()
		}
		if !errors.Is(err, ErrTorn) {
			t.Errorf("%s: %v, expected ErrTorn", name, err)
		}
	}
	if _, err := Decode(data, "other"); !errors.Is(err, ErrOtherStore) {
		t.Errorf("other store: %v", err)
	}
	if _, err := Decode(nil, "s"); !errors.Is(err, ErrTorn) {
		t.Errorf("empty: %v", err)
	}
	snapshot.Version = Version + 1
	if data, err = Encode(snapshot); err != nil {
		t.Fatal(err)
	}
	if _, err := Decode(data, "s"); !errors.Is(err, ErrVersion) {
		t.Errorf("newer version: %v", err)
	}
	made := &planv1.Plan{Version: Version, Store: "s", Reason: "none"}
	if data, err = EncodePlan(made); err != nil {
		t.Fatal(err)
	}
	if back, err := DecodePlan(data, "s"); err != nil || !proto.Equal(back, made) {
		t.Errorf("plan: %v", err)
	}
}
