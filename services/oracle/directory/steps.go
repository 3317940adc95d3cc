// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	planv1 "github.com/kolocate/kolocate/api/proto/plan/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// maxPlanSteps bounds the handoffs of one plan.
const maxPlanSteps = 100_000

func (d *Directory) acceptPlan(a *oraclev1.PlanAccepted) error {
	state, err := d.rebalance(a.GetName())
	if err != nil {
		return err
	}
	r := state.GetRebalance()
	if r.GetPhase() != oraclev1.Phase_PHASE_PARTITIONING {
		return refuse("plan for rebalance %s: it is %s and takes a plan only while Partitioning", r.GetName(), PhaseName(r.GetPhase()))
	}
	if err := d.CheckPlan(a.GetPlan()); err != nil {
		return err
	}
	plan := a.GetPlan()
	state.Plan = plan
	r.Prediction, r.PartitionSeconds = plan.GetPrediction(), plan.GetPartitionSeconds()
	r.GraphVertices, r.GraphEdges = plan.GetGraphVertices(), plan.GetGraphEdges()
	setMoves(state, plan.GetSteps())
	switch {
	case len(plan.GetSteps()) == 0:
		d.enter(r, oraclev1.Phase_PHASE_SUCCEEDED, "nothing to move: "+plan.GetReason())
	case r.GetApproval() == ApprovalAutomatic:
		d.enter(r, oraclev1.Phase_PHASE_MIGRATING, "approved by policy; moving")
	default:
		d.enter(r, oraclev1.Phase_PHASE_PROPOSED, "waits for approval of the plan")
	}
	return nil
}

// CheckPlan returns a *RefusalError if the plan does not fit today's placement.
func (d *Directory) CheckPlan(plan *planv1.Plan) error {
	if plan.GetVersion() != 1 {
		return refuse("plan has version %d; this oracle reads version 1: use the partitioner of the same release", plan.GetVersion())
	}
	if plan.GetStore() != d.store {
		return refuse("plan is for store %q, this is %q; nothing is moved", plan.GetStore(), d.store)
	}
	if plan.GetEpoch() != uint64(d.placement.Epoch()) {
		return refuse("plan was made for epoch %d, the placement is at %d; make a new one from a fresh graph", plan.GetEpoch(), d.placement.Epoch())
	}
	if len(plan.GetSteps()) > maxPlanSteps {
		return refuse("plan has %d steps, at most %d are allowed; raise the vertices in a step", len(plan.GetSteps()), maxPlanSteps)
	}
	seenVertex, seenSlot := map[string]bool{}, map[uint32]bool{}
	for i, step := range plan.GetSteps() {
		if err := d.checkStep(step, seenVertex, seenSlot); err != nil {
			return refuse("plan step %d: %v", i+1, err)
		}
	}
	return nil
}

func (d *Directory) checkStep(step *planv1.Step, seenVertex map[string]bool, seenSlot map[uint32]bool) error {
	if step.GetFrom() == step.GetTo() || step.GetFrom() == 0 || step.GetTo() == 0 || step.GetFrom() > d.shards || step.GetTo() > d.shards {
		return fmt.Errorf("leads from shard %d to %d, expected two different shards of 1 to %d", step.GetFrom(), step.GetTo(), d.shards)
	}
	if len(step.GetVertices())+len(step.GetSlots()) == 0 {
		return fmt.Errorf("names nothing to move")
	}
	for _, v := range step.GetVertices() {
		if at := d.placement.ShardOf(keyspace.Vertex(v)); uint32(at) != step.GetFrom() || seenVertex[string(v)] {
			return fmt.Errorf("vertex %q is at shard %d, or named twice; expected it at shard %d, once", v, at, step.GetFrom())
		}
		seenVertex[string(v)] = true
	}
	for _, slot := range step.GetSlots() {
		if slot >= keyspace.Slots || seenSlot[slot] || uint32(d.placement.ShardOfSlot(keyspace.Slot(slot))) != step.GetFrom() {
			return fmt.Errorf("slot %d is not at shard %d, or named twice", slot, step.GetFrom())
		}
		seenSlot[slot] = true
	}
	return nil
}

func (d *Directory) startStep(s *oraclev1.StepStarted) error {
	state, err := d.rebalance(s.GetName())
	if err != nil {
		return err
	}
	r := state.GetRebalance()
	if r.GetPhase() != oraclev1.Phase_PHASE_MIGRATING || r.GetPaused() || state.GetStopping() {
		return refuse("rebalance %s starts no step now (%s)", r.GetName(), PhaseName(r.GetPhase()))
	}
	if int(s.GetStep()) >= len(state.Steps) || state.Steps[s.GetStep()].GetPhase() != oraclev1.StepPhase_STEP_PHASE_WAITING {
		return refuse("rebalance %s: step %d is not waiting", r.GetName(), s.GetStep())
	}
	step := state.Steps[s.GetStep()]
	step.Phase, step.Handoff = oraclev1.StepPhase_STEP_PHASE_MOVING, d.nextHandoff
	step.Tries++
	d.nextHandoff++
	return nil
}

