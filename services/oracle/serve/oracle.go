// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package serve owns the oracle's process: it replicates the directory, serves
// placement, registry, trace and admin calls, gathers the workload graph,
// conducts rebalances and feeds the edge. It never takes part in a command of
// a client. The command line runs it.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/services/oracle/directory"
	"github.com/kolocate/kolocate/services/replica"
)

// PartitionerExternal says that plans come by SubmitPlan, from a Kubernetes Job.
const PartitionerExternal = "external"

// HealthLeader is the name under which the health service says who leads.
const HealthLeader = "leader"

// stopTimeout bounds a graceful stop.
const stopTimeout = 10 * time.Second

// Config is what an oracle's replica is started with.
type Config struct {
	Store string
	// Shards is the number of shards the store starts with. It counts only when
	// the store is founded; later it is changed by SetShards.
	Shards  int
	Replica uint64
	// Peers maps replica ids to gRPC addresses, this one included.
	Peers   map[uint64]string
	DataDir string
	// Listen and MetricsListen are host:port of the gRPC and the HTTP server.
	Listen, MetricsListen string
	// EnvoyListener is the host:port that Envoy is told to listen on.
	EnvoyListener string
	// EdgeOracleAddresses are host:port under which Envoy reaches the oracle; Peers if empty.
	EdgeOracleAddresses []string
	// Policy is the first rebalancing policy.
	Policy *oraclev1.Policy
	// Partitioner is PartitionerExternal or the path of the program to run as a child process.
	Partitioner                   string
	TickInterval, ElectionTimeout time.Duration
	Version                       string
	Logger                        *slog.Logger
	// NewEdge makes the publisher to the Envoys.
	NewEdge func(*slog.Logger, prometheus.Registerer) (Edge, error)
}

// Oracle is one replica of the oracle.
type Oracle struct {
	config    Config
	log       *slog.Logger
	machine   *machine
	registry  *registry
	tracer    *tracer
	conductor atomic.Pointer[conductor]
	conns     *connections
	edge      Edge
	metrics   *metrics
	host      *replica.Host
	health    *health.Server
	stopping  chan struct{}
	// opened is closed when host is set: the replica may lead before Open returns.
	opened chan struct{}
	tasks  sync.WaitGroup

	mu sync.Mutex
	// term is cancelled when this replica ceases to lead; nil while it does not.
	endTerm  context.CancelFunc
	lost     chan struct{}
	leaderID atomic.Uint64
	// edgeEpoch is what was last published to the Envoys.
	edgeEpoch atomic.Uint64
	leading   atomic.Bool
}

// Run serves until the context ends or the replica fails. It returns nil after
// a graceful stop.
func Run(ctx context.Context, config Config) error {
	registerer := prometheus.NewRegistry()
	registerer.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	o, err := newOracle(config, prometheus.WrapRegistererWith(prometheus.Labels{"store": config.Store}, registerer))
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", config.Listen)
	if err != nil {
		return fmt.Errorf("listen on %s for gRPC: %w; free the port or choose another with --listen", config.Listen, err)
	}
	metricsListener, err := new(net.ListenConfig).Listen(ctx, "tcp", config.MetricsListen)
	if err != nil {
		return errors.Join(fmt.Errorf("listen on %s for metrics: %w; free the port or choose another with --metrics", config.MetricsListen, err), listener.Close())
	}
	if err := o.open(ctx); err != nil {
		return errors.Join(err, listener.Close(), metricsListener.Close())
	}
	server := o.newServer()
	metricsServer := &http.Server{Handler: o.metricsHandler(registerer), ReadHeaderTimeout: 5 * time.Second}
	failed := make(chan error, 2)
	go func() { failed <- server.Serve(listener) }()
	go func() { failed <- metricsServer.Serve(metricsListener) }()
	o.log.Info("oracle serves", "store", config.Store, "address", listener.Addr().String(), "metrics", metricsListener.Addr().String())
	select {
	case <-ctx.Done():
		err = nil
	case <-o.host.Done():
		err = o.host.Err()
	case err = <-failed:
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	o.stop(stopping, server, metricsServer)
	return err
}

func newOracle(config Config, registerer prometheus.Registerer) (*Oracle, error) {
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	o := &Oracle{
		config: config, log: config.Logger, machine: newMachine(), registry: newRegistry(), conns: newConnections(),
		health: health.NewServer(), stopping: make(chan struct{}), opened: make(chan struct{}), lost: make(chan struct{}),
	}
	o.tracer = newTracer(config.Store)
	o.conductor.Store(newConductor(o))
	if len(o.config.EdgeOracleAddresses) == 0 {
		for _, id := range slices.Sorted(maps.Keys(o.config.Peers)) {
			o.config.EdgeOracleAddresses = append(o.config.EdgeOracleAddresses, o.config.Peers[id])
		}
	}
	edge, err := config.NewEdge(config.Logger, registerer)
	if err != nil {
		return nil, err
	}
	o.edge = edge
	o.metrics = newMetrics(o, registerer)
	return o, nil
}

// open starts the replica of the directory and the tasks beside it.
func (o *Oracle) open(ctx context.Context) error {
	host, err := replica.Open(ctx, replica.Config{
		Group: o.config.Store + "/oracle", ID: o.config.Replica, Peers: o.config.Peers,
		Dir: filepath.Join(o.config.DataDir, "raft"), StateMachine: o.machine, OnLeadership: o.onLeadership,
		TickInterval: o.config.TickInterval, ElectionTimeout: o.config.ElectionTimeout,
		Seed: o.config.Replica, Logger: o.log, Registerer: o.metrics.registerer,
	})
	if err != nil {
		return err
	}
	o.host = host
	close(o.opened)
	return nil
}

func (o *Oracle) newServer() *grpc.Server {
	server := grpc.NewServer(replica.ServerOptions()...)
	o.host.RegisterOn(server)
	oraclev1.RegisterPlacementServer(server, &placementService{oracle: o})
	shards := &shardService{oracle: o}
	oraclev1.RegisterRegistryServer(server, shards)
	oraclev1.RegisterTraceServer(server, shards)
	oraclev1.RegisterAdminServer(server, &adminService{oracle: o})
	o.edge.RegisterOn(server)
	healthv1.RegisterHealthServer(server, o.health)
	reflection.Register(server)
	o.health.SetServingStatus("", healthv1.HealthCheckResponse_SERVING)
	return server
}

func (o *Oracle) metricsHandler(gatherer prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{}))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	return mux
}

