// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	planv1 "github.com/kolocate/kolocate/api/proto/plan/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// groups is a simple partitioner: connected parts of the graph, whole, each into
// the lightest part of the result.
type groups struct{}

func (groups) Name() string { return "groups" }

func (groups) Partition(ctx context.Context, g *CSR, parts int, _ PartitionOptions) ([]int32, error) {
	if err := g.Check(); err != nil {
		return nil, err
	}
	part := make([]int32, len(g.VertexWeights))
	for v := range part {
		part[v] = -1
	}
	weights := make([]int64, parts)
	for v := range part {
		if part[v] >= 0 {
			continue
		}
		lightest := int32(slices.Index(weights, slices.Min(weights)))
		stack := []int32{int32(v)}
		part[v] = lightest
		for len(stack) > 0 {
			u := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			weights[lightest] += int64(g.VertexWeights[u])
			for _, w := range g.Neighbours[g.Offsets[u]:g.Offsets[u+1]] {
				if part[w] < 0 {
					part[w] = lightest
					stack = append(stack, w)
				}
			}
		}
	}
	return part, ctx.Err()
}

// workload is a graph under construction, from commands at a placement.
type workload struct {
	graph *planv1.Graph
	start *keyspace.Placement
	index map[string]uint32
}

func newWorkload(t *testing.T, shards int) *workload {
	t.Helper()
	p, err := keyspace.EvenPlacement(shards)
	if err != nil {
		t.Fatal(err)
	}
	w := &workload{graph: &planv1.Graph{Version: Version, Store: "s", Epoch: 1}, start: p, index: map[string]uint32{}}
	for s := range shards {
		w.graph.Shards = append(w.graph.Shards, uint32(s+1))
	}
	w.homes()
	return w
}

func (w *workload) homes() {
	w.graph.SlotHomes = nil
	for slot := range uint32(keyspace.Slots) {
		shard := uint32(w.start.ShardOfSlot(keyspace.Slot(slot)))
		if n := len(w.graph.SlotHomes); n > 0 && w.graph.SlotHomes[n-1].Shard == shard {
			w.graph.SlotHomes[n-1].Last = slot
		} else {
			w.graph.SlotHomes = append(w.graph.SlotHomes, &planv1.SlotHome{First: slot, Last: slot, Shard: shard})
		}
	}
}

func (w *workload) vertex(name string) uint32 {
	if i, known := w.index[name]; known {
		return i
	}
	i := uint32(len(w.graph.Vertices))
	w.index[name] = i
	v := keyspace.Vertex(name)
	w.graph.Vertices = append(w.graph.Vertices, &planv1.GraphVertex{Name: []byte(name), Slot: uint32(keyspace.SlotOf(v)), Shard: uint32(w.start.ShardOf(v)), Bytes: 100})
	return i
}

func (w *workload) run(weight float64, names ...string) {
	c := &planv1.SampledCommand{Weight: weight}
	for _, name := range names {
		i := w.vertex(name)
		c.Vertices = append(c.Vertices, i)
		w.graph.Vertices[i].Load += weight
	}
	if len(names) == 1 {
		w.graph.SingleVertexWeight += weight
		return
	}
	w.graph.Commands = append(w.graph.Commands, c)
}

// done derives the edges as the sketches do.
func (w *workload) done() *planv1.Graph {
	edges := map[[2]uint32]float64{}
	for _, c := range w.graph.Commands {
		pinned := command{weight: c.GetWeight()}
		for _, v := range c.GetVertices() {
			pinned.vertices = append(pinned.vertices, int32(v))
		}
		expand(pinned, func(a, b int32, weight float64) { edges[[2]uint32{uint32(min(a, b)), uint32(max(a, b))}] += weight })
	}
	w.graph.Edges = nil
	for e, weight := range edges {
		w.graph.Edges = append(w.graph.Edges, &planv1.GraphEdge{A: e[0], B: e[1], Weight: weight})
	}
	slices.SortFunc(w.graph.Edges, func(x, y *planv1.GraphEdge) int { return int(x.A)<<20 + int(x.B) - int(y.A)<<20 - int(y.B) })
	return w.graph
}

