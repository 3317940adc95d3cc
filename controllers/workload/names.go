// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package workload owns what all pods of a store have in common: names, labels,
// addresses and the restricted security settings. It never talks to Kubernetes.
// The controllers of Store and Rebalance build their objects with it.
package workload

import (
	"fmt"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kolocate/kolocate/api/v1alpha1"
)

// Ports that the programs of a store listen on.
const (
	PortShard         = 7000
	PortShardMetrics  = 7001
	PortOracle        = 7100
	PortOracleMetrics = 7101
	PortEdge          = 8080
	PortEdgeAdmin     = 9901
)

// Components of a store, as the label app.kubernetes.io/component says them.
const (
	ComponentShard       = "shard"
	ComponentOracle      = "oracle"
	ComponentEdge        = "edge"
	ComponentPartitioner = "partitioner"
)

// Well-known labels.
const (
	labelName      = "app.kubernetes.io/name"
	labelInstance  = "app.kubernetes.io/instance"
	labelComponent = "app.kubernetes.io/component"
	labelManagedBy = "app.kubernetes.io/managed-by"
)

// ManagedBy is the value of app.kubernetes.io/managed-by on everything that the
// operator makes.
const ManagedBy = "kolocate-operator"

// Shard is the name of the StatefulSet, Service and PodDisruptionBudget of a shard.
func Shard(store string, shard int32) string { return fmt.Sprintf("%s-shard-%d", store, shard) }

// Oracle is the name of the oracle's StatefulSet and headless Service.
func Oracle(store string) string { return store + "-oracle" }

// OracleClient is the name of the Service that leads to the ready oracle replicas.
func OracleClient(store string) string { return store + "-oracle-client" }

// Edge is the name of Envoy's Deployment, Service and ConfigMap.
func Edge(store string) string { return store + "-edge" }

// Job is the name of the partitioner's Job of a rebalance.
func Job(rebalance string) string { return rebalance + "-partition" }

// Selector gives the labels that find the pods of one component.
func Selector(store, component string) map[string]string {
	return map[string]string{labelName: "kolocate", labelInstance: store, labelComponent: component}
}

// ShardSelector gives the labels that find the pods of one shard.
func ShardSelector(store string, shard int32) map[string]string {
	labels := Selector(store, ComponentShard)
	labels[v1alpha1.LabelShard] = fmt.Sprint(shard)
	return labels
}

// Labels gives the labels of an object of a store, selector included.
func Labels(store string, selector map[string]string) map[string]string {
	labels := maps.Clone(selector)
	if labels == nil {
		labels = map[string]string{labelName: "kolocate", labelInstance: store}
	}
	labels[labelManagedBy] = ManagedBy
	labels[v1alpha1.LabelStore] = store
	return labels
}

// Meta gives the metadata of an object of a store.
func Meta(store *v1alpha1.Store, name string, selector map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: store.Namespace, Labels: Labels(store.Name, selector)}
}

// PodAddress is the address under which pod ordinal of a StatefulSet is known,
// ready or not, as long as its headless Service publishes unready pods.
func PodAddress(set, namespace string, ordinal int32, port int) string {
	return fmt.Sprintf("%s-%d.%s.%s.svc:%d", set, ordinal, set, namespace, port)
}

// OracleAddresses gives the address of every oracle replica of a store.
func OracleAddresses(store *v1alpha1.Store) []string {
	name := Oracle(store.Name)
	addresses := make([]string, 0, store.Spec.Oracle.Replicas)
	for ordinal := range store.Spec.Oracle.Replicas {
		addresses = append(addresses, PodAddress(name, store.Namespace, ordinal, PortOracle))
	}
	return addresses
}

// EdgeAddress is the address that clients in the cluster use.
func EdgeAddress(store *v1alpha1.Store) string {
	return fmt.Sprintf("%s.%s.svc:%d", Edge(store.Name), store.Namespace, PortEdge)
}
