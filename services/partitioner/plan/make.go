// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plan owns the way from a workload graph to a plan: which vertices go
// to which shard, in which steps, why, and what it will bring. It does no I/O
// and knows no partitioner by name. The partitioner program calls it.
package plan

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	planv1 "github.com/kolocate/kolocate/api/proto/plan/v1"
)

// Defaults of PlanOptions, where these are zero.
const (
	DefaultImbalance    = 0.1
	DefaultStepVertices = 64
)

// options are checked PlanOptions; 0 means no limit where there is a limit.
type options struct {
	imbalance        float64
	preconfiguration string
	seed             uint64
	maxMoves         int
	maxBytes         uint64
	maxOverrides     int
	stepVertices     int
	minimumGain      float64
	timeLimit        time.Duration
}

func newOptions(p *planv1.PlanOptions) (options, error) {
	o := options{
		imbalance: p.GetImbalance(), preconfiguration: p.GetPreconfiguration(), seed: p.GetSeed(),
		maxMoves: int(p.GetMaxMoves()), maxBytes: p.GetMaxBytes(), maxOverrides: int(p.GetMaxOverrides()),
		stepVertices: int(p.GetStepVertices()), minimumGain: p.GetMinimumGain(),
		timeLimit: time.Duration(p.GetTimeLimitSeconds() * float64(time.Second)),
	}
	if o.imbalance == 0 {
		o.imbalance = DefaultImbalance
	}
	if o.preconfiguration == "" {
		o.preconfiguration = DefaultPreconfiguration
	}
	if o.stepVertices == 0 {
		o.stepVertices = DefaultStepVertices
	}
	switch {
	case !(o.imbalance > 0 && o.imbalance <= 10):
		return o, fmt.Errorf("plan: %w: imbalance %g, expected above 0 and up to 10", ErrOptions, o.imbalance)
	case !slices.Contains(Preconfigurations, o.preconfiguration):
		return o, fmt.Errorf("plan: %w: preconfiguration %q, expected one of %q", ErrOptions, o.preconfiguration, Preconfigurations)
	case !(o.minimumGain >= 0 && o.minimumGain <= 1):
		return o, fmt.Errorf("plan: %w: minimum gain %g, expected 0 to 1", ErrOptions, o.minimumGain)
	case !(p.GetTimeLimitSeconds() >= 0 && p.GetTimeLimitSeconds() <= 86400):
		return o, fmt.Errorf("plan: %w: time limit of %g s, expected 0 (none) to 86400", ErrOptions, p.GetTimeLimitSeconds())
	}
	return o, nil
}

// Make plans the moves from the placement in the graph to a better one. The
// same graph and options give the same plan, apart from partition_seconds. A
// plan without steps says in its reason why nothing should move.
//
// It returns an error that is ErrVersion, ErrGraph or ErrOptions for bad input,
// and the context's error when that, or the time limit in the options, ends
// first; a call into the partitioner may then go on in the background, so the
// process should end.
func Make(ctx context.Context, graph *planv1.Graph, planOptions *planv1.PlanOptions, partitioner Partitioner) (*planv1.Plan, error) {
	o, err := newOptions(planOptions)
	if err != nil {
		return nil, err
	}
	m, err := newModel(graph)
	if err != nil {
		return nil, err
	}
	if o.timeLimit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, o.timeLimit, fmt.Errorf("time limit of %s: %w", o.timeLimit, context.DeadlineExceeded))
		defer cancel()
	}
	s := &search{model: m, options: o, partitioner: partitioner}
	p := &planv1.Plan{
		Version: Version, Store: graph.GetStore(), Epoch: graph.GetEpoch(), Partitioner: partitioner.Name() + " " + o.preconfiguration,
		GraphVertices: uint64(len(graph.GetVertices())), GraphEdges: uint64(len(graph.GetEdges())),
	}
	if len(m.vertices) == 0 {
		p.Prediction = m.predict(nil, m.start, 0)
		p.Reason = "nothing was traced: there is no load to place"
		return p, nil
	}
	best, rejected, err := s.run(ctx, m.commands, nil, m.starts())
	if err != nil {
		return nil, err
	}
	optimism, err := s.optimism(ctx)
	if err != nil {
		return nil, err
	}
	p.Rejected = rejected
	m.write(p, best.shard, optimism, o)
	return p, nil
}