// clubs is a load in which members of a club are used together.
func clubs(t *testing.T, shards, count, members int) *workload {
	t.Helper()
	w := newWorkload(t, shards)
	random := rand.New(rand.NewPCG(4, 4))
	for range 60 {
		for club := range count {
			names := []string{}
			for _, m := range random.Perm(members)[:3] {
				names = append(names, fmt.Sprintf("club%d/%d", club, m))
			}
			w.run(1, names...)
			w.run(1, names[0])
		}
	}
	return w
}

func plan(t *testing.T, g *planv1.Graph, o *planv1.PlanOptions) *planv1.Plan {
	t.Helper()
	p, err := Make(context.Background(), g, o, groups{})
	if err != nil {
		t.Fatal(err)
	}
	checkPlan(t, g, p, o)
	return p
}

// checkPlan applies the steps of a plan and checks what holds for every plan.
func checkPlan(t *testing.T, g *planv1.Graph, p *planv1.Plan, o *planv1.PlanOptions) {
	t.Helper()
	at := map[string]uint32{}
	for _, v := range g.GetVertices() {
		at[string(v.GetName())] = v.GetShard()
	}
	moved, bytes, slots := 0, uint64(0), false
	for i, s := range p.GetSteps() {
		size := len(s.GetVertices()) + len(s.GetSlots())
		if int(s.GetNumber()) != i+1 || s.GetFrom() == s.GetTo() || size == 0 || size > max(DefaultStepVertices, int(o.GetStepVertices())) || s.GetReason() == "" {
			t.Errorf("step %d: %v", i+1, s)
		}
		slots = slots || len(s.GetSlots()) > 0
		if slots && len(s.GetVertices()) > 0 {
			t.Errorf("step %d moves vertices after slots have moved", i+1)
		}
		if !slices.Contains(g.GetShards(), s.GetTo()) {
			t.Errorf("step %d leads to shard %d, which is no target", i+1, s.GetTo())
		}
		for _, v := range s.GetVertices() {
			if from, known := at[string(v)]; known && from != s.GetFrom() {
				t.Errorf("step %d moves %s from %d, it is at %d", i+1, v, s.GetFrom(), from)
			}
			at[string(v)] = s.GetTo()
		}
		moved += size
		bytes += s.GetBytes()
	}
	e := p.GetPrediction()
	if int(e.GetMovedVertices()) != moved || e.GetMovedBytes() != bytes {
		t.Errorf("predicted %d moves of %d bytes, the steps have %d of %d", e.GetMovedVertices(), e.GetMovedBytes(), moved, bytes)
	}
	if (moved == 0) != (p.GetReason() != "") {
		t.Errorf("%d moves, reason %q", moved, p.GetReason())
	}
}

func TestMakeBringsClubsTogether(t *testing.T) {
	t.Parallel()
	g := clubs(t, 4, 24, 8).done()
	p := plan(t, g, &planv1.PlanOptions{MinimumGain: 0.01, StepVertices: 10})
	e := p.GetPrediction()
	if e.GetMpoShareAfter() > 0.05 || e.GetMpoShareBefore() < 0.4 || e.GetImbalanceAfter() > DefaultImbalance+1e-9 {
		t.Errorf("prediction %v", e)
	}
	if len(p.GetRejected()) == 0 || !strings.Contains(p.GetSteps()[0].GetReason(), "of the multi-shard commands") {
		t.Errorf("rejected %v, first reason %q", p.GetRejected(), p.GetSteps()[0].GetReason())
	}
	// The overrides that the plan leaves are those that its steps make.
	end := newWorkload(t, 4).start
	for _, s := range p.GetSteps() {
		d := keyspace.Delta{From: end.Epoch(), To: end.Epoch() + 1}
		for _, v := range s.GetVertices() {
			d.Overrides = append(d.Overrides, keyspace.VertexMove{Vertex: keyspace.Vertex(v), To: keyspace.ShardID(s.GetTo())})
		}
		next, err := end.Apply(d)
		if err != nil {
			t.Fatal(err)
		}
		end = next
	}
	if end.Overrides() != int(e.GetOverridesAfter()) {
		t.Errorf("%d overrides, predicted %d", end.Overrides(), e.GetOverridesAfter())
	}
	again := plan(t, g, &planv1.PlanOptions{MinimumGain: 0.01, StepVertices: 10})
	if !proto.Equal(p, again) {
		t.Error("the same graph gave another plan")
	}
}

