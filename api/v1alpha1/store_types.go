// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Share is a part of a whole with a percent sign, from 0% to 100%, with at most
// two decimals.
//
// +kubebuilder:validation:Pattern=`^(100(\.0{1,2})?|[0-9]{1,2}(\.[0-9]{1,2})?)%$`
// +kubebuilder:validation:MaxLength=8
type Share string

// Excess is how far something is over a mean, with a percent sign, from 0% to
// 999%, with at most two decimals.
//
// +kubebuilder:validation:Pattern=`^[0-9]{1,3}(\.[0-9]{1,2})?%$`
// +kubebuilder:validation:MaxLength=8
type Excess string

// PlacementPolicy says how keys find their shard.
//
// +kubebuilder:validation:Enum=Static;OnDemand;Optimized
type PlacementPolicy string

// Placement policies.
const (
	// PlacementStatic leaves every key at its slot's shard.
	PlacementStatic PlacementPolicy = "Static"
	// PlacementOnDemand is refused by validation in this version.
	PlacementOnDemand PlacementPolicy = "OnDemand"
	// PlacementOptimized moves keys by plan.
	PlacementOptimized PlacementPolicy = "Optimized"
)

// RebalancingMode says who may start a rebalance.
//
// +kubebuilder:validation:Enum=Auto;Manual;Off
type RebalancingMode string

// Rebalancing modes.
const (
	// RebalancingAuto lets the oracle start rebalances by its measures.
	RebalancingAuto RebalancingMode = "Auto"
	// RebalancingManual leaves the start to Rebalance objects that a person makes.
	RebalancingManual RebalancingMode = "Manual"
	// RebalancingOff refuses every rebalance.
	RebalancingOff RebalancingMode = "Off"
)

// Approval says who lets a plan move data.
//
// +kubebuilder:validation:Enum=Automatic;Manual
type Approval string

// Kinds of approval.
const (
	// ApprovalAutomatic lets every plan move data.
	ApprovalAutomatic Approval = "Automatic"
	// ApprovalManual waits for spec.approved of the Rebalance.
	ApprovalManual Approval = "Manual"
)

// StoreSpec is the wanted state of a store.
//
// +kubebuilder:validation:XValidation:rule="self.shards >= oldSelf.shards",message="spec.shards cannot shrink in this version: shards can only be added, because the data of a removed shard would have to move away first",fieldPath=".shards"
// +kubebuilder:validation:XValidation:rule="self.replicas == oldSelf.replicas",message="spec.replicas cannot change in this version: make a new Store with the wanted number and copy the data",fieldPath=".replicas"
type StoreSpec struct {
	// Shards is the number of partitions of the store. It can grow, not shrink.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	Shards int32 `json:"shards"`

	// Replicas is the number of copies of each shard: 1 survives no failure, 3
	// one, 5 two.
	// +kubebuilder:default=3
	// +kubebuilder:validation:Enum=1;3;5
	// +optional
	Replicas int32 `json:"replicas,omitempty"`

	// Resources of each shard replica.
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitzero"`

	// Storage of each shard replica.
	// +kubebuilder:default={size: "10Gi"}
	// +optional
	Storage Storage `json:"storage,omitzero"`

	// Placement of keys on shards.
	// +kubebuilder:default={policy: Optimized}
	// +optional
	Placement Placement `json:"placement,omitzero"`

	// Rebalancing says when and how fast keys move.
	// +kubebuilder:default={mode: Auto}
	// +optional
	Rebalancing Rebalancing `json:"rebalancing,omitzero"`

	// Edge is the Envoy in front of the shards.
	// +kubebuilder:default={replicas: 1}
	// +optional
	Edge Edge `json:"edge,omitzero"`

	// Oracle keeps the placement and the workload graph.
	// +kubebuilder:default={replicas: 1}
	// +optional
	Oracle Oracle `json:"oracle,omitzero"`

	// Partitioner is the Job that makes the plan of a rebalance.
	// +optional
	Partitioner Partitioner `json:"partitioner,omitzero"`

	// Images replaces images that the operator was installed with.
	// +optional
	Images Images `json:"images,omitzero"`

	// PodTemplate is laid over every pod of the store.
	// +optional
	PodTemplate PodTemplate `json:"podTemplate,omitzero"`
}

// Storage of a replica.
//
// +kubebuilder:validation:XValidation:rule="quantity(string(self.size)).isGreaterThan(quantity('0'))",message="size must be greater than 0, for example 10Gi",fieldPath=".size"
// +kubebuilder:validation:XValidation:rule="quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) == 0",message="storage.size cannot change in this version: volumes are claimed once, when the store is made",fieldPath=".size"
// +kubebuilder:validation:XValidation:rule="has(self.storageClassName) == has(oldSelf.storageClassName) && (!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)",message="storage.storageClassName cannot change: volumes are claimed once, when the store is made"
type Storage struct {
	// Size of the volume claimed for each replica.
	// +kubebuilder:default="10Gi"
	// +optional
	Size resource.Quantity `json:"size,omitzero"`

	// StorageClassName of the claims; the default class of the cluster if absent.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	StorageClassName *string `json:"storageClassName,omitempty"`

	// Retention says what happens to the volumes when the Store is deleted:
	// Delete removes the data with it, Retain keeps the claims.
	// +kubebuilder:default=Delete
	// +kubebuilder:validation:Enum=Delete;Retain
	// +optional
	Retention string `json:"retention,omitempty"`
}

