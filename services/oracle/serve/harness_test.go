// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	planv1 "github.com/kolocate/kolocate/api/proto/plan/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/edge/ir"
	"github.com/kolocate/kolocate/services/keyspace"
	"github.com/kolocate/kolocate/services/keyspace/wire"
	"github.com/kolocate/kolocate/services/oracle/graph"
)

const patience = 20 * time.Second

// harness is a real oracle of one replica with stand-ins for the shards: the
// unit under test is what the oracle asks of them.
type harness struct {
	t       *testing.T
	address string
	dir     string
	stop    func()
	admin   oraclev1.AdminClient
	conn    *grpc.ClientConn
	policy  *oraclev1.Policy
}

func startOracle(t *testing.T, dir string, policy *oraclev1.Policy) *harness {
	t.Helper()
	h := &harness{t: t, dir: dir, policy: policy, address: freeAddress(t)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, Config{
			Store: "s", Shards: 2, Replica: 1, Peers: map[uint64]string{1: h.address}, DataDir: dir,
			Listen: h.address, MetricsListen: "127.0.0.1:0", EnvoyListener: "127.0.0.1:8080", Policy: policy,
			Partitioner: PartitionerExternal, Logger: slog.New(slog.DiscardHandler),
			NewEdge:      func(*slog.Logger, prometheus.Registerer) (Edge, error) { return noEnvoy{}, nil },
			TickInterval: 10 * time.Millisecond, ElectionTimeout: 100 * time.Millisecond,
		})
	}()
	var once sync.Once
	h.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("the oracle ended with %v", err)
			}
		})
	}
	t.Cleanup(h.stop)
	conn, err := grpc.NewClient(h.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	h.conn, h.admin = conn, oraclev1.NewAdminClient(conn)
	h.eventually("the oracle serves", func(ctx context.Context) (bool, string) {
		s, err := h.admin.GetStatus(ctx, &oraclev1.GetStatusRequest{})
		return err == nil && s.GetEpoch() > 0, fmt.Sprint(err)
	})
	return h
}

// noEnvoy is the edge while no Envoy is connected.
type noEnvoy struct{}

func (noEnvoy) RegisterOn(grpc.ServiceRegistrar)  {}
func (noEnvoy) Update(edge ir.Edge) error         { return edge.Validate() }
func (noEnvoy) AcknowledgedEpoch() keyspace.Epoch { return 0 }
func (noEnvoy) Close()                            {}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// eventually polls until the condition holds, and fails with its last words.
func (h *harness) eventually(what string, holds func(context.Context) (bool, string)) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		ok, why := holds(ctx)
		if ok {
			return
		}
		select {
		case <-ctx.Done():
			h.t.Fatalf("waited %v until %s: %s", patience, what, why)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (h *harness) awaitPhase(name string, want oraclev1.Phase) *oraclev1.Rebalance {
	h.t.Helper()
	var r *oraclev1.Rebalance
	h.eventually(fmt.Sprintf("%s is %v", name, want), func(ctx context.Context) (bool, string) {
		var err error
		r, err = h.admin.GetRebalance(ctx, &oraclev1.GetRebalanceRequest{Name: name})
		return err == nil && r.GetPhase() == want, fmt.Sprintf("%v, %v", r, err)
	})
	return r
}

// shard stands in for a shard's leader.
type shard struct {
	shardv1.UnimplementedControlServer
	id      uint32
	address string
	store   string
	empty   bool

	mu       sync.Mutex
	moves    []*shardv1.MoveRequest
	outcome  shardv1.HandoffPhase
	share    float64
	genesis  *oraclev1.Genesis
	refused  string
	commands uint64
	multi    uint64
}

func (s *shard) Move(r *shardv1.MoveRequest, stream shardv1.Control_MoveServer) error {
	s.mu.Lock()
	s.moves = append(s.moves, r)
	outcome := s.outcome
	s.mu.Unlock()
	if outcome == shardv1.HandoffPhase_HANDOFF_PHASE_UNSPECIFIED {
		<-stream.Context().Done() // never ends by itself
		return stream.Context().Err()
	}
	return stream.Send(&shardv1.MoveProgress{Id: r.GetHandoff().GetId(), Phase: outcome, BytesCopied: 100, PauseMicros: 7, Message: "as the test says"})
}

func (s *shard) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (h *harness) startShard(id uint32) *shard {
	h.t.Helper()
	s := &shard{id: id, store: "s", outcome: shardv1.HandoffPhase_HANDOFF_PHASE_DONE, share: 0.5}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		h.t.Fatal(err)
	}
	s.address = l.Addr().String()
	server := grpc.NewServer()
	shardv1.RegisterControlServer(server, s)
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { _ = server.Serve(l) })
	group.Go(func() { s.report(ctx, h.conn) })
	h.t.Cleanup(func() { cancel(); server.Stop(); group.Wait() })
	return s
}

