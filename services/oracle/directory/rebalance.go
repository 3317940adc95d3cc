// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"fmt"
	"regexp"
	"slices"

	"google.golang.org/protobuf/proto"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	planv1 "github.com/kolocate/kolocate/api/proto/plan/v1"
)

var nameForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// phaseAfter lists where a phase may lead by a PhaseEntered entry. Proposed is
// entered by PlanAccepted, Migrating by approval.
var phaseAfter = map[oraclev1.Phase][]oraclev1.Phase{
	oraclev1.Phase_PHASE_TRACING:      {oraclev1.Phase_PHASE_PARTITIONING, oraclev1.Phase_PHASE_FAILED, oraclev1.Phase_PHASE_STOPPED},
	oraclev1.Phase_PHASE_PARTITIONING: {oraclev1.Phase_PHASE_TRACING, oraclev1.Phase_PHASE_FAILED, oraclev1.Phase_PHASE_STOPPED},
	oraclev1.Phase_PHASE_PROPOSED:     {oraclev1.Phase_PHASE_FAILED, oraclev1.Phase_PHASE_STOPPED},
	oraclev1.Phase_PHASE_MIGRATING: {
		oraclev1.Phase_PHASE_VERIFYING, oraclev1.Phase_PHASE_FAILED,
		oraclev1.Phase_PHASE_STOPPED, oraclev1.Phase_PHASE_REVERTED,
	},
	oraclev1.Phase_PHASE_VERIFYING: {
		oraclev1.Phase_PHASE_SUCCEEDED, oraclev1.Phase_PHASE_MIGRATING,
		oraclev1.Phase_PHASE_STOPPED, oraclev1.Phase_PHASE_FAILED,
	},
}

// Ended says whether a phase is a last one.
func Ended(phase oraclev1.Phase) bool { return len(phaseAfter[phase]) == 0 }

// PhaseName returns the phase as people write it: Tracing, Partitioning, and so on.
func PhaseName(phase oraclev1.Phase) string {
	names := map[oraclev1.Phase]string{
		oraclev1.Phase_PHASE_TRACING: "Tracing", oraclev1.Phase_PHASE_PARTITIONING: "Partitioning",
		oraclev1.Phase_PHASE_PROPOSED: "Proposed", oraclev1.Phase_PHASE_MIGRATING: "Migrating",
		oraclev1.Phase_PHASE_VERIFYING: "Verifying", oraclev1.Phase_PHASE_SUCCEEDED: "Succeeded",
		oraclev1.Phase_PHASE_REVERTED: "Reverted", oraclev1.Phase_PHASE_FAILED: "Failed", oraclev1.Phase_PHASE_STOPPED: "Stopped",
	}
	return names[phase]
}

func (d *Directory) createRebalance(c *oraclev1.RebalanceCreated) error {
	if _, err := d.rebalance(c.GetName()); err == nil {
		return nil // the same request, sent again
	}
	approval := c.GetApproval()
	if approval == "" {
		approval = d.policy.GetApproval()
	}
	if err := checkApproval(approval); err != nil {
		return err
	}
	if !nameForm.MatchString(c.GetName()) {
		return refuse("rebalance name %q: expected 1 to 63 lower-case letters, digits and dashes, as in a DNS label", c.GetName())
	}
	if active := d.Active(); active != nil {
		return refuse("rebalance %s is %s; wait for it to end or stop it before another is started",
			active.GetRebalance().GetName(), PhaseName(active.GetRebalance().GetPhase()))
	}
	seconds := c.GetTraceSeconds()
	if seconds == 0 {
		seconds = d.policy.GetWindowSeconds()
	}
	if !(seconds > 0 && seconds <= 86_400) {
		return refuse("rebalance %s: %g seconds of tracing, expected more than 0 and at most 86,400", c.GetName(), seconds)
	}
	d.rebalances = append(d.rebalances, &oraclev1.RebalanceState{
		TraceSeconds: seconds,
		Rebalance: &oraclev1.Rebalance{
			Name: c.GetName(), Approval: approval, Reasons: c.GetReasons(),
			Phase: oraclev1.Phase_PHASE_TRACING, Message: "watching which keys are used together",
			FromEpoch: uint64(d.placement.Epoch()), Epoch: uint64(d.placement.Epoch()),
			CreatedUnixMillis: d.timeMillis, PhaseSinceUnixMillis: d.timeMillis,
		},
	})
	if len(d.rebalances) > maxRebalances {
		d.rebalances = slices.Delete(d.rebalances, 0, len(d.rebalances)-maxRebalances)
	}
	return nil
}

func (d *Directory) enterPhase(p *oraclev1.PhaseEntered) error {
	state, err := d.rebalance(p.GetName())
	if err != nil {
		return err
	}
	r := state.GetRebalance()
	if !slices.Contains(phaseAfter[r.GetPhase()], p.GetPhase()) {
		return refuse("rebalance %s is %s and cannot become %s", r.GetName(), PhaseName(r.GetPhase()), PhaseName(p.GetPhase()))
	}
	if r.GetPhase() == oraclev1.Phase_PHASE_MIGRATING && moving(state) > 0 {
		return refuse("rebalance %s has %d handoffs under way and cannot become %s before they end", r.GetName(), moving(state), PhaseName(p.GetPhase()))
	}
	if p.GetBefore() != nil {
		r.Before = p.GetBefore()
	}
	if p.GetAfter() != nil {
		r.After = p.GetAfter()
	}
	if p.GetGraphVertices() > 0 {
		r.GraphVertices, r.GraphEdges = p.GetGraphVertices(), p.GetGraphEdges()
	}
	if p.GetRevert() {
		startReverting(state)
	}
	d.enter(r, p.GetPhase(), p.GetMessage())
	return nil
}

