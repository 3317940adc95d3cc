// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"sync"
	"time"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	planv1 "github.com/kolocate/kolocate/api/proto/plan/v1"
	"github.com/kolocate/kolocate/services/keyspace"
	"github.com/kolocate/kolocate/services/oracle/graph"
)

// tracer guards the workload graph and the snapshot that the active rebalance
// is planned from. It is soft state of the leader. It is safe for concurrent use.
type tracer struct {
	mu       sync.Mutex
	graph    *graph.Graph
	snapshot *planv1.Graph
	// name is the rebalance that the snapshot was taken for.
	name string
}

func newTracer(store string) *tracer {
	return &tracer{graph: graph.New(graph.Config{Store: store, Seed: 1})}
}

func (t *tracer) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.graph.Reset()
	t.snapshot, t.name = nil, ""
}

func (t *tracer) merge(r *oraclev1.ReportRequest, now time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.graph.Merge(r, now)
}

func (t *tracer) size() (vertices, edges uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v, e := t.graph.Size()
	return uint64(v), uint64(e) //nolint:gosec // sizes
}

// take makes a snapshot of the graph at a placement. With the name of a
// rebalance it is kept for it.
func (t *tracer) take(name string, p *keyspace.Placement, r reading, shards uint32, now time.Time) *planv1.Graph {
	options := graph.SnapshotOptions{Now: now, MPOShare: r.mpoShare(), Imbalance: r.imbalance(shards)}
	for shard := keyspace.ShardID(1); uint32(shard) <= shards; shard++ {
		options.Shards = append(options.Shards, shard)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	snapshot := t.graph.Snapshot(p, options)
	if name != "" {
		t.snapshot, t.name = snapshot, name
	}
	return snapshot
}

// taken returns the snapshot that was taken for a rebalance, or nil.
func (t *tracer) taken(name string) *planv1.Graph {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.name != name {
		return nil
	}
	return t.snapshot
}
