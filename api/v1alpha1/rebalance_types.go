// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RebalancePhase is where a rebalance is.
type RebalancePhase string

// Phases of a rebalance, in their order; the last four are ends.
const (
	RebalancePending      RebalancePhase = "Pending"
	RebalanceTracing      RebalancePhase = "Tracing"
	RebalancePartitioning RebalancePhase = "Partitioning"
	RebalanceProposed     RebalancePhase = "Proposed"
	RebalanceMigrating    RebalancePhase = "Migrating"
	RebalanceVerifying    RebalancePhase = "Verifying"
	RebalanceSucceeded    RebalancePhase = "Succeeded"
	RebalanceReverted     RebalancePhase = "Reverted"
	RebalanceFailed       RebalancePhase = "Failed"
	RebalanceStopped      RebalancePhase = "Stopped"
)

// Ended says whether the phase is an end.
func (p RebalancePhase) Ended() bool {
	switch p {
	case RebalanceSucceeded, RebalanceReverted, RebalanceFailed, RebalanceStopped:
		return true
	default:
		return false
	}
}

// RebalanceSpec says which store to rebalance, and is the way to steer the
// rebalance while it runs.
//
// +kubebuilder:validation:XValidation:rule="!oldSelf.stop || self.stop",message="a stopped rebalance cannot be started again: make a new Rebalance",fieldPath=".stop"
// +kubebuilder:validation:XValidation:rule="!oldSelf.approved || self.approved",message="an approval cannot be taken back: set spec.paused or spec.stop",fieldPath=".approved"
type RebalanceSpec struct {
	// StoreRef is the Store to rebalance, in the same namespace.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="storeRef cannot change: make a new Rebalance"
	// +required
	StoreRef StoreReference `json:"storeRef"`

	// Approval of the plan: Automatic, or Manual (by spec.approved). Absent: as
	// the Store says. It is read when the rebalance starts.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="approval is read once, when the rebalance starts: set spec.approved to approve the plan"
	// +optional
	Approval Approval `json:"approval,omitempty"`

	// Approved lets the proposed plan move data.
	// +kubebuilder:default=false
	// +optional
	Approved bool `json:"approved"`

	// Paused holds the rebalance after the handoffs that are under way.
	// +kubebuilder:default=false
	// +optional
	Paused bool `json:"paused"`

	// Stop ends the rebalance after the handoffs that are under way. What has
	// moved stays where it is.
	// +kubebuilder:default=false
	// +optional
	Stop bool `json:"stop"`

	// TraceSeconds is the time to observe the workload before the plan is made;
	// 0 is the window of the Store.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="traceSeconds is read once, when the rebalance starts"
	// +optional
	TraceSeconds int32 `json:"traceSeconds,omitempty"`

	// Reason is who asked for the rebalance and why, in words.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Reason string `json:"reason,omitempty"`
}

// StoreReference names a Store in the same namespace.
type StoreReference struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=40
	// +required
	Name string `json:"name"`
}

// Measures are the quality of a placement, predicted or measured.
type Measures struct {
	// MPOShare is the share of multi-shard commands.
	// +optional
	MPOShare string `json:"mpoShare,omitempty"`
	// Imbalance is how far the busiest shard is over the mean load.
	// +optional
	Imbalance string `json:"imbalance,omitempty"`
}

// Effect sets the prediction of the plan beside what was measured.
type Effect struct {
	// Before the moves, as measured.
	// +optional
	Before *Measures `json:"before,omitempty"`
	// Predicted by the plan, for after the moves.
	// +optional
	Predicted *Measures `json:"predicted,omitempty"`
	// After the moves, as measured.
	// +optional
	After *Measures `json:"after,omitempty"`
}

// Steps of the plan; a step is one handoff.
type Steps struct {
	Total int32 `json:"total"`
	Done  int32 `json:"done"`
	// +optional
	Aborted int32 `json:"aborted,omitempty"`
	// Summary is done of total, for people.
	// +optional
	Summary string `json:"summary,omitempty"`
}

// Moved is what the handoffs have moved.
type Moved struct {
	// +optional
	Vertices int64 `json:"vertices,omitempty"`
	// +optional
	Bytes *resource.Quantity `json:"bytes,omitempty"`
}

// Pauses are how long vertices had no owner that serves them, over the handoffs
// of the rebalance.
type Pauses struct {
	// +optional
	P50 metav1.Duration `json:"p50,omitempty"`
	// +optional
	P99 metav1.Duration `json:"p99,omitempty"`
	// +optional
	Max metav1.Duration `json:"max,omitempty"`
}

// RebalanceStatus is the observed state of a rebalance.
type RebalanceStatus struct {
	// Phase of the rebalance.
	// +kubebuilder:validation:Enum=Pending;Tracing;Partitioning;Proposed;Migrating;Verifying;Succeeded;Reverted;Failed;Stopped
	// +optional
	Phase RebalancePhase `json:"phase,omitempty"`

	// Message says why it is where it is.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Message string `json:"message,omitempty"`

	// ObservedGeneration is the generation of the spec that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Conditions: Progressing, Approved, Complete.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Effect of the plan, predicted and measured.
	// +optional
	Effect *Effect `json:"effect,omitempty"`

	// Steps of the plan.
	// +optional
	Steps *Steps `json:"steps,omitempty"`

	// Moved is what the handoffs have moved.
	// +optional
	Moved *Moved `json:"moved,omitempty"`

	// Pauses of the vertices that moved.
	// +optional
	Pauses *Pauses `json:"pauses,omitempty"`

	// Reasons of the plan, the weightiest first.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	Reasons []string `json:"reasons,omitempty"`

	// FromEpoch is the epoch that the plan started from.
	// +optional
	FromEpoch int64 `json:"fromEpoch,omitempty"`

	// Epoch is the epoch reached.
	// +optional
	Epoch int64 `json:"epoch,omitempty"`

	// GraphVertices of the workload graph that was partitioned.
	// +optional
	GraphVertices int64 `json:"graphVertices,omitempty"`

	// GraphEdges of the workload graph that was partitioned.
	// +optional
	GraphEdges int64 `json:"graphEdges,omitempty"`

	// PartitionTime is the time spent in the partitioner.
	// +optional
	PartitionTime *metav1.Duration `json:"partitionTime,omitempty"`

	// StartTime is when the oracle took the rebalance up.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`

	// CompletionTime is when it ended.
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
}

// Rebalance is the life of one plan: from observing the workload to data that
// moved and an effect that was measured.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=krb,categories={all,kolocate}
// +kubebuilder:printcolumn:name="Store",type=string,JSONPath=`.spec.storeRef.name`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Steps",type=string,JSONPath=`.status.steps.summary`
// +kubebuilder:printcolumn:name="Before",type=string,JSONPath=`.status.effect.before.mpoShare`
// +kubebuilder:printcolumn:name="Predicted",type=string,JSONPath=`.status.effect.predicted.mpoShare`
// +kubebuilder:printcolumn:name="After",type=string,JSONPath=`.status.effect.after.mpoShare`
// +kubebuilder:printcolumn:name="Moved",type=integer,JSONPath=`.status.moved.vertices`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$') && self.metadata.name.size() <= 50",message="the name of a Rebalance must be 1 to 50 lower case letters, digits and dashes: its Job is named after it"
type Rebalance struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec RebalanceSpec `json:"spec"`
	// +optional
	Status RebalanceStatus `json:"status,omitzero"`
}

// RebalanceList is a list of Rebalances.
//
// +kubebuilder:object:root=true
type RebalanceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Rebalance `json:"items"`
}