// TestEarlyStepsBringTheMost: half of the moves bring at least half of the gain.
func TestEarlyStepsBringTheMost(t *testing.T) {
	t.Parallel()
	w := clubs(t, 4, 24, 8)
	for i := range 200 { // one club is much busier than the others
		w.run(2, fmt.Sprintf("club3/%d", i%8), fmt.Sprintf("club3/%d", (i+1)%8))
	}
	m, err := newModel(w.done())
	if err != nil {
		t.Fatal(err)
	}
	target := make([]int32, len(m.vertices))
	for v, vertex := range m.vertices {
		var club, member int
		if _, err := fmt.Sscanf(string(vertex.GetName()), "club%d/%d", &club, &member); err != nil {
			t.Fatal(err)
		}
		target[v] = int32(club % 4)
	}
	order := m.order(target)
	at := slices.Clone(m.start)
	before, whole := multi(m.commands, at), multi(m.commands, target)
	for i, v := range order {
		at[v] = target[v]
		if i == len(order)/2 {
			if half := multi(m.commands, at); half > (before+whole)/2 {
				t.Errorf("half of the moves lower the crossing commands from %f to %f, all to %f", before, half, whole)
			}
		}
	}
	if multi(m.commands, at) != whole {
		t.Error("the order misses moves")
	}
}

func TestMakeRefrains(t *testing.T) {
	t.Parallel()
	random := newWorkload(t, 4)
	r := rand.New(rand.NewPCG(8, 8))
	for range 3000 { // any two of many: the past says nothing about the future
		random.run(1, fmt.Sprint(r.IntN(2000)), fmt.Sprint(r.IntN(2000)+2000))
	}
	alone := newWorkload(t, 4)
	for i := range 400 {
		alone.run(1, fmt.Sprint(i))
	}
	placed := newWorkload(t, 1)
	placed.run(1, "a", "b")
	for name, w := range map[string]*workload{"uniform random": random, "single vertices": alone, "one shard": placed, "nothing": newWorkload(t, 3)} {
		p := plan(t, w.done(), &planv1.PlanOptions{MinimumGain: 0.05})
		if len(p.GetSteps()) > 0 {
			t.Errorf("%s: %d steps, prediction %v", name, len(p.GetSteps()), p.GetPrediction())
		}
	}
}

func TestMakeKeepsItsLimits(t *testing.T) {
	t.Parallel()
	g := clubs(t, 4, 24, 8).done()
	free := plan(t, g, &planv1.PlanOptions{}).GetPrediction()
	for name, o := range map[string]*planv1.PlanOptions{
		"moves":     {MaxMoves: uint32(free.GetMovedVertices() / 2)},
		"bytes":     {MaxBytes: free.GetMovedBytes() / 2},
		"overrides": {MaxOverrides: free.GetOverridesAfter() / 2},
	} {
		p := plan(t, g, o)
		e := p.GetPrediction()
		if len(p.GetSteps()) == 0 || o.GetMaxMoves() > 0 && e.GetMovedVertices() > uint64(o.GetMaxMoves()) ||
			o.GetMaxBytes() > 0 && e.GetMovedBytes() > o.GetMaxBytes() || o.GetMaxOverrides() > 0 && e.GetOverridesAfter() > o.GetMaxOverrides() {
			t.Errorf("%s: %v", name, e)
		}
		if e.GetMpoShareAfter() >= e.GetMpoShareBefore() {
			t.Errorf("%s: no gain: %v", name, e)
		}
		if !slices.ContainsFunc(p.GetRejected(), func(r *planv1.Rejected) bool { return strings.Contains(r.GetReason(), "limit on "+name) }) {
			t.Errorf("%s: rejected %v", name, p.GetRejected())
		}
	}
}

