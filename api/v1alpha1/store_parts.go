// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Edge is the Envoy in front of the shards.
type Edge struct {
	// Replicas of Envoy.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=32
	// +optional
	Replicas int32 `json:"replicas,omitempty"`

	// Resources of each Envoy.
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitzero"`

	// ServiceType of the Service that clients use.
	// +kubebuilder:default=ClusterIP
	// +kubebuilder:validation:Enum=ClusterIP;NodePort;LoadBalancer
	// +optional
	ServiceType corev1.ServiceType `json:"serviceType,omitempty"`
}

// Oracle keeps the placement and the workload graph.
//
// +kubebuilder:validation:XValidation:rule="self.replicas == oldSelf.replicas",message="oracle.replicas cannot change in this version: it is fixed when the store is made",fieldPath=".replicas"
type Oracle struct {
	// Replicas of the oracle: 1 survives no failure, 3 one. Without the oracle
	// commands are served, but nothing moves.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Enum=1;3
	// +optional
	Replicas int32 `json:"replicas,omitempty"`

	// Resources of each oracle replica.
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitzero"`

	// Storage of each oracle replica.
	// +kubebuilder:default={size: "1Gi"}
	// +optional
	Storage Storage `json:"storage,omitzero"`
}

// Partitioner is the Job that makes the plan of a rebalance.
type Partitioner struct {
	// Resources of the Job's container.
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitzero"`
}

// Images replaces images that the operator was installed with.
type Images struct {
	// Kolocate runs shards and oracle.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Kolocate string `json:"kolocate,omitempty"`

	// Partitioner makes plans.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Partitioner string `json:"partitioner,omitempty"`

	// Envoy runs the edge.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Envoy string `json:"envoy,omitempty"`

	// PullPolicy of all images; the default of Kubernetes if absent.
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	// +optional
	PullPolicy corev1.PullPolicy `json:"pullPolicy,omitempty"`

	// PullSecrets name Secrets in the namespace of the Store.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	PullSecrets []corev1.LocalObjectReference `json:"pullSecrets,omitempty"`
}

// PodTemplate is laid over every pod of the store.
type PodTemplate struct {
	// Labels added to every pod. Those that Kolocate sets win.
	// +kubebuilder:validation:MaxProperties=32
	// +optional
	Labels map[string]string `json:"labels,omitempty"`

	// Annotations added to every pod. Those that Kolocate sets win.
	// +kubebuilder:validation:MaxProperties=32
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`

	// NodeSelector of every pod.
	// +kubebuilder:validation:MaxProperties=32
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// Tolerations of every pod.
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// Affinity of every pod.
	// +optional
	Affinity *corev1.Affinity `json:"affinity,omitempty"`

	// PriorityClassName of every pod.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	PriorityClassName string `json:"priorityClassName,omitempty"`
}

// StoreStatus is the observed state of a store.
type StoreStatus struct {
	// Phase sums the conditions up: Pending, Starting, Ready, Rebalancing or Degraded.
	// +optional
	Phase string `json:"phase,omitempty"`

	// ObservedGeneration is the generation of the spec that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Conditions: Ready, Progressing, Degraded.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Shards that exist.
	// +optional
	Shards int32 `json:"shards,omitempty"`

	// ReadyShards are those with a quorum of ready replicas.
	// +optional
	ReadyShards int32 `json:"readyShards"`

	// Ready is readyShards of the wanted number, for people.
	// +optional
	Ready string `json:"ready,omitempty"`

	// Epoch of the placement.
	// +optional
	Epoch int64 `json:"epoch,omitempty"`

	// Overrides in force.
	// +optional
	Overrides int32 `json:"overrides,omitempty"`

	// MPOShare is the measured share of multi-shard commands.
	// +optional
	MPOShare string `json:"mpoShare,omitempty"`

	// Imbalance is how far the busiest shard is over the mean load.
	// +optional
	Imbalance string `json:"imbalance,omitempty"`

	// Endpoint is the address that clients in the cluster use.
	// +optional
	Endpoint string `json:"endpoint,omitempty"`

	// ActiveRebalance names the Rebalance under way.
	// +optional
	ActiveRebalance string `json:"activeRebalance,omitempty"`

	// LastRebalanceTime is when the newest rebalance was made, of those that
	// were given an object.
	// +optional
	LastRebalanceTime *metav1.MicroTime `json:"lastRebalanceTime,omitempty"`

	// Trigger is the last answer of the oracle to whether a rebalance is due, and why.
	// +optional
	Trigger string `json:"trigger,omitempty"`

	// Selector finds the pods of the shards, for the scale subresource.
	// +optional
	Selector string `json:"selector,omitempty"`
}

// Store is a replicated, linearizable key-value store that places keys which are
// used together in the same shard.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.shards,statuspath=.status.shards,selectorpath=.status.selector
// +kubebuilder:resource:shortName=kst,categories={all,kolocate}
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Shards",type=string,JSONPath=`.status.ready`
// +kubebuilder:printcolumn:name="Replicas",type=integer,JSONPath=`.spec.replicas`
// +kubebuilder:printcolumn:name="Epoch",type=integer,JSONPath=`.status.epoch`
// +kubebuilder:printcolumn:name="MPO",type=string,JSONPath=`.status.mpoShare`
// +kubebuilder:printcolumn:name="Imbalance",type=string,JSONPath=`.status.imbalance`
// +kubebuilder:printcolumn:name="Rebalance",type=string,JSONPath=`.status.activeRebalance`
// +kubebuilder:printcolumn:name="Endpoint",type=string,JSONPath=`.status.endpoint`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && self.metadata.name.size() <= 40",message="the name of a Store must be 1 to 40 lower case letters, digits and dashes, beginning with a letter: Services and pods are named after it"
type Store struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec StoreSpec `json:"spec"`
	// +optional
	Status StoreStatus `json:"status,omitzero"`
}

// StoreList is a list of Stores.
//
// +kubebuilder:object:root=true
type StoreList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Store `json:"items"`
}
