// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/services/edge/ir"
	"github.com/kolocate/kolocate/services/edge/translate"
	"github.com/kolocate/kolocate/services/keyspace"
)

// envoyVersion is the one the product runs.
const envoyVersion = "1.40.0"

func envoyBinary(t testing.TB) string {
	t.Helper()
	path := os.Getenv("KOLOCATE_ENVOY")
	if path == "" {
		cache := os.Getenv("KOLOCATE_CACHE")
		if cache == "" {
			home, err := os.UserHomeDir()
			if err != nil {
				t.Fatal(err)
			}
			cache = filepath.Join(home, ".cache", "kolocate")
		}
		path = filepath.Join(cache, "envoy", envoyVersion, "bin", "envoy")
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("no Envoy to test with: %v; fetch it with hack/deps/envoy.sh, or name one in KOLOCATE_ENVOY", err)
	}
	return path
}

// world is a store's edge: stand-ins for the replicas and the oracle, the
// control plane, and a real Envoy.
type world struct {
	t       testing.TB
	edge    *Server
	ir      ir.Edge
	client  *grpc.ClientConn
	control control
	stderr  *lockedBuffer
	done    chan struct{}
	// adminFile is where Envoy writes the address of its admin server.
	adminFile string
}

// control is the control plane's address: what serves behind it can be replaced.
type control struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	current atomic.Pointer[Server]
}

func (c *control) replace(s *Server) { c.current.Store(s) }

// DeltaAggregatedResources serves a stream by the control plane of the moment.
func (c *control) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return discovery{delta: c.current.Load().xds}.DeltaAggregatedResources(stream)
}

// swap puts another control plane in place of the world's, whose streams end.
func (w *world) swap(s *Server) {
	w.control.replace(s)
	w.edge.Close()
	w.edge = s
}

const timeout = time.Minute

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	t.Cleanup(cancel)
	return ctx
}

// newWorld starts all for shards of the given replicas and waits for epoch 1.
func newWorld(t testing.TB, shards ...[]*replica) *world {
	t.Helper()
	w := &world{t: t, stderr: new(lockedBuffer), done: make(chan struct{})}
	var err error
	if w.edge, err = New(Config{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.edge.Close() })
	w.control.replace(w.edge)
	control := listen(t, func(s *grpc.Server) {
		discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, &w.control)
		oraclev1.RegisterPlacementServer(s, placement{})
		h := health.NewServer()
		h.SetServingStatus(translate.HealthService, healthv1.HealthCheckResponse_SERVING)
		healthv1.RegisterHealthServer(s, h)
	})
	w.ir = ir.Edge{Epoch: 1, Store: "test", Listener: freeAddress(t), Oracle: []string{control}}
	for i, replicas := range shards {
		shard := ir.Shard{ID: keyspace.ShardID(i + 1)}
		for _, r := range replicas {
			shard.Replicas = append(shard.Replicas, ir.Endpoint{Address: r.address})
		}
		w.ir.Shards = append(w.ir.Shards, shard)
	}
	for slot := range w.ir.Slots {
		w.ir.Slots[slot] = keyspace.ShardID(slot*len(shards)/keyspace.Slots + 1)
	}
	if err := w.edge.Update(w.ir); err != nil {
		t.Fatal(err)
	}
	w.startEnvoy(control)
	w.client = connect(t, w.ir.Listener)
	w.await(1)
	for i := range shards {
		w.untilServed(fmt.Sprintf("shard-%d", i+1))
	}
	return w
}

func (w *world) startEnvoy(control string) {
	w.t.Helper()
	bootstrap, err := translate.Bootstrap(translate.BootstrapConfig{
		Store: "test", NodeID: "envoy-0", ControlPlane: []string{control}, Admin: "127.0.0.1:0",
	})
	if err != nil {
		w.t.Fatal(err)
	}
	dir := w.t.TempDir()
	file := filepath.Join(dir, "bootstrap.yaml")
	w.adminFile = filepath.Join(dir, "admin-address")
	if err := os.WriteFile(file, bootstrap, 0o600); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	arguments := append(translate.Arguments(file, 1), "--admin-address-path", w.adminFile)
	cmd := exec.CommandContext(ctx, envoyBinary(w.t), arguments...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	cmd.Stderr = w.stderr
	if err := cmd.Start(); err != nil {
		cancel()
		w.t.Fatal(err)
	}
	go func() {
		defer close(w.done)
		_ = cmd.Wait() // ends by the signal
	}()
	w.t.Cleanup(func() {
		cancel()
		<-w.done
		if w.t.Failed() {
			w.t.Logf("envoy said:\n%s", w.stderr)
		}
	})
}

// update publishes the world's edge at the next epoch, after a change.
func (w *world) update(change func(*ir.Edge)) {
	w.t.Helper()
	change(&w.ir)
	w.ir.Epoch++
	if err := w.edge.Update(w.ir); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) await(epoch keyspace.Epoch) {
	w.t.Helper()
	if err := w.edge.Await(within(w.t), epoch); err != nil {
		w.t.Fatalf("%v\nenvoy said:\n%s", err, w.stderr)
	}
}

// untilServed waits until Envoy's listener is open and the shard's leader has
// passed a health check.
func (w *world) untilServed(shard string) {
	w.t.Helper()
	ctx := metadata.AppendToOutgoingContext(within(w.t), translate.HeaderShard, shard)
	for {
		_, err := kvv1.NewKVClient(w.client).Get(ctx, &kvv1.GetRequest{Key: []byte("k")}, grpc.WaitForReady(true))
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			w.t.Fatalf("%s was not served: %v\nenvoy said:\n%s", shard, err, w.stderr)
		}
	}
}

