// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package serve owns the shard's process: it joins the core, its Leader and the
// replica to the network, and finds for each command the way to its answer.
// It decides nothing about data: that is the core's. The command line runs it.
package serve

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
	"github.com/kolocate/kolocate/services/replica"
	"github.com/kolocate/kolocate/services/shard/serve/follow"
	"github.com/kolocate/kolocate/services/shard/serve/peers"
)

// HealthLeader is the name under which the health service says who leads.
const HealthLeader = "leader"

// healthInterval is how late the health service may be.
const healthInterval = 10 * time.Millisecond

// server is one running replica.
type server struct {
	config   Config
	engine   *engine
	service  *service
	host     *replica.Host
	follower *follow.Follower
	peers    *peers.Links
	health   *health.Server
	grpc     *grpc.Server
	http     *http.Server
	registry *prometheus.Registry
	tasks    sync.WaitGroup
	endTasks context.CancelFunc
	// fatal takes what ends the process.
	fatal chan error
}

// Run serves until ctx ends or the replica fails. It returns nil after a
// graceful stop, else an error that says what to do.
func Run(ctx context.Context, config Config) error {
	s, err := start(ctx, config)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-s.host.Done():
		err = fmt.Errorf("replica %d of %v: %w", s.config.Replica, s.config.Shard, s.host.Err())
	case err = <-s.fatal:
	}
	s.stop() //nolint:contextcheck // ctx has ended: stopping has its own bound
	return err
}

func start(ctx context.Context, config Config) (*server, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	config.Logger = config.Logger.With("store", config.Store, "shard", config.Shard.String(), "replica", config.Replica)
	listener, err := listen(ctx, config.Listener, config.Listen, "gRPC", "--listen")
	if err != nil {
		return nil, err
	}
	metricsListener, err := listen(ctx, config.MetricsListener, config.MetricsListen, "metrics", "--metrics")
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	s := &server{config: config, fatal: make(chan error, 4), health: health.NewServer()}
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, listener.Close(), metricsListener.Close())
	}
	s.serve(listener, metricsListener) //nolint:contextcheck // the tasks live until stop, not as long as ctx
	config.Logger.Info("shard serves", "address", listener.Addr().String(), "metrics", metricsListener.Addr().String())
	return s, nil
}

func listen(ctx context.Context, given net.Listener, address, what, flag string) (net.Listener, error) {
	if given != nil {
		return given, nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s for %s: %w; free the port or choose another with %s", address, what, err, flag)
	}
	return listener, nil
}

// open builds the parts and recovers the replica from disk.
func (s *server) open(ctx context.Context) error {
	var seed [32]byte
	if _, err := rand.Read(seed[:]); err != nil {
		return fmt.Errorf("draw random ids: %w", err)
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(seed[8*i:]) }
	s.registry = prometheus.NewRegistry()
	labels := prometheus.Labels{"store": s.config.Store, "shard": s.config.Shard.String()}
	registerer := prometheus.WrapRegistererWith(labels, s.registry)
	s.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	e := newEngine(&s.config, newMetrics(registerer, word(0)|1), [2]uint64{word(1), word(2)}, word(0))
	s.engine = e
	s.service = &service{engine: e, client: word(3) | 1}
	var err error
	if s.follower, err = follow.New(follow.Config{
		Oracle: s.config.Oracle, Report: e.joinRequest, Moved: e.intake.signal, DialOptions: s.config.DialOptions, Logger: s.config.Logger,
		Heard: s.heard,
	}); err != nil {
		return err
	}
	s.peers = peers.New(peers.Config{
		Store: s.config.Store, Shard: s.config.Shard, Self: s.config.Advertise, Addresses: s.addresses, Epoch: s.follower.Epoch,
		Answered: e.intake.addAnswers, DialOptions: s.config.DialOptions, Logger: s.config.Logger,
	})
	e.follower, e.peers = s.follower, s.peers
	e.metrics.register(registerer, e)
	s.host, err = replica.Open(ctx, replica.Config{
		Group: fmt.Sprintf("%s/%v", s.config.Store, s.config.Shard), ID: s.config.Replica, Peers: s.config.Peers,
		FS: s.config.FS, Dir: filepath.Join(s.config.DataDir, "raft"),
		TickInterval: s.config.TickInterval, ElectionTimeout: s.config.ElectionTimeout, MaxClockError: s.config.MaxClockError,
		StateMachine: e, OnLeadership: e.onLeadership, Seed: word(1), Logger: s.config.Logger, Registerer: registerer,
		DialOptions: s.config.DialOptions,
	})
	if err != nil {
		s.peers.Close()
		return fmt.Errorf("open replica %d of %v in %s: %w", s.config.Replica, s.config.Shard, s.config.DataDir, err)
	}
	e.host = s.host
	close(e.opened)
	return nil
}

