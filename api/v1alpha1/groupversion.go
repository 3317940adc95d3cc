// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 owns the Kubernetes objects of Kolocate: Store and Rebalance
// in kolocate.io/v1alpha1. It holds types, validation rules and defaults, never
// behaviour. The operator, the command line and users of the API import it.
//
// +kubebuilder:object:generate=true
// +groupName=kolocate.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of every kind in this package.
var GroupVersion = schema.GroupVersion{Group: "kolocate.io", Version: "v1alpha1"}

// AddToScheme adds the kinds of this package to a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &Store{}, &StoreList{}, &Rebalance{}, &RebalanceList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}

// Labels and annotations that Kolocate sets.
const (
	// LabelStore names the Store that an object belongs to.
	LabelStore = "kolocate.io/store"
	// LabelShard is the number of the shard that an object belongs to.
	LabelShard = "kolocate.io/shard"
	// LabelRebalance names the Rebalance that an object belongs to.
	LabelRebalance = "kolocate.io/rebalance"
	// AnnotationApplied is the hash of what the operator last applied.
	AnnotationApplied = "kolocate.io/applied"
	// AnnotationConfig is the hash of the configuration that a pod reads at its start.
	AnnotationConfig = "kolocate.io/config"
	// AnnotationInitialShards is the number of shards that the oracle was first started with.
	AnnotationInitialShards = "kolocate.io/initial-shards"
)

// Condition types of a Store and of a Rebalance.
const (
	// ConditionReady is true when every part of the store serves.
	ConditionReady = "Ready"
	// ConditionProgressing is true while parts are made or replaced, or a rebalance runs.
	ConditionProgressing = "Progressing"
	// ConditionDegraded is true when a part cannot come up by itself.
	ConditionDegraded = "Degraded"
	// ConditionApproved is true when a rebalance may move data.
	ConditionApproved = "Approved"
	// ConditionComplete is true when a rebalance has ended.
	ConditionComplete = "Complete"
)