// stop moves leadership away, ends what runs and closes the servers, until the
// context ends at the latest.
func (o *Oracle) stop(ctx context.Context, server *grpc.Server, metricsServer *http.Server) {
	o.health.Shutdown()
	close(o.stopping)
	if err := o.host.Stop(ctx); err != nil {
		o.log.Warn("the replica did not stop cleanly; it recovers from its log at the next start", "reason", err)
	}
	o.resign()
	o.tasks.Wait()
	o.edge.Close()
	done := make(chan struct{})
	go func() { server.GracefulStop(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		server.Stop()
	}
	o.conns.close()
	_ = metricsServer.Close() // nothing depends on a last scrape
}

// onLeadership is called from the replica's apply goroutine and must not block.
func (o *Oracle) onLeadership(l replica.Leadership) {
	o.leaderID.Store(l.LeaderID)
	o.resign()
	if !l.Leader {
		return
	}
	o.registry.reset()
	o.tracer.reset()
	ctx, cancel := context.WithCancel(context.Background())
	o.mu.Lock()
	o.endTerm, o.lost = cancel, make(chan struct{})
	o.mu.Unlock()
	o.leading.Store(true)
	o.tasks.Add(1)
	go func() {
		defer o.tasks.Done()
		o.lead(ctx)
	}()
}

func (o *Oracle) resign() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.endTerm == nil {
		return
	}
	o.leading.Store(false)
	o.health.SetServingStatus(HealthLeader, healthv1.HealthCheckResponse_NOT_SERVING)
	o.endTerm()
	o.endTerm = nil
	close(o.lost)
}

// lead does the leader's work for one term: it founds the store if it is new,
// then conducts rebalances and feeds the edge until the context ends.
func (o *Oracle) lead(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-o.opened:
	}
	for !o.foundStore(ctx) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(conductInterval):
		}
	}
	o.announceLeading(ctx)
	conductor := newConductor(o)
	o.conductor.Store(conductor)
	var group sync.WaitGroup
	group.Go(func() { o.feedEdge(ctx) })
	group.Go(func() { conductor.run(ctx) })
	group.Wait()
}

// announceLeading reports this replica as the leader, unless its term has ended meanwhile.
func (o *Oracle) announceLeading(ctx context.Context) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if ctx.Err() == nil {
		o.health.SetServingStatus(HealthLeader, healthv1.HealthCheckResponse_SERVING)
	}
}

func (o *Oracle) foundStore(ctx context.Context) bool {
	founded := false
	o.machine.view(func(d *directory.Directory) { founded = d.Founded() })
	if founded {
		return true
	}
	err := o.propose(ctx, &oraclev1.LogEntry{Body: &oraclev1.LogEntry_StoreFounded{StoreFounded: &oraclev1.StoreFounded{
		Store: o.config.Store, Shards: uint32(o.config.Shards), Policy: o.config.Policy, //nolint:gosec // checked by the directory
	}}})
	if err != nil && ctx.Err() == nil {
		o.log.Error("the store cannot be founded", "reason", err)
	}
	return err == nil
}

// requireLeader returns UNAVAILABLE, naming the leader, unless this replica leads.
func (o *Oracle) requireLeader() error {
	if o.leading.Load() {
		return nil
	}
	id := o.leaderID.Load()
	if address, ok := o.config.Peers[id]; ok && id != o.config.Replica {
		return status.Errorf(codes.Unavailable, "this replica of the oracle does not lead; replica %d at %s does", id, address)
	}
	return status.Error(codes.Unavailable, "this replica of the oracle does not lead; none is known to yet, try again in a moment")
}

// demoted returns a channel that is closed when this replica ceases to lead.
func (o *Oracle) demoted() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lost
}