// Values of Storage.Retention.
const (
	// RetentionDelete removes the volumes with the Store.
	RetentionDelete = "Delete"
	// RetentionRetain keeps the volumes.
	RetentionRetain = "Retain"
)

// Placement of keys on shards.
//
// +kubebuilder:validation:XValidation:rule="self.policy != 'OnDemand'",message="placement.policy OnDemand does not exist yet: use Static (keys never move) or Optimized (keys move by plan)",fieldPath=".policy"
type Placement struct {
	// Policy is Static (keys never move) or Optimized (keys move by plan).
	// +kubebuilder:default=Optimized
	// +optional
	Policy PlacementPolicy `json:"policy,omitempty"`
}

// Rebalancing says when keys move, and within which limits.
type Rebalancing struct {
	// Mode is Auto (the oracle starts rebalances by its measures), Manual
	// (Rebalance objects made by a person start them) or Off.
	// +kubebuilder:default=Auto
	// +optional
	Mode RebalancingMode `json:"mode,omitempty"`

	// Approval of plans: Automatic, or Manual (spec.approved of the Rebalance).
	// +kubebuilder:default=Automatic
	// +optional
	Approval Approval `json:"approval,omitempty"`

	// MPOShareThreshold is the share of multi-shard commands from which a
	// rebalance is worth its while.
	// +kubebuilder:default="5%"
	// +optional
	MPOShareThreshold Share `json:"mpoShareThreshold,omitempty"`

	// ImbalanceThreshold is how far the busiest shard may be over the mean load
	// before a rebalance starts.
	// +kubebuilder:default="50%"
	// +optional
	ImbalanceThreshold Excess `json:"imbalanceThreshold,omitempty"`

	// MinimumGain is the predicted fall of the share of multi-shard commands, in
	// points, below which a plan is dropped.
	// +kubebuilder:default="1%"
	// +optional
	MinimumGain Share `json:"minimumGain,omitempty"`

	// Cooldown is the time between the end of a rebalance and the next start.
	// +kubebuilder:default="1m"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('168h')",message="must be from 1s to 168h"
	// +optional
	Cooldown *metav1.Duration `json:"cooldown,omitempty"`

	// Window over which the workload is observed.
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="must be from 1s to 24h"
	// +optional
	Window *metav1.Duration `json:"window,omitempty"`

	// ImbalanceTolerance is how far a plan may let the busiest shard be over the
	// mean load, from 0.1% to 100%.
	// +kubebuilder:default="10%"
	// +kubebuilder:validation:XValidation:rule="self != '0%' && !self.matches('^0?0[.]0[0-9]?%$') && self != '00%'",message="must be from 0.1% to 100%: no plan balances better"
	// +optional
	ImbalanceTolerance Share `json:"imbalanceTolerance,omitempty"`

	// Preconfiguration of the graph partitioner: speed against quality.
	// +kubebuilder:default=fastsocial
	// +kubebuilder:validation:Enum=fast;eco;strong;fastsocial;ecosocial;strongsocial
	// +optional
	Preconfiguration string `json:"preconfiguration,omitempty"`

	// MaxMoves bounds the vertices that one rebalance moves.
	// +kubebuilder:default=100000
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000000
	// +optional
	MaxMoves int32 `json:"maxMoves,omitempty"`

	// MaxBytes bounds the bytes that one rebalance moves.
	// +kubebuilder:default="64Gi"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="must be greater than 0, for example 64Gi"
	// +optional
	MaxBytes *resource.Quantity `json:"maxBytes,omitempty"`

	// Rate bounds the bytes per second that handoffs copy, at both ends.
	// +kubebuilder:default="64Mi"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="must be greater than 0, for example 64Mi"
	// +optional
	Rate *resource.Quantity `json:"rate,omitempty"`

	// ConcurrentHandoffs is the number of handoffs under way at the same moment.
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	// +optional
	ConcurrentHandoffs int32 `json:"concurrentHandoffs,omitempty"`

	// MaxOverrides bounds the vertices placed one by one; the others follow their slot.
	// +kubebuilder:default=50000
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	// +optional
	MaxOverrides int32 `json:"maxOverrides,omitempty"`

	// MinimumCommands is the number of commands in the window below which the
	// measures say nothing.
	// +kubebuilder:default=1000
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000000
	// +optional
	MinimumCommands int64 `json:"minimumCommands,omitempty"`

	// StepVertices is the number of vertices handed over in one step.
	// +kubebuilder:default=64
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4096
	// +optional
	StepVertices int32 `json:"stepVertices,omitempty"`
}
