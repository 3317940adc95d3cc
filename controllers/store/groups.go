// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kolocate/kolocate/api/v1alpha1"
	"github.com/kolocate/kolocate/controllers/workload"
)

// shardObjects gives the StatefulSet, headless Service and PodDisruptionBudget
// of one shard.
func shardObjects(store *v1alpha1.Store, shard int32, in inputs) []client.Object {
	m := member{
		name:      workload.Shard(store.Name, shard),
		selector:  workload.ShardSelector(store.Name, shard),
		replicas:  store.Spec.Replicas,
		grpcPort:  workload.PortShard,
		metrics:   workload.PortShardMetrics,
		storage:   store.Spec.Storage,
		resources: store.Spec.Resources,
		image:     in.images.Kolocate,
	}
	m.args = []string{
		"shard",
		"--store=" + store.Name,
		fmt.Sprintf("--shard=%d", shard),
		"--pod-name=$(POD_NAME)",
		"--peers=" + m.peers(store.Namespace),
		"--data=" + dataPath,
		"--listen=" + listen(m.grpcPort),
		"--metrics=" + listen(m.metrics),
		// Envoy takes endpoints by IP address alone.
		"--advertise=$(POD_IP)" + listen(m.grpcPort),
		"--oracle=" + strings.Join(workload.OracleAddresses(store), ","),
	}
	return []client.Object{
		headless(store, m.name, m.selector, port("grpc", m.grpcPort), port("metrics", m.metrics)),
		disruption(store, m.name, m.selector),
		m.statefulSet(store),
	}
}

// oracleObjects gives the StatefulSet, both Services and the
// PodDisruptionBudget of the oracle.
func oracleObjects(store *v1alpha1.Store, in inputs) []client.Object {
	m := member{
		name:      workload.Oracle(store.Name),
		selector:  workload.Selector(store.Name, workload.ComponentOracle),
		replicas:  store.Spec.Oracle.Replicas,
		grpcPort:  workload.PortOracle,
		metrics:   workload.PortOracleMetrics,
		storage:   store.Spec.Oracle.Storage,
		resources: store.Spec.Oracle.Resources,
		image:     in.images.Kolocate,
	}
	m.args = []string{
		"oracle",
		"--store=" + store.Name,
		"--pod-name=$(POD_NAME)",
		"--peers=" + m.peers(store.Namespace),
		"--data=" + dataPath,
		"--listen=" + listen(m.grpcPort),
		"--metrics=" + listen(m.metrics),
		fmt.Sprintf("--shards=%d", in.initialShards),
		fmt.Sprintf("--listener=0.0.0.0:%d", workload.PortEdge),
		"--partitioner=external",
		// The operator sets the policy once the oracle answers; until then
		// nothing is to move.
		"--rebalancing=" + string(v1alpha1.RebalancingOff),
	}
	set := m.statefulSet(store)
	set.Annotations = map[string]string{v1alpha1.AnnotationInitialShards: strconv.Itoa(int(in.initialShards))}
	return []client.Object{
		headless(store, m.name, m.selector, port("grpc", m.grpcPort), port("metrics", m.metrics)),
		&corev1.Service{
			ObjectMeta: workload.Meta(store, workload.OracleClient(store.Name), m.selector),
			Spec:       corev1.ServiceSpec{Selector: m.selector, Ports: []corev1.ServicePort{port("grpc", m.grpcPort)}},
		},
		disruption(store, m.name, m.selector),
		set,
	}
}
