// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"fmt"
	"math"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/api/v1alpha1"
)

const (
	// maxReasons and maxMessage keep a status small; the plan holds them all.
	maxReasons = 16
	maxMessage = 2048
)

// phaseOf names the oracle's phase as the object shows it.
func phaseOf(state *oraclev1.Rebalance) v1alpha1.RebalancePhase {
	switch state.GetPhase() {
	case oraclev1.Phase_PHASE_TRACING:
		return v1alpha1.RebalanceTracing
	case oraclev1.Phase_PHASE_PARTITIONING:
		return v1alpha1.RebalancePartitioning
	case oraclev1.Phase_PHASE_PROPOSED:
		return v1alpha1.RebalanceProposed
	case oraclev1.Phase_PHASE_MIGRATING:
		return v1alpha1.RebalanceMigrating
	case oraclev1.Phase_PHASE_VERIFYING:
		return v1alpha1.RebalanceVerifying
	case oraclev1.Phase_PHASE_SUCCEEDED:
		return v1alpha1.RebalanceSucceeded
	case oraclev1.Phase_PHASE_REVERTED:
		return v1alpha1.RebalanceReverted
	case oraclev1.Phase_PHASE_FAILED:
		return v1alpha1.RebalanceFailed
	case oraclev1.Phase_PHASE_STOPPED:
		return v1alpha1.RebalanceStopped
	default:
		return v1alpha1.RebalancePending
	}
}

func ended(state *oraclev1.Rebalance) bool { return phaseOf(state).Ended() }

// fill writes what the pass knows into the status of p.after.
func fill(p *pass) {
	status := &p.after.Status
	if p.state != nil {
		mirror(status, p.state)
	}
	if p.job != nil && status.Phase == v1alpha1.RebalancePartitioning {
		status.Message = clip(fmt.Sprintf("Job %s makes the plan: %d running, %d failed", p.job.Name, p.job.Status.Active, p.job.Status.Failed))
	}
	status.ObservedGeneration = p.object.Generation
	setConditions(p.object, status, p.state)
}

// mirror copies what the oracle says.
func mirror(status *v1alpha1.RebalanceStatus, state *oraclev1.Rebalance) {
	status.Phase = phaseOf(state)
	status.Message = clip(state.GetMessage())
	status.FromEpoch, status.Epoch = count(state.GetFromEpoch()), count(state.GetEpoch())
	status.GraphVertices, status.GraphEdges = count(state.GetGraphVertices()), count(state.GetGraphEdges())
	status.Reasons = nil
	for _, reason := range state.GetReasons()[:min(len(state.GetReasons()), maxReasons)] {
		status.Reasons = append(status.Reasons, clip(reason))
	}
	status.Effect = effect(state)
	if total := state.GetStepsTotal(); total > 0 {
		status.Steps = &v1alpha1.Steps{
			Total: count32(total), Done: count32(state.GetStepsDone()), Aborted: count32(state.GetStepsAborted()),
			Summary: fmt.Sprintf("%d/%d", state.GetStepsDone(), total),
		}
	}
	if state.GetMovedVertices() > 0 || state.GetMovedBytes() > 0 {
		status.Moved = &v1alpha1.Moved{
			Vertices: count(state.GetMovedVertices()),
			Bytes:    resource.NewQuantity(count(state.GetMovedBytes()), resource.BinarySI),
		}
	}
	if state.GetPauseMaxMicros() > 0 {
		status.Pauses = &v1alpha1.Pauses{
			P50: micros(state.GetPauseP50Micros()), P99: micros(state.GetPauseP99Micros()), Max: micros(state.GetPauseMaxMicros()),
		}
	}
	if seconds := state.GetPartitionSeconds(); seconds > 0 {
		status.PartitionTime = &metav1.Duration{Duration: time.Duration(seconds * float64(time.Second)).Round(time.Millisecond)}
	}
	if created := state.GetCreatedUnixMillis(); created > 0 {
		status.StartTime = at(created)
	}
	if since := state.GetPhaseSinceUnixMillis(); ended(state) && since > 0 {
		status.CompletionTime = at(since)
	}
}

func effect(state *oraclev1.Rebalance) *v1alpha1.Effect {
	var e v1alpha1.Effect
	if m := state.GetBefore(); m != nil {
		e.Before = measures(m.GetMpoShare(), m.GetImbalance())
	}
	if p := state.GetPrediction(); p != nil {
		e.Predicted = measures(p.GetMpoShareAfter(), p.GetImbalanceAfter())
	}
	if m := state.GetAfter(); m != nil {
		e.After = measures(m.GetMpoShare(), m.GetImbalance())
	}
	if e == (v1alpha1.Effect{}) {
		return nil
	}
	return &e
}

func measures(share, imbalance float64) *v1alpha1.Measures {
	return &v1alpha1.Measures{MPOShare: v1alpha1.FormatPercent(share), Imbalance: v1alpha1.FormatPercent(imbalance)}
}

func setConditions(object *v1alpha1.Rebalance, status *v1alpha1.RebalanceStatus, state *oraclev1.Rebalance) {
	reason := string(status.Phase)
	over := status.Phase.Ended()
	progressing := !over && status.Phase != v1alpha1.RebalancePending && !state.GetPaused()
	if state.GetPaused() && !over {
		reason = "Paused"
	}
	set := func(kind string, is bool, reason, message string) {
		value := metav1.ConditionFalse
		if is {
			value = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type: kind, Status: value, Reason: reason, Message: message, ObservedGeneration: object.Generation,
		})
	}
	set(v1alpha1.ConditionProgressing, progressing, reason, status.Message)
	set(v1alpha1.ConditionComplete, over, string(status.Phase), status.Message)
	switch {
	case object.Spec.Approved:
		set(v1alpha1.ConditionApproved, true, "ByPerson", "spec.approved is true")
	case state.GetApproval() == string(v1alpha1.ApprovalAutomatic):
		set(v1alpha1.ConditionApproved, true, "Automatic", "the policy approves every plan")
	case status.Phase == v1alpha1.RebalanceProposed:
		set(v1alpha1.ConditionApproved, false, "WaitsForPerson", "look at the status and set spec.approved to true to let the plan move data")
	default:
		set(v1alpha1.ConditionApproved, false, "NotYet", "there is no plan to approve yet")
	}
}

// clip bounds a text that comes from elsewhere.
func clip(text string) string {
	if len(text) <= maxMessage {
		return text
	}
	return strings.ToValidUTF8(text[:maxMessage], "") + "…"
}

func count(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

func count32(n uint32) int32 { return int32(min(n, math.MaxInt32)) }

func micros(n uint64) metav1.Duration {
	return metav1.Duration{Duration: time.Duration(count(min(n, math.MaxInt64/1000))) * time.Microsecond}
}

func at(millis int64) *metav1.Time {
	// A status holds whole seconds; rounding here keeps a second look equal.
	return new(metav1.NewTime(time.UnixMilli(millis).Truncate(time.Second)))
}
