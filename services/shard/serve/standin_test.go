// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kolocate/kolocate/api/client"
	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
	"github.com/kolocate/kolocate/services/keyspace/wire"
)

// standIn answers shards and clients as the oracle does, from memory.
type standIn struct {
	oraclev1.UnimplementedPlacementServer
	oraclev1.UnimplementedRegistryServer
	oraclev1.UnimplementedTraceServer
	address string

	mu        sync.Mutex
	placement *keyspace.Placement
	genesis   *keyspace.Placement
	members   map[[2]uint32]*oraclev1.JoinRequest
	changed   chan struct{}
	rate      float64
	reports   []*oraclev1.ReportRequest
	initial   map[uint32]bool
	handoff   uint64
}

func newStandIn(t testing.TB, shards int) *standIn {
	t.Helper()
	p, err := keyspace.EvenPlacement(shards)
	if err != nil {
		t.Fatal(err)
	}
	s := &standIn{placement: p, genesis: p, members: map[[2]uint32]*oraclev1.JoinRequest{}, changed: make(chan struct{}), initial: map[uint32]bool{}}
	listener := listenLoopback(t)
	s.address = listener.Addr().String()
	server := grpc.NewServer()
	oraclev1.RegisterPlacementServer(server, s)
	oraclev1.RegisterRegistryServer(server, s)
	oraclev1.RegisterTraceServer(server, s)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return s
}

func listenLoopback(t testing.TB) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

func (s *standIn) announce() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// publish puts vertices at a shard, in a new epoch.
func (s *standIn) publish(t testing.TB, to keyspace.ShardID, vertices []keyspace.Vertex, slots []keyspace.Slot) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	d := keyspace.Delta{From: s.placement.Epoch(), To: s.placement.Epoch() + 1}
	for _, v := range vertices {
		d.Overrides = append(d.Overrides, keyspace.VertexMove{Vertex: v, To: to})
	}
	for _, slot := range slots {
		d.Slots = append(d.Slots, keyspace.SlotMove{Slot: slot, To: to})
	}
	next, err := s.placement.Apply(d)
	if err != nil {
		t.Error(err)
		return
	}
	s.placement = next
	s.announce()
}

func (s *standIn) shardOf(v keyspace.Vertex) keyspace.ShardID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.placement.ShardOf(v)
}

func (s *standIn) setRate(rate float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rate = rate
}

func (s *standIn) Watch(_ *oraclev1.WatchRequest, stream grpc.ServerStreamingServer[oraclev1.WatchResponse]) error {
	for {
		s.mu.Lock()
		m := &oraclev1.WatchResponse{Snapshot: wire.EncodePlacement("test", s.placement), Shards: s.endpoints()}
		changed := s.changed
		s.mu.Unlock()
		if err := stream.Send(m); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (s *standIn) endpoints() []*oraclev1.ShardEndpoints {
	byShard := map[uint32]*oraclev1.ShardEndpoints{}
	for slot := range keyspace.Slots {
		id := uint32(s.genesis.ShardOfSlot(keyspace.Slot(slot)))
		byShard[id] = &oraclev1.ShardEndpoints{Shard: id}
	}
	for _, m := range s.members {
		byShard[m.GetShard()].Replicas = append(byShard[m.GetShard()].Replicas, &oraclev1.ReplicaEndpoint{
			Replica: m.GetReplica(), Address: m.GetAddress(), Leader: m.GetLeader(), Term: m.GetTerm(),
		})
	}
	var all []*oraclev1.ShardEndpoints
	for _, e := range byShard {
		var newest uint64
		for _, r := range e.GetReplicas() {
			if r.GetLeader() {
				newest = max(newest, r.GetTerm())
			}
		}
		for _, r := range e.GetReplicas() {
			r.Leader = r.GetLeader() && r.GetTerm() == newest
		}
		slices.SortFunc(e.Replicas, func(a, b *oraclev1.ReplicaEndpoint) int { return cmp.Compare(a.GetReplica(), b.GetReplica()) })
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *oraclev1.ShardEndpoints) int { return cmp.Compare(a.GetShard(), b.GetShard()) })
	return all
}

func (s *standIn) Join(stream grpc.BidiStreamingServer[oraclev1.JoinRequest, oraclev1.JoinResponse]) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := stream.Send(s.joined(m)); err != nil {
			return err
		}
	}
}

func (s *standIn) joined(m *oraclev1.JoinRequest) *oraclev1.JoinResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := [2]uint32{m.GetShard(), m.GetReplica()}
	before := s.members[key]
	s.members[key] = m
	if before == nil || before.GetLeader() != m.GetLeader() || before.GetTerm() != m.GetTerm() || before.GetInitialised() != m.GetInitialised() {
		s.announce()
	}
	answer := &oraclev1.JoinResponse{SampleRate: s.rate, EpochKnownEverywhere: m.GetKnownEpoch()}
	if m.GetLeader() && !m.GetInitialised() {
		if s.initial[m.GetShard()] {
			answer.Refused = "its data is gone"
			return answer
		}
		answer.Genesis = &oraclev1.Genesis{}
		for slot := range uint32(keyspace.Slots) {
			if uint32(s.genesis.ShardOfSlot(keyspace.Slot(slot))) == m.GetShard() {
				answer.Genesis.Slots = append(answer.Genesis.Slots, &oraclev1.SlotRange{First: slot, Last: slot, Shard: m.GetShard()})
			}
		}
	}
	if m.GetInitialised() {
		s.initial[m.GetShard()] = true
	}
	return answer
}