// TestMakeIsIncremental: once placed, a drift moves little.
func TestMakeIsIncremental(t *testing.T) {
	t.Parallel()
	w := clubs(t, 4, 24, 8)
	g := w.done()
	first := plan(t, g, &planv1.PlanOptions{})
	for _, s := range first.GetSteps() {
		for _, v := range s.GetVertices() {
			g.Vertices[w.index[string(v)]].Shard = s.GetTo()
		}
	}
	if again := plan(t, g, &planv1.PlanOptions{}); len(again.GetSteps()) > 0 {
		t.Errorf("an optimal placement moves: %v", again.GetPrediction())
	}
	// Two pairs of vertices trade places, as if they had changed clubs.
	for i := range 2 {
		a, b := g.Vertices[i], g.Vertices[i]
		for _, v := range g.Vertices[10:] {
			if v.Shard != a.Shard {
				b = v
				break
			}
		}
		a.Shard, b.Shard = b.Shard, a.Shard
	}
	drift := plan(t, g, &planv1.PlanOptions{})
	if e := drift.GetPrediction(); e.GetMovedVertices() == 0 || e.GetMovedVertices() > 4 || e.GetMpoShareAfter() > first.GetPrediction().GetMpoShareAfter()+1e-9 {
		t.Errorf("a drift of four vertices: %v", e)
	}
}

func TestMakeEvensTheLoad(t *testing.T) {
	t.Parallel()
	w := newWorkload(t, 2)
	n := 0
	for i := 0; n < 40; i++ { // all at shard 1
		if name := fmt.Sprint("hot", i); w.start.ShardOf(keyspace.Vertex(name)) == 1 {
			w.run(5, name)
			n++
		}
	}
	p := plan(t, w.done(), &planv1.PlanOptions{MinimumGain: 0.01})
	e := p.GetPrediction()
	if e.GetImbalanceBefore() < 0.99 || e.GetImbalanceAfter() > DefaultImbalance+1e-9 || !strings.Contains(p.GetSteps()[0].GetReason(), "evens the load") {
		t.Errorf("%v, %v", e, p.GetSteps())
	}
}

// TestMakeEmptiesAShard: what lives on a shard that is no target moves, traced or not.
func TestMakeEmptiesAShard(t *testing.T) {
	t.Parallel()
	g := clubs(t, 3, 12, 6).done()
	g.Shards = []uint32{1, 2}
	g.UntracedOverrides = []*planv1.Override{{Vertex: []byte("cold"), Shard: 3}}
	p := plan(t, g, &planv1.PlanOptions{MinimumGain: 0.01})
	vertices, slots := map[string]bool{}, 0
	for _, s := range p.GetSteps() {
		for _, v := range s.GetVertices() {
			vertices[string(v)] = true
		}
		slots += len(s.GetSlots())
	}
	for _, v := range g.GetVertices() {
		if v.GetShard() == 3 && !vertices[string(v.GetName())] {
			t.Errorf("%s stays", v.GetName())
		}
	}
	if want := int(g.GetSlotHomes()[2].GetLast()-g.GetSlotHomes()[2].GetFirst()) + 1; slots != want || !vertices["cold"] {
		t.Errorf("%d slots of %d move, cold override: %v", slots, want, vertices["cold"])
	}
}

// TestASlotDoesNotDragItsVertices: a slot stays while a hot vertex of it does.
func TestASlotDoesNotDragItsVertices(t *testing.T) {
	t.Parallel()
	m := &model{shards: []uint32{1, 2}, targets: 2, start: []int32{0, 0, 0, 0}, load: make([]float64, 4), size: make([]float64, 4), weight: make([]float64, 4)}
	m.vertices = []*planv1.GraphVertex{{IsSlot: true, Slot: 7}, {Name: []byte("a"), Slot: 7}, {IsSlot: true, Slot: 8}, {Name: []byte("b"), Slot: 8}}
	s := newState(m, nil, []int32{1, 0, 1, 1}, 1)
	m.holdSlots(s)
	if !slices.Equal(s.shard, []int32{0, 0, 1, 1}) {
		t.Errorf("placement %v", s.shard)
	}
}

