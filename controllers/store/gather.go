// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/api/v1alpha1"
	"github.com/kolocate/kolocate/controllers/workload"
)

// gathered is all that a pass reads, and what its phases found out. decide and
// observe work on it without further I/O.
type gathered struct {
	// store is the object as read; the pass writes its status only at the end.
	store      *v1alpha1.Store
	shards     map[int32]*appsv1.StatefulSet
	oracle     *appsv1.StatefulSet
	edge       *appsv1.Deployment
	pods       []corev1.Pod
	claims     []corev1.PersistentVolumeClaim
	rebalances []v1alpha1.Rebalance
	// status is the oracle's answer of this pass; nil if it gave none.
	status *oraclev1.StoreStatus
	// newest is the time of the newest rebalance that was given an object.
	newest int64
	// problem is why the pass could not go on, if it could not.
	problem *fault
	// written counts the objects that this pass wrote.
	written int
}

func (r *Reconciler) gather(ctx context.Context, store *v1alpha1.Store) (*gathered, error) {
	g := &gathered{store: store, shards: map[int32]*appsv1.StatefulSet{}}
	if last := store.Status.LastRebalanceTime; last != nil {
		g.newest = last.UnixMilli()
	}
	in, mine := client.InNamespace(store.Namespace), client.MatchingLabels{v1alpha1.LabelStore: store.Name}
	var (
		sets        appsv1.StatefulSetList
		deployments appsv1.DeploymentList
		pods        corev1.PodList
		claims      corev1.PersistentVolumeClaimList
		rebalances  v1alpha1.RebalanceList
	)
	for _, list := range []client.ObjectList{&sets, &deployments, &pods, &claims} {
		if err := r.client.List(ctx, list, in, mine); err != nil {
			return nil, fmt.Errorf("listing the parts of store %s/%s (%T): %w", store.Namespace, store.Name, list, err)
		}
	}
	if err := r.client.List(ctx, &rebalances, in); err != nil {
		return nil, fmt.Errorf("listing the rebalances in namespace %s: %w", store.Namespace, err)
	}
	for i := range sets.Items {
		g.addSet(&sets.Items[i])
	}
	for i := range deployments.Items {
		if deployments.Items[i].Name == workload.Edge(store.Name) {
			g.edge = &deployments.Items[i]
		}
	}
	g.pods, g.claims = pods.Items, claims.Items
	for i := range rebalances.Items {
		if rebalances.Items[i].Spec.StoreRef.Name == store.Name {
			g.rebalances = append(g.rebalances, rebalances.Items[i])
		}
	}
	return g, nil
}

func (g *gathered) addSet(set *appsv1.StatefulSet) {
	if set.Name == workload.Oracle(g.store.Name) {
		g.oracle = set
		return
	}
	shard, err := strconv.ParseInt(set.Labels[v1alpha1.LabelShard], 10, 32)
	if err != nil || set.Name != workload.Shard(g.store.Name, int32(shard)) {
		return
	}
	g.shards[int32(shard)] = set
}

// initialShards is what the oracle was first started with, or is about to be.
func (g *gathered) initialShards() int32 {
	if g.oracle != nil {
		if n, err := strconv.ParseInt(g.oracle.Annotations[v1alpha1.AnnotationInitialShards], 10, 32); err == nil && n > 0 {
			return int32(n)
		}
	}
	return g.store.Spec.Shards
}

// quorum is the number of replicas of a set without which it cannot serve.
func quorum(replicas int32) int32 { return replicas/2 + 1 }

// serving says whether a StatefulSet has a quorum of ready pods.
func serving(set *appsv1.StatefulSet) bool {
	return set != nil && set.Spec.Replicas != nil && set.Status.ReadyReplicas >= quorum(*set.Spec.Replicas)
}

// settled says whether a StatefulSet has all its pods ready and up to date.
func settled(set *appsv1.StatefulSet) bool {
	return set != nil && set.Spec.Replicas != nil &&
		set.Status.ObservedGeneration >= set.Generation &&
		set.Status.ReadyReplicas >= *set.Spec.Replicas &&
		set.Status.UpdatedReplicas >= *set.Spec.Replicas
}
