// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"time"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/services/keyspace"
	"github.com/kolocate/kolocate/services/oracle/directory"
)

// statusWindow is what the rates in a status are taken over.
const statusWindow = 10 * time.Second

// status returns what this leader knows of the store.
func (o *Oracle) status(now time.Time) *oraclev1.StoreStatus {
	r := o.registry.since(now.Add(-statusWindow), now)
	s := &oraclev1.StoreStatus{Version: o.config.Version, MpoShare: r.mpoShare(), CommandsPerSecond: float64(r.commands) / r.seconds}
	s.GraphVertices, s.GraphEdges = o.tracer.size()
	s.EdgeEpoch, s.EdgeAcknowledgedEpoch = o.edgeEpoch.Load(), uint64(o.edge.AcknowledgedEpoch())
	s.Trigger = o.conductor.Load().triggerAnswer()
	o.machine.view(func(d *directory.Directory) {
		s.Store = d.Store()
		if !d.Founded() {
			return
		}
		s.Epoch, s.Overrides, s.Policy = uint64(d.Placement().Epoch()), uint32(d.Placement().Overrides()), d.Policy() //nolint:gosec // bounded by the policy
		s.Imbalance = r.imbalance(d.Shards())
		if active := d.Active(); active != nil {
			s.ActiveRebalance = active.GetRebalance().GetName()
		}
		s.Shards = o.shardStatuses(d, r)
	})
	return s
}

func (o *Oracle) shardStatuses(d *directory.Directory, r reading) []*oraclev1.ShardStatus {
	shards := make([]*oraclev1.ShardStatus, d.Shards())
	for i, e := range o.registry.endpoints(d.Shards()) {
		s := &oraclev1.ShardStatus{Shard: e.GetShard(), Replicas: e.GetReplicas(), CommandsPerSecond: float64(r.load[e.GetShard()]) / r.seconds}
		leader, ok := o.registry.leader(e.GetShard())
		switch {
		case !ok:
			s.Message = "no leader has reported yet"
		case !leader.initialised:
			s.Message = "the leader waits for its first log entry"
		default:
			s.Ready = true
			s.Keys, s.Bytes = leader.counters.GetKeys(), leader.counters.GetBytes()
		}
		shards[i] = s
	}
	slots, overrides := d.Placement().Counts()
	for _, s := range shards {
		s.Slots, s.OverridesIn = uint64(slots[keyspace.ShardID(s.GetShard())]), uint64(overrides[keyspace.ShardID(s.GetShard())]) //nolint:gosec // counts
	}
	return shards
}

// epochKnownEverywhere is the newest epoch that no live replica, nor any Envoy
// that is connected, has yet to learn of.
func (o *Oracle) epochKnownEverywhere(now time.Time) uint64 {
	var epoch uint64
	o.machine.view(func(d *directory.Directory) { epoch = uint64(d.Placement().Epoch()) })
	if edge := uint64(o.edge.AcknowledgedEpoch()); edge > 0 {
		epoch = min(epoch, edge)
	}
	return o.registry.knownEverywhere(epoch, now)
}

// sampleRate is the rate with which shards should sample commands now: all of
// them while a rebalance watches, otherwise none; the counters always run.
func (o *Oracle) sampleRate() (rate float64) {
	o.machine.view(func(d *directory.Directory) {
		if active := d.Active(); active != nil && active.GetRebalance().GetPhase() == oraclev1.Phase_PHASE_TRACING {
			rate = 1
		}
	})
	return rate
}