// TestGainsAreTrue compares the gains of moves with the change of the sum of penalties.
func TestGainsAreTrue(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(6, 6))
	sum := func(s *state, p penalty) float64 {
		var total float64
		for _, c := range s.commands {
			counts := make([]int, len(s.model.shards))
			for _, v := range c.vertices {
				counts[s.shard[v]]++
			}
			total += c.weight * p[len(c.vertices)-slices.Max(counts)]
		}
		return total
	}
	for range 200 {
		n, k := 5+random.IntN(20), 2+random.IntN(4)
		m := &model{targets: k, load: make([]float64, n), size: make([]float64, n), weight: make([]float64, n)}
		for s := range k {
			m.shards = append(m.shards, uint32(s+1))
		}
		shard := make([]int32, n)
		for v := range shard {
			shard[v] = int32(random.IntN(k))
		}
		var commands []command
		for range 30 {
			c := command{weight: random.Float64()}
			for _, v := range random.Perm(n)[:2+random.IntN(n-2)] {
				c.vertices = append(c.vertices, int32(v))
			}
			commands = append(commands, c)
		}
		s := newState(m, commands, shard, 0.1)
		p := newPenalty(0.3+5*random.Float64(), commands)
		for range 10 {
			v, to := random.IntN(n), int32(random.IntN(k))
			s.evaluate(v, p)
			gain, before := s.gains[to], sum(s, p)
			s.move(v, to)
			if after := sum(s, p); math.Abs(before-after-gain) > 1e-9 {
				t.Fatalf("gain %g, the sum fell by %g", gain, before-after)
			}
		}
	}
}

func TestMakeRefusesBadInput(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*planv1.Graph, *planv1.PlanOptions)
		want   error
	}{
		"newer version":     {func(g *planv1.Graph, _ *planv1.PlanOptions) { g.Version = 9 }, ErrVersion},
		"no shard":          {func(g *planv1.Graph, _ *planv1.PlanOptions) { g.Shards = nil }, ErrGraph},
		"shard 0":           {func(g *planv1.Graph, _ *planv1.PlanOptions) { g.Shards[0] = 0 }, ErrGraph},
		"shard twice":       {func(g *planv1.Graph, _ *planv1.PlanOptions) { g.Shards[0] = 2 }, ErrGraph},
		"gap in homes":      {func(g *planv1.Graph, _ *planv1.PlanOptions) { g.SlotHomes[1].First++ }, ErrGraph},
		"edge to nowhere":   {func(g *planv1.Graph, _ *planv1.PlanOptions) { g.Edges[0].B = 9999 }, ErrGraph},
		"command nowhere":   {func(g *planv1.Graph, _ *planv1.PlanOptions) { g.Commands[0].Vertices[0] = 9999 }, ErrGraph},
		"weight NaN":        {func(g *planv1.Graph, _ *planv1.PlanOptions) { g.Commands[0].Weight = math.NaN() }, ErrGraph},
		"load below 0":      {func(g *planv1.Graph, _ *planv1.PlanOptions) { g.Vertices[0].Load = -1 }, ErrGraph},
		"imbalance below 0": {func(_ *planv1.Graph, o *planv1.PlanOptions) { o.Imbalance = -0.1 }, ErrOptions},
		"preconfiguration":  {func(_ *planv1.Graph, o *planv1.PlanOptions) { o.Preconfiguration = "quick" }, ErrOptions},
		"gain over 1":       {func(_ *planv1.Graph, o *planv1.PlanOptions) { o.MinimumGain = 2 }, ErrOptions},
	} {
		g, o := clubs(t, 4, 4, 5).done(), &planv1.PlanOptions{}
		c.change(g, o)
		if _, err := Make(context.Background(), g, o, groups{}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, expected %v", name, err, c.want)
		}
	}
}

// stuck never answers before its context ends.
type stuck struct{ groups }

func (stuck) Partition(ctx context.Context, _ *CSR, _ int, _ PartitionOptions) ([]int32, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

func TestMakeKeepsItsTimeLimit(t *testing.T) {
	t.Parallel()
	_, err := Make(context.Background(), clubs(t, 4, 4, 5).done(), &planv1.PlanOptions{TimeLimitSeconds: 0.01}, stuck{})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), (10*time.Millisecond).String()) {
		t.Errorf("%v", err)
	}
}
