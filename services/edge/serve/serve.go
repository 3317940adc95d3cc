// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package serve owns the connection to the Envoys of a store: it publishes
// snapshots by ADS (delta xDS) and keeps account of what each Envoy acknowledged.
// It decides nothing about placement. The oracle calls Update at each new epoch.
package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	deltav3 "github.com/envoyproxy/go-control-plane/pkg/server/delta/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/kolocate/kolocate/services/edge/ir"
	"github.com/kolocate/kolocate/services/edge/snapshot"
	"github.com/kolocate/kolocate/services/keyspace"
)

// ErrRefused says that an Envoy refused what was published. It goes on with
// what it had before.
var ErrRefused = errors.New("envoy refused the configuration")

// allEnvoys is the key of the one snapshot that every Envoy of the store gets.
const allEnvoys = "all"

// history bounds the published contents that an acknowledgement is matched with.
const history = 64

// Config of a Server. Logger and Registerer may be nil.
type Config struct {
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	// Settle is how long the first publication waits for shards of which no
	// replica is known yet, so that an oracle that starts anew does not take from
	// Envoy what it has. 0 means 3 s, a negative duration not at all.
	Settle time.Duration
}

const defaultSettle = 3 * time.Second

// Server publishes to all Envoys that connect. Its methods may be called concurrently.
type Server struct {
	log     *slog.Logger
	metrics *metrics
	cache   cachev3.SnapshotCache
	xds     deltav3.Server
	stop    context.CancelFunc

	// updates lets one Update at a time build and publish, and guards these.
	updates sync.Mutex
	settle  time.Duration
	// pending is the newest edge while the first publication waits for timer.
	pending *ir.Edge
	timer   *time.Timer
	// known are the replicas that each shard had last.
	known map[keyspace.ShardID][]ir.Endpoint

	mu        sync.Mutex
	published []*publication // oldest first
	envoys    map[int64]*envoy
	changed   chan struct{} // closed and renewed when an Envoy acknowledges, refuses, comes or goes
}

// publication is one content that was published, at the newest epoch it stood for.
type publication struct {
	snapshot *snapshot.Snapshot
	epoch    keyspace.Epoch
}

// New returns a server that has nothing to publish yet. Close ends it.
func New(config Config) (*Server, error) {
	ctx, stop := context.WithCancel(context.Background())
	s := &Server{
		log:     config.Logger,
		cache:   cachev3.NewSnapshotCache(true, oneNode{}, quiet{}),
		stop:    stop,
		settle:  cmp.Or(config.Settle, defaultSettle),
		known:   make(map[keyspace.ShardID][]ir.Endpoint),
		envoys:  make(map[int64]*envoy),
		changed: make(chan struct{}),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	var err error
	if s.metrics, err = newMetrics(config.Registerer, s); err != nil {
		stop()
		return nil, fmt.Errorf("start edge: %w", err)
	}
	s.xds = deltav3.NewServer(ctx, s.cache, callbacks{s})
	return s, nil
}

// RegisterOn adds the aggregated discovery service to a gRPC server.
func (s *Server) RegisterOn(registrar grpc.ServiceRegistrar) {
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(registrar, discovery{delta: s.xds})
}

// discovery serves delta xDS only, as the bootstrap asks for.
type discovery struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	delta deltav3.Server
}

// DeltaAggregatedResources serves one Envoy until its stream or the server ends.
func (d discovery) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return d.delta.DeltaStreamHandler(stream, resourcev3.AnyType)
}

// Close ends all streams. Envoys keep what they have and connect again elsewhere.
func (s *Server) Close() {
	s.stop()
	s.updates.Lock()
	defer s.updates.Unlock()
	s.settled()
}

// Update publishes an edge. It returns an error, and what was published stays,
// if the edge is invalid or of an older epoch. An edge of equal content only
// raises the epoch. A shard without replicas keeps those it had last. At 50,000
// overrides it takes about a third of a second of one core, so a caller with
// many epochs should pass only the newest; Envoys that are slower get only the
// newest of what was published meanwhile.
func (s *Server) Update(edge ir.Edge) error {
	s.updates.Lock()
	defer s.updates.Unlock()
	if err := edge.Validate(); err != nil {
		return fmt.Errorf("update edge: %w", err)
	}
	if s.fill(&edge) || s.settle < 0 {
		return s.update(&edge)
	}
	s.pending = &edge
	if s.timer == nil {
		s.timer = time.AfterFunc(s.settle, s.publishPending)
	}
	return nil
}

