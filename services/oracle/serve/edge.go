// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/kolocate/kolocate/services/edge/ir"
	"github.com/kolocate/kolocate/services/keyspace"
	"github.com/kolocate/kolocate/services/oracle/directory"
)

// edgePause is the shortest time between two publications, so that a burst of
// epochs reaches Envoy as one.
const edgePause = 20 * time.Millisecond

// Edge publishes to the Envoys of a store. The edge's server is one.
type Edge interface {
	RegisterOn(registrar grpc.ServiceRegistrar)
	// Update publishes what Envoy must know now.
	Update(edge ir.Edge) error
	// AcknowledgedEpoch is the lowest epoch over the connected Envoys, 0 with none.
	AcknowledgedEpoch() keyspace.Epoch
	// Close ends the connections to the Envoys.
	Close()
}

// feedEdge publishes each change of placement, addresses or leaders to the
// Envoys until the context ends.
func (o *Oracle) feedEdge(ctx context.Context) {
	for {
		placementChanged, shardsChanged := o.machine.changes(), o.registry.changes()
		if edge := o.buildEdge(); edge != nil {
			if err := o.edge.Update(*edge); err != nil {
				o.log.Error("the edge keeps what it had", "reason", err)
			} else {
				o.edgeEpoch.Store(uint64(edge.Epoch))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-placementChanged:
		case <-shardsChanged:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(edgePause):
		}
	}
}

// buildEdge returns what Envoy must know now; nil before the store is founded.
func (o *Oracle) buildEdge() (edge *ir.Edge) {
	o.machine.view(func(d *directory.Directory) {
		if !d.Founded() {
			return
		}
		p := d.Placement()
		edge = &ir.Edge{
			Epoch: p.Epoch(), Store: d.Store(), Listener: o.config.EnvoyListener,
			MaxOverrides: int(d.Policy().GetMaxOverrides()), Oracle: o.config.EdgeOracleAddresses,
		}
		for slot := range keyspace.Slots {
			edge.Slots[slot] = p.ShardOfSlot(keyspace.Slot(slot))
		}
		for _, move := range p.OverridesSorted() {
			edge.Overrides = append(edge.Overrides, ir.Override{Vertex: move.Vertex, Shard: move.To})
		}
		for _, e := range o.registry.endpoints(d.Shards()) {
			shard := ir.Shard{ID: keyspace.ShardID(e.GetShard())}
			for _, r := range e.GetReplicas() {
				shard.Replicas = append(shard.Replicas, ir.Endpoint{Address: r.GetAddress(), Leader: r.GetLeader()})
			}
			edge.Shards = append(edge.Shards, shard)
		}
	})
	return edge
}