func (d *Directory) enter(r *oraclev1.Rebalance, phase oraclev1.Phase, message string) {
	r.Phase, r.Message, r.PhaseSinceUnixMillis = phase, message, d.timeMillis
}

// startReverting replaces the moves by those that take the done ones back, last first.
func startReverting(state *oraclev1.RebalanceState) {
	var moves []*planv1.Step
	for i := len(state.Moves) - 1; i >= 0; i-- {
		if state.Steps[i].GetPhase() != oraclev1.StepPhase_STEP_PHASE_DONE {
			continue
		}
		back := proto.CloneOf(state.Moves[i])
		back.From, back.To = back.GetTo(), back.GetFrom()
		back.Number = uint32(len(moves) + 1) //nolint:gosec // bounded by the plan
		back.Reason = fmt.Sprintf("taken back: the plan made things worse (step %d)", state.Moves[i].GetNumber())
		moves = append(moves, back)
	}
	state.Reverting = true
	setMoves(state, moves)
}

func setMoves(state *oraclev1.RebalanceState, moves []*planv1.Step) {
	state.Moves, state.Steps = moves, make([]*oraclev1.StepState, len(moves))
	for i := range moves {
		state.Steps[i] = &oraclev1.StepState{Phase: oraclev1.StepPhase_STEP_PHASE_WAITING}
	}
	state.Rebalance.StepsTotal = uint32(len(moves)) //nolint:gosec // bounded by the plan
	state.Rebalance.StepsDone, state.Rebalance.StepsAborted = 0, 0
}

func (d *Directory) control(c *oraclev1.RebalanceControlled) error {
	state, err := d.rebalance(c.GetName())
	if err != nil {
		return err
	}
	r := state.GetRebalance()
	if Ended(r.GetPhase()) {
		return refuse("rebalance %s has ended as %s; create a new one", r.GetName(), PhaseName(r.GetPhase()))
	}
	switch c.GetAction() {
	case oraclev1.RebalanceAction_REBALANCE_ACTION_APPROVE:
		return d.approve(state)
	case oraclev1.RebalanceAction_REBALANCE_ACTION_PAUSE:
		r.Paused = true
	case oraclev1.RebalanceAction_REBALANCE_ACTION_RESUME:
		r.Paused = false
	case oraclev1.RebalanceAction_REBALANCE_ACTION_STOP:
		if moving(state) == 0 {
			d.enter(r, oraclev1.Phase_PHASE_STOPPED, "stopped on request; what was moved stays where it is")
			return nil
		}
		state.Stopping = true
		r.Message = fmt.Sprintf("stopping: %d handoffs under way end first", moving(state))
	case oraclev1.RebalanceAction_REBALANCE_ACTION_FAIL:
		if r.GetPhase() != oraclev1.Phase_PHASE_PARTITIONING {
			return refuse("rebalance %s is %s; only a partitioning one can be reported as failed", r.GetName(), PhaseName(r.GetPhase()))
		}
		d.enter(r, oraclev1.Phase_PHASE_FAILED, "the partitioner failed: "+c.GetMessage())
	default:
		return refuse("rebalance %s: action %v is unknown; use approve, pause, resume or stop", r.GetName(), c.GetAction())
	}
	return nil
}

func (d *Directory) approve(state *oraclev1.RebalanceState) error {
	r := state.GetRebalance()
	switch r.GetPhase() {
	case oraclev1.Phase_PHASE_PROPOSED:
		d.enter(r, oraclev1.Phase_PHASE_MIGRATING, "approved; moving")
		return nil
	case oraclev1.Phase_PHASE_MIGRATING, oraclev1.Phase_PHASE_VERIFYING:
		return nil // approved already
	default:
		return refuse("rebalance %s is %s and has no plan to approve yet; wait until it is Proposed", r.GetName(), PhaseName(r.GetPhase()))
	}
}

func (d *Directory) rebalance(name string) (*oraclev1.RebalanceState, error) {
	for _, state := range d.rebalances {
		if state.GetRebalance().GetName() == name {
			return state, nil
		}
	}
	return nil, &RefusalError{NotFound: true, Reason: fmt.Sprintf("rebalance %q is unknown to store %q; list them to see the names", name, d.store)}
}

// Active returns the rebalance that has not ended, or nil. The caller must not
// change it, nor keep it beyond the next Apply.
func (d *Directory) Active() *oraclev1.RebalanceState {
	if n := len(d.rebalances); n > 0 && !Ended(d.rebalances[n-1].GetRebalance().GetPhase()) {
		return d.rebalances[n-1]
	}
	return nil
}