// fill gives shards without replicas those they had last. It returns false
// while some shard never had any and the first publication may wait.
func (s *Server) fill(edge *ir.Edge) bool {
	complete := true
	edge.Shards = slices.Clone(edge.Shards)
	for i, shard := range edge.Shards {
		if len(shard.Replicas) > 0 {
			s.known[shard.ID] = shard.Replicas
			continue
		}
		edge.Shards[i].Replicas = s.known[shard.ID]
		complete = complete && len(s.known[shard.ID]) > 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return complete || len(s.published) > 0
}

func (s *Server) publishPending() {
	s.updates.Lock()
	defer s.updates.Unlock()
	if s.pending == nil {
		return // published meanwhile, or closed
	}
	if err := s.update(s.pending); err != nil {
		s.log.Error("the edge could not be published", "error", err)
	}
}

// settled ends the wait of the first publication. The caller holds updates.
func (s *Server) settled() {
	s.pending = nil
	if s.timer != nil {
		s.timer.Stop()
	}
}

// update builds and publishes. The caller holds updates.
func (s *Server) update(edge *ir.Edge) error {
	start := time.Now()
	built, err := snapshot.Build(edge)
	if err != nil {
		return fmt.Errorf("update edge: %w", err)
	}
	if err := s.publish(built); err != nil {
		return err
	}
	s.settled()
	s.metrics.updateSeconds.Observe(time.Since(start).Seconds())
	s.metrics.epoch.Set(float64(edge.Epoch))
	s.metrics.overrides.Set(float64(len(edge.Kept())))
	s.metrics.overridesDropped.Set(float64(edge.Dropped()))
	if dropped := edge.Dropped(); dropped > 0 {
		s.log.Warn("overrides beyond the bound are routed by their slot and forwarded there",
			"bound", len(edge.Kept()), "dropped", dropped, "epoch", edge.Epoch)
	}
	return nil
}

func (s *Server) publish(built *snapshot.Snapshot) error {
	fresh, err := s.record(built)
	if err != nil || !fresh {
		return err
	}
	if err := s.cache.SetSnapshot(context.Background(), allEnvoys, built); err != nil {
		return fmt.Errorf("publish edge snapshot %s: %w", built.Version(), err)
	}
	s.metrics.snapshots.Inc()
	s.log.Info("published edge snapshot", "version", built.Version(), "epoch", built.Epoch)
	return nil
}

// record notes a publication before any Envoy can acknowledge it, and says
// whether its content is new.
func (s *Server) record(built *snapshot.Snapshot) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.published) > 0 {
		newest := s.published[len(s.published)-1]
		if built.Epoch < newest.epoch {
			return false, fmt.Errorf("update edge: epoch %d is older than the published epoch %d; epochs only grow", built.Epoch, newest.epoch)
		}
		if built.Hash == newest.snapshot.Hash {
			newest.epoch = built.Epoch
			s.broadcast()
			return false, nil
		}
	}
	if len(s.published) == history {
		s.published = slices.Delete(s.published, 0, 1)
	}
	s.published = append(s.published, &publication{snapshot: built, epoch: built.Epoch})
	return true, nil
}

// AcknowledgedEpoch returns the lowest epoch over the connected Envoys of which
// each holds all resources; 0 if none is connected, or one holds none that
// this server knows.
func (s *Server) AcknowledgedEpoch() keyspace.Epoch {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lowest()
}

// lowest is AcknowledgedEpoch for a caller that holds mu.
func (s *Server) lowest() keyspace.Epoch {
	if len(s.envoys) == 0 {
		return 0
	}
	lowest := keyspace.Epoch(math.MaxUint64)
	for _, e := range s.envoys {
		lowest = min(lowest, e.epoch())
	}
	return lowest
}

// Await returns when every connected Envoy, and at least one, has acknowledged
// the epoch. It returns ErrRefused with Envoy's own words if one refuses what
// was last published, and the context's error if that ends first.
func (s *Server) Await(ctx context.Context, epoch keyspace.Epoch) error {
	for {
		s.mu.Lock()
		changed, acknowledged, refused := s.changed, s.lowest(), s.refusedNewest()
		s.mu.Unlock()
		if acknowledged >= epoch {
			return nil
		}
		if refused != "" {
			return fmt.Errorf("wait for epoch %d: %w: %s", epoch, ErrRefused, refused)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for epoch %d at the envoys, which acknowledged %d: %w", epoch, acknowledged, ctx.Err())
		}
	}
}

// refusedNewest is what the first Envoy by stream said that refused what was
// last published; "" if none did. The caller holds mu.
func (s *Server) refusedNewest() string {
	if len(s.published) == 0 {
		return ""
	}
	newest := s.published[len(s.published)-1].snapshot
	for _, stream := range slices.Sorted(maps.Keys(s.envoys)) {
		if text := s.envoys[stream].refusals(newest); text != "" {
			return fmt.Sprintf("%q: %s", s.envoys[stream].node, text)
		}
	}
	return ""
}

// Envoy is what is known of one connected Envoy.
type Envoy struct {
	Node string
	// Epoch is the newest that it holds all resources of; 0 if none.
	Epoch keyspace.Epoch
	// Refused is what it said of the last configuration it refused, until it
	// accepts one of the same kind.
	Refused string
}

// Envoys returns the connected Envoys in the order of their node ids.
func (s *Server) Envoys() []Envoy {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Envoy, 0, len(s.envoys))
	for _, e := range s.envoys {
		all = append(all, Envoy{Node: e.node, Epoch: e.epoch(), Refused: e.refusals(nil)})
	}
	slices.SortFunc(all, func(a, b Envoy) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Epoch, b.Epoch))
	})
	return all
}

// broadcast wakes all who wait. The caller holds mu.
func (s *Server) broadcast() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// oneNode gives every Envoy the same snapshot.
type oneNode struct{}

// ID returns the key of the one snapshot.
func (oneNode) ID(*corev3.Node) string { return allEnvoys }

// quiet drops the library's log: the server's own callbacks say what matters.
type quiet struct{}

// Debugf drops a line.
func (quiet) Debugf(string, ...any) {}

// Infof drops a line.
func (quiet) Infof(string, ...any) {}

// Warnf drops a line.
func (quiet) Warnf(string, ...any) {}

// Errorf drops a line.
func (quiet) Errorf(string, ...any) {}