func (d *Directory) endStep(s *oraclev1.StepEnded) error {
	state, err := d.rebalance(s.GetName())
	if err != nil {
		return err
	}
	i := slices.IndexFunc(state.Steps, func(step *oraclev1.StepState) bool {
		return step.GetHandoff() == s.GetHandoff() && step.GetPhase() == oraclev1.StepPhase_STEP_PHASE_MOVING
	})
	if i < 0 {
		return refuse("rebalance %s has no handoff %d under way", s.GetName(), s.GetHandoff())
	}
	step, r := state.Steps[i], state.GetRebalance()
	step.Message = s.GetMessage()
	switch {
	case s.GetDone():
		step.Phase, step.PauseMicros, step.Bytes = oraclev1.StepPhase_STEP_PHASE_DONE, s.GetPauseMicros(), s.GetBytes()
		if err := d.advanceEpoch(state.Moves[i]); err != nil {
			return err
		}
		r.Epoch = uint64(d.placement.Epoch())
		r.StepsDone++
		r.MovedBytes += s.GetBytes()
		r.MovedVertices += uint64(len(state.Moves[i].GetVertices()))
	case step.GetTries() >= maxStepTries:
		step.Phase = oraclev1.StepPhase_STEP_PHASE_FAILED
		r.StepsAborted++
	default:
		step.Phase = oraclev1.StepPhase_STEP_PHASE_WAITING
	}
	if state.GetStopping() && moving(state) == 0 {
		d.enter(r, oraclev1.Phase_PHASE_STOPPED, "stopped on request; what was moved stays where it is")
	}
	return nil
}

// advanceEpoch records that the vertices and slots of a step have a new owner.
func (d *Directory) advanceEpoch(step *planv1.Step) error {
	delta := keyspace.Delta{From: d.placement.Epoch(), To: d.placement.Epoch() + 1}
	for _, slot := range step.GetSlots() {
		delta.Slots = append(delta.Slots, keyspace.SlotMove{Slot: keyspace.Slot(slot), To: keyspace.ShardID(step.GetTo())}) //nolint:gosec // checked by CheckPlan
	}
	for _, v := range step.GetVertices() {
		delta.Overrides = append(delta.Overrides, keyspace.VertexMove{Vertex: keyspace.Vertex(v), To: keyspace.ShardID(step.GetTo())})
	}
	next, err := d.placement.Apply(delta)
	if err != nil {
		return err
	}
	d.placement = next
	d.deltas = append(d.deltas, delta)
	if len(d.deltas) > maxDeltas {
		d.deltas = slices.Clone(d.deltas[len(d.deltas)-maxDeltas:])
	}
	return nil
}

func moving(state *oraclev1.RebalanceState) int {
	n := 0
	for _, step := range state.GetSteps() {
		if step.GetPhase() == oraclev1.StepPhase_STEP_PHASE_MOVING {
			n++
		}
	}
	return n
}

// View returns the public form of a rebalance, without what only its leader
// knows. Percentiles are over the handoffs done so far.
func View(state *oraclev1.RebalanceState) *oraclev1.Rebalance {
	r := proto.CloneOf(state.GetRebalance())
	var pauses []uint64
	for i, step := range state.GetSteps() {
		switch step.GetPhase() {
		case oraclev1.StepPhase_STEP_PHASE_DONE:
			pauses = append(pauses, step.GetPauseMicros())
		case oraclev1.StepPhase_STEP_PHASE_MOVING:
			move := state.GetMoves()[i]
			r.Active = append(r.Active, &oraclev1.StepProgress{
				Number: move.GetNumber(), From: move.GetFrom(), To: move.GetTo(),
				Vertices: uint32(len(move.GetVertices())), Reason: move.GetReason(), State: "moving", //nolint:gosec // bounded by the plan
			})
		default:
		}
	}
	slices.Sort(pauses)
	if n := len(pauses); n > 0 {
		r.PauseP50Micros, r.PauseP99Micros, r.PauseMaxMicros = pauses[n/2], pauses[n*99/100], pauses[n-1]
	}
	return r
}

// Rebalance returns the public form of a rebalance.
func (d *Directory) Rebalance(name string) (*oraclev1.Rebalance, error) {
	state, err := d.rebalance(name)
	if err != nil {
		return nil, err
	}
	return View(state), nil
}

// Rebalances returns the public forms of all rebalances that are kept, oldest first.
func (d *Directory) Rebalances() []*oraclev1.Rebalance {
	views := make([]*oraclev1.Rebalance, len(d.rebalances))
	for i, state := range d.rebalances {
		views[i] = View(state)
	}
	return views
}

// Plan returns a copy of the plan of a rebalance.
func (d *Directory) Plan(name string) (*planv1.Plan, error) {
	state, err := d.rebalance(name)
	if err != nil {
		return nil, err
	}
	if state.GetPlan() == nil {
		return nil, refuse("rebalance %s has no plan yet: it is %s", name, PhaseName(state.GetRebalance().GetPhase()))
	}
	return proto.CloneOf(state.GetPlan()), nil
}

// Newest returns the public form of the newest rebalance, or nil.
func (d *Directory) Newest() *oraclev1.Rebalance {
	if len(d.rebalances) == 0 {
		return nil
	}
	return View(d.rebalances[len(d.rebalances)-1])
}