// report joins and reports load until the context ends.
func (s *shard) report(ctx context.Context, conn *grpc.ClientConn) {
	for ctx.Err() == nil {
		stream, err := oraclev1.NewRegistryClient(conn).Join(ctx)
		for err == nil && ctx.Err() == nil {
			if err = stream.Send(s.join()); err != nil {
				break
			}
			var answer *oraclev1.JoinResponse
			if answer, err = stream.Recv(); err == nil {
				s.hear(ctx, conn, answer)
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
		if ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond) // the oracle restarts
		}
	}
}

func (s *shard) join() *oraclev1.JoinRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commands += 100
	s.multi += uint64(100 * s.share)
	return &oraclev1.JoinRequest{
		Store: s.store, Shard: s.id, Replica: 1, Address: s.address, Leader: true, Term: 1, KnownEpoch: 1 << 40,
		Initialised: s.genesis != nil && !s.empty,
		Counters:    &oraclev1.Counters{Process: 1, Commands: s.commands, MultiShard: s.multi, TouchedVertices: s.commands},
	}
}

func (s *shard) hear(ctx context.Context, conn *grpc.ClientConn, answer *oraclev1.JoinResponse) {
	s.mu.Lock()
	if answer.GetGenesis() != nil {
		s.genesis = answer.GetGenesis()
	}
	s.refused = answer.GetRefused()
	s.mu.Unlock()
	if answer.GetSampleRate() > 0 {
		_, _ = oraclev1.NewTraceClient(conn).Report(ctx, &oraclev1.ReportRequest{
			Store: "s", Shard: s.id, SampleRate: 1, WindowSeconds: 0.02, MultiVertexCommands: 50, SingleVertexCommands: 50,
			Vertices: []*oraclev1.TracedVertex{{Vertex: []byte("a"), Count: 50}, {Vertex: []byte("b"), Count: 50}},
			Edges:    []*oraclev1.TracedEdge{{A: []byte("a"), B: []byte("b"), Weight: 50}},
			Commands: []*oraclev1.TracedCommand{{Vertices: [][]byte{[]byte("a"), []byte("b")}, Weight: 50}},
		})
	}
}

// plan answers for the partitioner: each vertex moves to the other shard.
func (h *harness) plan(name string, vertices ...keyspace.Vertex) error {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stream, err := h.admin.FetchGraph(ctx, &oraclev1.FetchGraphRequest{Rebalance: name})
	if err != nil {
		return err
	}
	var joiner graph.Joiner
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := joiner.Add(graph.Chunk{Data: chunk.GetData(), Checksum: chunk.GetChecksum(), Last: chunk.GetLast()}); err != nil {
			return err
		}
	}
	data, err := joiner.Bytes()
	if err != nil {
		return err
	}
	snapshot, err := graph.Decode(data, "s")
	if err != nil {
		return err
	}
	plan := &planv1.Plan{Version: 1, Store: "s", Epoch: snapshot.GetEpoch(), Prediction: &planv1.Prediction{MpoShareAfter: 0.1}}
	for i, v := range vertices {
		from := h.shardOf(v)
		plan.Steps = append(plan.Steps, &planv1.Step{Number: uint32(i + 1), From: from, To: 3 - from, Vertices: [][]byte{[]byte(v)}, Reason: "test"})
	}
	if data, err = graph.EncodePlan(plan); err != nil {
		return err
	}
	submit, err := h.admin.SubmitPlan(ctx)
	if err != nil {
		return err
	}
	for _, chunk := range graph.Split(data, 0) {
		if err := submit.Send(&oraclev1.PlanChunk{Rebalance: name, Data: chunk.Data, Checksum: chunk.Checksum, Last: chunk.Last}); err != nil {
			return err
		}
	}
	_, err = submit.CloseAndRecv()
	return err
}

func (h *harness) shardOf(v keyspace.Vertex) uint32 {
	h.t.Helper()
	response, err := oraclev1.NewPlacementClient(h.conn).Get(context.Background(), &oraclev1.GetRequest{})
	if err != nil {
		h.t.Fatal(err)
	}
	p, err := wire.DecodePlacement(response.GetPlacement())
	if err != nil {
		h.t.Fatal(err)
	}
	return uint32(p.ShardOf(v))
}

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if status.Code(err) != want {
		t.Fatalf("error %v, want code %v", err, want)
	}
}