// optimism is by how much the share of multi-shard commands on commands that a
// search has not seen exceeds that on those it has: it is run once more on four
// fifths of the sample and judged on the last. Without it a plan for commands
// that never come again would promise what it cannot hold.
func (s *search) optimism(ctx context.Context) (float64, error) {
	train, check := split(s.model.commands, rand.New(rand.NewPCG(s.options.seed, 0x636865636b)))
	if len(train) == 0 || len(check) == 0 {
		return 0, nil
	}
	best, _, err := s.run(ctx, train, check, min(s.model.starts(), 2))
	if err != nil {
		return 0, err
	}
	share := func(commands []command) float64 {
		return multi(commands, best.shard) / (s.model.total(commands) - s.model.single)
	}
	return max(0, share(check)-share(train)), nil
}

// write turns a placement into the steps of a plan, or into a reason for none.
func (m *model) write(p *planv1.Plan, shard []int32, optimism float64, o options) {
	order := m.order(shard)
	kept, cutBy := m.within(order, shard, o)
	if cutBy != "" {
		p.Rejected = append(p.Rejected, &planv1.Rejected{
			Alternative: fmt.Sprintf("%d further moves", len(order)-len(kept)),
			Reason:      fmt.Sprintf("%s allows the first %d only", cutBy, len(kept)),
		})
	}
	after := slices.Clone(m.start)
	for _, v := range kept {
		after[v] = shard[v]
	}
	p.Prediction = m.predict(kept, after, m.remaining(shard, after, optimism))
	if reason := m.refuse(p.Prediction, kept, o); reason != "" {
		p.Rejected = append(p.Rejected, &planv1.Rejected{Alternative: fmt.Sprintf("moving %d vertices and slots", len(kept)), Reason: reason})
		p.Reason = reason
		p.Prediction = m.predict(nil, m.start, 0)
		return
	}
	p.Steps = m.steps(kept, after, o.stepVertices)
}

// remaining is the part of the optimism that is left when only some of the moves
// of a placement are made, by how much of its gain they bring.
func (m *model) remaining(shard, after []int32, optimism float64) float64 {
	before := multi(m.commands, m.start)
	whole, made := before-multi(m.commands, shard), before-multi(m.commands, after)
	if whole <= 0 || made >= whole {
		return optimism
	}
	return optimism * max(0, made/whole)
}

// predict says what a placement brings, on the sampled commands.
func (m *model) predict(moved []int32, after []int32, optimism float64) *planv1.Prediction {
	total := m.total(m.commands)
	p := &planv1.Prediction{
		ImbalanceBefore: m.imbalance(m.start), ImbalanceAfter: m.imbalance(after),
		MovedVertices: uint64(len(moved)), OverridesAfter: uint32(m.overrides(after)), //nolint:gosec // bounded by the vertices
		EdgeCutBefore: m.cut(m.start), EdgeCutAfter: m.cut(after),
	}
	for _, v := range moved {
		p.MovedBytes += m.vertices[v].GetBytes()
	}
	if total > 0 {
		several := total - m.single
		p.MpoShareBefore = multi(m.commands, m.start) / total
		p.MpoShareAfter = min(1, (multi(m.commands, after)+optimism*several)/total)
	}
	return p
}

// refuse says why a plan is not worth carrying out; empty if it is.
func (m *model) refuse(p *planv1.Prediction, moved []int32, o options) string {
	gain := p.GetMpoShareBefore() - p.GetMpoShareAfter()
	emptied := slices.ContainsFunc(moved, func(v int32) bool { return int(m.start[v]) >= m.targets })
	evens := p.GetImbalanceBefore() > o.imbalance && p.GetImbalanceAfter() < 0.8*p.GetImbalanceBefore() && gain > -max(o.minimumGain, 0.01)
	switch {
	case len(moved) == 0:
		return fmt.Sprintf("nothing to gain: no move lowers the share of multi-shard commands (%s) by more than it costs", percent(p.GetMpoShareBefore(), 1))
	case emptied || evens:
		return ""
	case gain <= 0 || gain < o.minimumGain:
		return fmt.Sprintf("nothing to gain: the best placement found is expected to lower the share of multi-shard commands from %s to %s; at least %s less is asked for",
			percent(p.GetMpoShareBefore(), 1), percent(p.GetMpoShareAfter(), 1), percent(o.minimumGain, 1))
	}
	return ""
}