// addresses tells the links where the replicas of a shard are. Of its own shard
// a replica knows the leader best.
func (s *server) addresses(shard keyspace.ShardID) []string {
	if shard == s.config.Shard {
		if address, ok := s.config.Peers[s.engine.term.Load().leaderID]; ok {
			return []string{address}
		}
	}
	return s.follower.Addresses(shard)
}

// serve starts the servers and the tasks.
func (s *server) serve(listener, metricsListener net.Listener) {
	options := append(replica.ServerOptions(),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.InitialWindowSize(1<<20), grpc.InitialConnWindowSize(4<<20),
	)
	s.grpc = grpc.NewServer(options...)
	kvv1.RegisterKVServer(s.grpc, s.service)
	shardv1.RegisterPeerServer(s.grpc, s.service)
	shardv1.RegisterControlServer(s.grpc, s.service)
	s.host.RegisterOn(s.grpc)
	healthv1.RegisterHealthServer(s.grpc, s.health)
	reflection.Register(s.grpc)
	s.health.SetServingStatus("", healthv1.HealthCheckResponse_SERVING)
	s.health.SetServingStatus(HealthLeader, healthv1.HealthCheckResponse_NOT_SERVING)
	s.http = &http.Server{Handler: s.handler(), ReadHeaderTimeout: 5 * time.Second}

	ctx, cancel := context.WithCancel(context.Background())
	s.endTasks = cancel
	s.tasks.Go(func() { s.engine.drive(ctx) })
	s.tasks.Go(func() { s.engine.read(ctx) })
	s.tasks.Go(func() { s.engine.reportTraces(ctx) })
	s.tasks.Go(func() { s.follower.Run(ctx) })
	s.tasks.Go(func() { s.watchHealth(ctx) })
	s.tasks.Go(func() { s.failed(s.grpc.Serve(listener)) })
	s.tasks.Go(func() { s.failed(s.http.Serve(metricsListener)) })
}

func (s *server) failed(err error) {
	if err == nil || errors.Is(err, http.ErrServerClosed) || errors.Is(err, grpc.ErrServerStopped) {
		return
	}
	select {
	case s.fatal <- err:
	default:
	}
}

// heard takes the oracle's word.
func (s *server) heard(m *oraclev1.JoinResponse) {
	s.engine.heard(m, func(why string) {
		s.failed(fmt.Errorf("the oracle refuses %v: %s", s.config.Shard, why))
	})
}

// watchHealth tells the health service who leads.
func (s *server) watchHealth(ctx context.Context) {
	ticker := time.NewTicker(healthInterval)
	defer ticker.Stop()
	serving := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := s.engine.known.Load().serving() && s.engine.term.Load().leading
		if now == serving {
			continue
		}
		serving = now
		state := healthv1.HealthCheckResponse_NOT_SERVING
		if now {
			state = healthv1.HealthCheckResponse_SERVING
		}
		s.health.SetServingStatus(HealthLeader, state)
	}
}

func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "ok") })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		// A follower is ready when it hears a leader: it takes over from it.
		if s.engine.known.Load().serving() || s.host.Status().LeaderID != 0 && !s.host.Status().Leader {
			writeText(w, http.StatusOK, "ok")
			return
		}
		writeText(w, http.StatusServiceUnavailable, "the shard has no leader, or has not heard from the oracle yet")
	})
	return mux
}

func writeText(w http.ResponseWriter, code int, text string) {
	w.WriteHeader(code)
	_, _ = w.Write([]byte(text + "\n")) // the reader may have gone
}

// stop takes no more commands, moves leadership away, drains, and closes all,
// within Limits.StopTimeout.
func (s *server) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), s.config.Limits.StopTimeout)
	defer cancel()
	s.health.Shutdown()
	if len(s.config.Peers) > 1 {
		// Commands that still come are passed on to the next leader.
		bound, cancelBound := context.WithTimeout(ctx, s.config.Limits.StopTimeout/3)
		if err := s.host.TransferLeadership(bound); err != nil && !errors.Is(err, replica.ErrNotLeader) {
			s.config.Logger.Warn("stopping without having moved leadership away", "reason", err)
		}
		cancelBound()
	}
	s.engine.draining.Store(true)
	s.drain(ctx)
	if err := s.host.Stop(ctx); err != nil {
		s.config.Logger.Warn("the replica did not stop cleanly; it recovers from its log at the next start", "reason", err)
	}
	s.endTasks()
	done := make(chan struct{})
	go func() { s.grpc.GracefulStop(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Second):
		s.grpc.Stop()
	}
	_ = s.http.Close() // nothing depends on a last scrape
	s.peers.Close()
	s.tasks.Wait()
}

// drain waits until the commands under way are answered.
func (s *server) drain(ctx context.Context) {
	ticker := time.NewTicker(tickInterval)
	defer ticker.Stop()
	bound := time.NewTimer(s.config.Limits.StopTimeout / 4)
	defer bound.Stop()
	for s.engine.live.Load() > 0 {
		select {
		case <-ctx.Done():
			return
		case <-bound.C:
			return
		case <-s.host.Done():
			return
		case <-ticker.C:
		}
	}
}