func (s *standIn) Report(_ context.Context, m *oraclev1.ReportRequest) (*oraclev1.ReportResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reports = append(s.reports, m)
	return &oraclev1.ReportResponse{}, nil
}

// process is one replica that runs within the test.
type process struct {
	config  Config
	cancel  context.CancelFunc
	done    chan error
	metrics string
}

func (p *process) stop(t testing.TB) {
	t.Helper()
	p.cancel()
	select {
	case err := <-p.done:
		if err != nil {
			t.Errorf("replica %d of %v: %v", p.config.Replica, p.config.Shard, err)
		}
		p.done <- nil
	case <-time.After(30 * time.Second):
		t.Errorf("replica %d of %v does not stop", p.config.Replica, p.config.Shard)
	}
}

func testLogger() *slog.Logger {
	level := slog.LevelError
	if os.Getenv("KOLOCATE_TEST_LOG") != "" {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

func startProcess(t testing.TB, config Config) *process {
	t.Helper()
	if config.Listener == nil {
		// The same address as before.
		var err error
		for range 100 {
			if config.Listener, err = net.Listen("tcp", config.Peers[config.Replica]); err == nil {
				break
			}
			<-time.After(20 * time.Millisecond)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if config.MetricsListener == nil {
		config.MetricsListener = listenLoopback(t)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{config: config, cancel: cancel, done: make(chan error, 1), metrics: config.MetricsListener.Addr().String()}
	go func() { p.done <- Run(ctx, config) }()
	p.config.Listener, p.config.MetricsListener = nil, nil
	t.Cleanup(func() { p.stop(t) })
	return p
}

// startShards starts a store of so many shards and replicas.
func startShards(t testing.TB, oracle *standIn, shards, replicas int, change func(*Config)) [][]*process {
	t.Helper()
	var all [][]*process
	for shard := 1; shard <= shards; shard++ {
		peers := map[uint64]string{}
		listeners := map[uint64]net.Listener{}
		for id := uint64(1); id <= uint64(replicas); id++ {
			listeners[id] = listenLoopback(t)
			peers[id] = listeners[id].Addr().String()
		}
		var group []*process
		for id := uint64(1); id <= uint64(replicas); id++ {
			config := Config{
				Store: "test", Shard: keyspace.ShardID(shard), Replica: id, Peers: peers, DataDir: t.TempDir(),
				Listener: listeners[id], Oracle: []string{oracle.address}, Logger: testLogger(),
				TickInterval: 20 * time.Millisecond, ElectionTimeout: 200 * time.Millisecond,
			}
			if change != nil {
				change(&config)
			}
			group = append(group, startProcess(t, config))
		}
		all = append(all, group)
	}
	return all
}

// startShardsConfig is the configuration of a store of one shard and one replica.
func startShardsConfig(t testing.TB, oracle *standIn) Config {
	t.Helper()
	listener := listenLoopback(t)
	return Config{
		Store: "test", Shard: 1, Replica: 1, Peers: map[uint64]string{1: listener.Addr().String()}, DataDir: t.TempDir(),
		Listener: listener, MetricsListener: listenLoopback(t), Oracle: []string{oracle.address}, Logger: testLogger(),
		TickInterval: 20 * time.Millisecond, ElectionTimeout: 200 * time.Millisecond,
	}
}

func dialSDK(t testing.TB, oracle *standIn, change func(*client.Config)) *client.Client {
	t.Helper()
	config := client.Config{Direct: true, Placement: oracle.address, Timeout: 20 * time.Second}
	if change != nil {
		change(&config)
	}
	c, err := client.Dial(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func dialShard(t testing.TB, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// move hands vertices over and publishes the new placement, as the oracle would.
func (s *standIn) move(t testing.TB, from *process, to keyspace.ShardID, vertices []keyspace.Vertex, slots []keyspace.Slot) *shardv1.MoveProgress {
	t.Helper()
	s.mu.Lock()
	s.handoff++
	h := &shardv1.Handoff{Id: s.handoff, From: uint32(from.config.Shard), To: uint32(to)}
	s.mu.Unlock()
	for _, v := range vertices {
		h.Vertices = append(h.Vertices, []byte(v))
	}
	for _, slot := range slots {
		h.Slots = append(h.Slots, uint32(slot))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	stream, err := shardv1.NewControlClient(dialShard(t, from.config.address())).Move(ctx, &shardv1.MoveRequest{Handoff: h})
	if err != nil {
		t.Fatal(err)
	}
	var last *shardv1.MoveProgress
	for {
		p, err := stream.Recv()
		if err != nil {
			break
		}
		last = p
	}
	if last.GetPhase() != shardv1.HandoffPhase_HANDOFF_PHASE_DONE {
		t.Fatalf("handoff %d of %d vertices from %v to %v: %v", h.GetId(), len(vertices), from.config.Shard, to, last)
	}
	s.publish(t, to, vertices, slots)
	return last
}

// address is the address under which a test reaches the replica.
func (c *Config) address() string { return c.Peers[c.Replica] }

func await(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 30 s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func key(format string, args ...any) []byte { return fmt.Appendf(nil, format, args...) }
