// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"math"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kolocate/kolocate/api/v1alpha1"
	"github.com/kolocate/kolocate/controllers/workload"
)

// Phases of a Store.
const (
	phaseStarting    = "Starting"
	phaseReady       = "Ready"
	phaseRebalancing = "Rebalancing"
	phaseDegraded    = "Degraded"
)

// Reasons of the conditions Ready and Progressing, beside those of faults.
const (
	reasonServing      = "Serving"
	reasonSettled      = "Settled"
	reasonRollout      = "PodsStarting"
	reasonOracleStarts = "OracleStarting"
	reasonShardsStart  = "ShardsStarting"
	reasonEdgeStarts   = "EdgeStarting"
	reasonRebalancing  = "Rebalancing"
	reasonNoFault      = "NoFault"
)

// observe gives the status of a store from what a pass gathered. It keeps the
// numbers of the oracle's last answer while it gives none.
func observe(g *gathered, now time.Time) v1alpha1.StoreStatus {
	store := g.store
	status := *store.Status.DeepCopy()
	status.ObservedGeneration = store.Generation
	status.Selector = labels.SelectorFromSet(workload.Selector(store.Name, workload.ComponentShard)).String()
	status.Endpoint = workload.EdgeAddress(store)
	status.Shards, status.ReadyShards = int32(len(g.shards)), 0 //nolint:gosec // at most 64
	for _, set := range g.shards {
		if serving(set) {
			status.ReadyShards++
		}
	}
	status.Ready = fmt.Sprintf("%d/%d", status.ReadyShards, store.Spec.Shards)
	if g.newest > 0 {
		status.LastRebalanceTime = new(metav1.NewMicroTime(time.UnixMilli(g.newest)))
	}
	if answer := g.status; answer != nil {
		status.Epoch = int64(min(answer.GetEpoch(), math.MaxInt64))
		status.Overrides = int32(min(answer.GetOverrides(), math.MaxInt32))
		status.MPOShare = v1alpha1.FormatPercent(answer.GetMpoShare())
		status.Imbalance = v1alpha1.FormatPercent(answer.GetImbalance())
		status.ActiveRebalance = answer.GetActiveRebalance()
		status.Trigger = answer.GetTrigger()
	}

	broken := g.problem
	if broken == nil {
		broken = findFault(g.pods, g.claims, now)
	}
	ready := readiness(g, broken)
	progressing := progress(g)
	degraded := condition(v1alpha1.ConditionDegraded, false, reasonNoFault, "no part is stuck")
	if broken != nil {
		degraded = condition(v1alpha1.ConditionDegraded, true, broken.reason, broken.message)
	}
	for _, c := range []metav1.Condition{ready, progressing, degraded} {
		c.ObservedGeneration = store.Generation
		meta.SetStatusCondition(&status.Conditions, c)
	}
	status.Phase = summary(ready, degraded, status.ActiveRebalance)
	return status
}

func summary(ready, degraded metav1.Condition, rebalance string) string {
	switch {
	case degraded.Status == metav1.ConditionTrue:
		return phaseDegraded
	case ready.Status != metav1.ConditionTrue:
		return phaseStarting
	case rebalance != "":
		return phaseRebalancing
	default:
		return phaseReady
	}
}

// readiness says whether clients can reach every key.
func readiness(g *gathered, broken *fault) metav1.Condition {
	no := func(reason, format string, args ...any) metav1.Condition {
		message := fmt.Sprintf(format, args...)
		if broken != nil {
			reason, message = broken.reason, message+": "+broken.message
		}
		return condition(v1alpha1.ConditionReady, false, reason, message)
	}
	spec := g.store.Spec
	if !serving(g.oracle) {
		return no(reasonOracleStarts, "the oracle has %d of %d replicas ready", readyReplicas(g.oracle), spec.Oracle.Replicas)
	}
	for shard := int32(1); shard <= spec.Shards; shard++ {
		if set := g.shards[shard]; !serving(set) {
			return no(reasonShardsStart, "shard %d has %d of %d replicas ready and needs %d", shard, readyReplicas(set), spec.Replicas, quorum(spec.Replicas))
		}
	}
	if g.edge == nil || g.edge.Status.ReadyReplicas < 1 {
		return no(reasonEdgeStarts, "no Envoy is ready")
	}
	if g.status == nil {
		return no(reasonOracleStarts, "the oracle does not answer")
	}
	if len(g.status.GetShards()) < int(spec.Shards) {
		return no(reasonShardsStart, "the oracle knows %d of %d shards", len(g.status.GetShards()), spec.Shards)
	}
	for _, shard := range g.status.GetShards() {
		if !shard.GetReady() {
			return no(reasonShardsStart, "shard %d does not serve: %s", shard.GetShard(), shard.GetMessage())
		}
	}
	return condition(v1alpha1.ConditionReady, true, reasonServing, fmt.Sprintf("%d shards serve", spec.Shards))
}

func progress(g *gathered) metav1.Condition {
	yes := func(reason, format string, args ...any) metav1.Condition {
		return condition(v1alpha1.ConditionProgressing, true, reason, fmt.Sprintf(format, args...))
	}
	if !settled(g.oracle) {
		return yes(reasonRollout, "pods of the oracle are starting")
	}
	for shard := int32(1); shard <= g.store.Spec.Shards; shard++ {
		if !settled(g.shards[shard]) {
			return yes(reasonRollout, "pods of shard %d are starting", shard)
		}
	}
	if e := g.edge; e == nil || e.Status.ObservedGeneration < e.Generation || e.Status.UpdatedReplicas < g.store.Spec.Edge.Replicas || e.Status.ReadyReplicas < g.store.Spec.Edge.Replicas {
		return yes(reasonRollout, "Envoy is starting")
	}
	if name := g.status.GetActiveRebalance(); name != "" {
		return yes(reasonRebalancing, "rebalance %s is under way", name)
	}
	return condition(v1alpha1.ConditionProgressing, false, reasonSettled, "everything is as wanted")
}

func readyReplicas(set *appsv1.StatefulSet) int32 {
	if set == nil {
		return 0
	}
	return set.Status.ReadyReplicas
}

func condition(kind string, is bool, reason, message string) metav1.Condition {
	status := metav1.ConditionFalse
	if is {
		status = metav1.ConditionTrue
	}
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
}