// thin sends a Get with the header x-kolocate-key alone and returns who served it.
func (w *world) thin(ctx context.Context, header string) (string, error) {
	ctx = metadata.AppendToOutgoingContext(ctx, translate.HeaderKey, header)
	reply, err := kvv1.NewKVClient(w.client).Get(ctx, &kvv1.GetRequest{})
	return string(reply.GetValue()), err
}

// replica stands in for one replica of a shard: it answers with its name while
// it leads, and as a shard does, UNAVAILABLE, while not.
type replica struct {
	kvv1.UnimplementedKVServer
	name, address string
	health        *health.Server
	leads         sync.RWMutex // held for reading while a call runs
	leader        bool
}

func newReplica(t testing.TB, name string, leader bool) *replica {
	t.Helper()
	r := &replica{name: name, health: health.NewServer()}
	r.setLeader(leader)
	r.address = listen(t, func(s *grpc.Server) {
		kvv1.RegisterKVServer(s, r)
		healthv1.RegisterHealthServer(s, r.health)
	})
	return r
}

func (r *replica) setLeader(leader bool) {
	r.leads.Lock()
	defer r.leads.Unlock()
	r.leader = leader
	state := healthv1.HealthCheckResponse_NOT_SERVING
	if leader {
		state = healthv1.HealthCheckResponse_SERVING
	}
	r.health.SetServingStatus(translate.HealthService, state)
}

func (r *replica) serve() error {
	r.leads.RLock()
	defer r.leads.RUnlock()
	if !r.leader {
		return status.Errorf(codes.Unavailable, "%s does not lead", r.name)
	}
	return nil
}

// Get answers with the replica's name, and as version the number of internal
// headers that came through.
func (r *replica) Get(ctx context.Context, _ *kvv1.GetRequest) (*kvv1.GetResponse, error) {
	if err := r.serve(); err != nil {
		return nil, err
	}
	var leaked uint64
	headers, _ := metadata.FromIncomingContext(ctx)
	for _, name := range []string{"x-kolocate-vertex", "x-kolocate-page", "x-kolocate-slot"} {
		leaked += uint64(len(headers.Get(name)))
	}
	return &kvv1.GetResponse{Found: true, Value: []byte(r.name), Version: leaked}, nil
}

// Execute answers each request with the replica's name as its message.
func (r *replica) Execute(stream grpc.BidiStreamingServer[kvv1.ExecuteRequest, kvv1.ExecuteResponse]) error {
	for {
		request, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := r.serve(); err != nil {
			return err
		}
		response := new(kvv1.ExecuteResponse)
		for _, one := range request.GetRequests() {
			response.Replies = append(response.Replies, &kvv1.Reply{Tag: one.GetTag(), Outcome: kvv1.Outcome_OUTCOME_OK, Message: r.name})
		}
		if err := stream.Send(response); err != nil {
			return err
		}
	}
}

type placement struct {
	oraclev1.UnimplementedPlacementServer
}

// Get answers with the epoch 42, which nothing else has.
func (placement) Get(context.Context, *oraclev1.GetRequest) (*oraclev1.GetResponse, error) {
	return &oraclev1.GetResponse{Placement: &oraclev1.PlacementSnapshot{Epoch: 42}}, nil
}

func connect(t testing.TB, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func listen(t testing.TB, register func(*grpc.Server)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	register(s)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Serve(listener) // ends by Stop
	}()
	t.Cleanup(func() {
		s.Stop()
		<-ended
	})
	return listener.Addr().String()
}

// freeAddress is for Envoy's listener, which can't be told to choose.
func freeAddress(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

type lockedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}
