// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/kolocate/kolocate/api/client"
	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	planv1 "github.com/kolocate/kolocate/api/proto/plan/v1"
	"github.com/kolocate/kolocate/services/edge/ir"
	"github.com/kolocate/kolocate/services/edge/translate"
	"github.com/kolocate/kolocate/services/keyspace"
	"github.com/kolocate/kolocate/services/oracle/graph"
	oracle "github.com/kolocate/kolocate/services/oracle/serve"
	shard "github.com/kolocate/kolocate/services/shard/serve"
)

const (
	storeShards = 3
	storeUsers  = 60
	tick        = 10 * time.Millisecond
	election    = 200 * time.Millisecond
)

// store is a whole one: a real oracle with its edge, real shards, a real Envoy.
type store struct {
	*world
	admin     oraclev1.AdminClient
	placement *keyspace.Placement
	// applied counts for each user the increments that were acknowledged.
	applied [storeUsers]atomic.Int64
}

func startStore(t *testing.T) *store {
	t.Helper()
	s := &store{world: &world{t: t, stderr: new(lockedBuffer), done: make(chan struct{})}}
	control := freeAddress(t)
	s.ir = ir.Edge{Listener: freeAddress(t)}
	silent := slog.New(slog.DiscardHandler)
	s.edge = nil
	made := make(chan *Server, 1)
	inBackground(t, func(ctx context.Context) error {
		return oracle.Run(ctx, oracle.Config{
			Store: "test", Shards: storeShards, Replica: 1, Peers: map[uint64]string{1: control}, DataDir: t.TempDir(),
			Listen: control, MetricsListen: "127.0.0.1:0", EnvoyListener: s.ir.Listener,
			Policy:      &oraclev1.Policy{Mode: "Manual", WindowSeconds: 1, MinimumCommands: 1},
			Partitioner: oracle.PartitionerExternal, Logger: silent, TickInterval: tick, ElectionTimeout: election,
			NewEdge: func(log *slog.Logger, registerer prometheus.Registerer) (oracle.Edge, error) {
				edge, err := New(Config{Logger: log, Registerer: registerer})
				made <- edge
				return edge, err
			},
		})
	})
	s.edge = <-made
	for id := range storeShards {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		inBackground(t, func(ctx context.Context) error {
			return shard.Run(ctx, shard.Config{
				Store: "test", Shard: keyspace.ShardID(id + 1), Replica: 1, Peers: map[uint64]string{1: listener.Addr().String()},
				DataDir: dir, Listener: listener, MetricsListen: "127.0.0.1:0", Oracle: []string{control},
				TickInterval: tick, ElectionTimeout: election, Logger: silent,
			})
		})
	}
	s.startEnvoy(control)
	s.client = connect(t, s.ir.Listener)
	s.admin = oraclev1.NewAdminClient(s.client)
	s.await(1)
	for id := range storeShards {
		s.untilServed(keyspace.ShardID(id + 1).String())
	}
	var err error
	if s.placement, err = keyspace.EvenPlacement(storeShards); err != nil {
		t.Fatal(err)
	}
	return s
}

// inBackground runs until the test ends; an error fails it.
func inBackground(t *testing.T, run func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("a process of the store ended: %v", err)
		}
	})
}

func userKey(user int) string { return fmt.Sprintf("{user/%d}count", user) }

// thinLoad increments counters by calls with x-kolocate-key alone, which are
// never repeated here: any error is the client's to see.
func (s *store) thinLoad(ctx context.Context, id uint64) error {
	kv := kvv1.NewKVClient(s.client)
	for n := uint64(1); ctx.Err() == nil; n++ {
		user := int(n*7+id*13) % storeUsers
		call := metadata.AppendToOutgoingContext(context.WithoutCancel(ctx), translate.HeaderKey, translate.EncodeHeader(userKey(user)))
		_, err := kv.Increment(call, &kvv1.IncrementRequest{
			Id: &kvv1.CommandId{Client: id, Sequence: n, AcknowledgedBelow: n}, Key: []byte(userKey(user)), Delta: 1,
		})
		if err != nil {
			return fmt.Errorf("thin client %d, call %d, key %s: %w", id, n, userKey(user), err)
		}
		s.applied[user].Add(1)
	}
	return nil
}

func (s *store) streamLoad(ctx context.Context, sdk *client.Client, first int) error {
	for n := first; ctx.Err() == nil; n += 11 {
		user := n % storeUsers
		if _, err := sdk.Increment(context.WithoutCancel(ctx), []byte(userKey(user)), 1); err != nil {
			return fmt.Errorf("stream client: %w", err)
		}
		s.applied[user].Add(1)
	}
	return nil
}

// rebalance carries out the plan by the oracle.
func (s *store) rebalance() *oraclev1.Rebalance {
	s.t.Helper()
	ctx := within(s.t)
	if _, err := s.admin.CreateRebalance(ctx, &oraclev1.CreateRebalanceRequest{Name: "r", Approval: "Automatic", TraceSeconds: 2, Reason: "test"}); err != nil {
		s.t.Fatal(err)
	}
	r := s.untilPhase(ctx, oraclev1.Phase_PHASE_PARTITIONING)
	data, err := graph.EncodePlan(s.plan(r.GetFromEpoch()))
	if err != nil {
		s.t.Fatal(err)
	}
	submit, err := s.admin.SubmitPlan(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, chunk := range graph.Split(data, 0) {
		if err := submit.Send(&oraclev1.PlanChunk{Rebalance: "r", Data: chunk.Data, Checksum: chunk.Checksum, Last: chunk.Last}); err != nil {
			s.t.Fatal(err)
		}
	}
	if _, err := submit.CloseAndRecv(); err != nil {
		s.t.Fatal(err)
	}
	return s.untilPhase(ctx, oraclev1.Phase_PHASE_SUCCEEDED)
}

// plan moves every second user, and the slot of the user numbered 1, to the next shard.
func (s *store) plan(epoch uint64) *planv1.Plan {
	plan := &planv1.Plan{Version: 1, Store: "test", Epoch: max(epoch, 1), Prediction: &planv1.Prediction{}}
	steps := make(map[keyspace.ShardID]*planv1.Step)
	for user := 0; user < storeUsers; user += 2 {
		vertex := keyspace.VertexOf(userKey(user))
		from := s.placement.ShardOf(vertex)
		if steps[from] == nil {
			steps[from] = &planv1.Step{
				Number: uint32(len(steps) + 1), From: uint32(from), To: uint32(from%storeShards + 1), Reason: "every second user",
			}
			plan.Steps = append(plan.Steps, steps[from])
		}
		steps[from].Vertices = append(steps[from].Vertices, []byte(vertex))
	}
	one := keyspace.VertexOf(userKey(1))
	from := s.placement.ShardOf(one)
	plan.Steps = append(plan.Steps, &planv1.Step{
		Number: uint32(len(plan.Steps) + 1), From: uint32(from), To: uint32(from%storeShards + 1),
		Slots: []uint32{uint32(keyspace.SlotOf(one))}, Reason: "the slot of user 1",
	})
	return plan
}

func (s *store) untilPhase(ctx context.Context, want oraclev1.Phase) *oraclev1.Rebalance {
	s.t.Helper()
	for {
		r, err := s.admin.GetRebalance(ctx, &oraclev1.GetRebalanceRequest{Name: "r"})
		if err == nil && r.GetPhase() == want {
			return r
		}
		ended := r.GetPhase() >= oraclev1.Phase_PHASE_SUCCEEDED
		if ctx.Err() != nil || ended {
			s.t.Fatalf("waiting for %v: the rebalance is %v (error %v)", want, r, err)
		}
	}
}

// upstream returns how many requests Envoy has sent to a shard.
func (s *store) upstream(name string) int {
	s.t.Helper()
	address, err := os.ReadFile(s.adminFile)
	if err != nil {
		s.t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(within(s.t), http.MethodGet, "http://"+strings.TrimSpace(string(address))+"/stats?filter=cluster."+name+".upstream_rq_total", http.NoBody)
	if err != nil {
		s.t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	_, number, _ := strings.Cut(strings.TrimSpace(string(text)), ": ")
	n, err := strconv.Atoi(number)
	if err != nil {
		s.t.Fatalf("statistics of %s: %q", name, text)
	}
	return n
}

// checkPlaces reads each counter by a thin call and sees at Envoy to which shard it went.
func (s *store) checkPlaces(when string, shardOf func(user int) keyspace.ShardID) {
	s.t.Helper()
	for user := range storeUsers {
		name := shardOf(user).String()
		before := s.upstream(name)
		ctx := metadata.AppendToOutgoingContext(within(s.t), translate.HeaderKey, translate.EncodeHeader(userKey(user)))
		reply, err := kvv1.NewKVClient(s.client).Get(ctx, &kvv1.GetRequest{Key: []byte(userKey(user))})
		if err != nil {
			s.t.Errorf("%s: read %s: %v", when, userKey(user), err)
			continue
		}
		if want := strconv.FormatInt(s.applied[user].Load(), 10); string(reply.GetValue()) != want && want != "0" {
			s.t.Errorf("%s: %s is %s, want %s: an increment was lost or ran twice", when, userKey(user), reply.GetValue(), want)
		}
		if s.upstream(name) != before+1 {
			s.t.Errorf("%s: a read of %s did not go to %s", when, userKey(user), name)
		}
	}
}

// DESIGN sections 3.5 and 5: no client sees an error before, during or after a
// handoff, and afterwards Envoy routes to the new owner.
func TestRealHandoffIsInvisible(t *testing.T) {
	s := startStore(t)
	home := func(user int) keyspace.ShardID { return s.placement.ShardOf(keyspace.VertexOf(userKey(user))) }
	s.checkPlaces("before", home)

	sdk, err := client.Dial(within(t), client.Config{Target: s.ir.Listener})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sdk.Close() }()
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer func() {
		stop()
		clients.Wait()
	}()
	for id := range 3 {
		clients.Go(func() {
			if err := s.thinLoad(ctx, uint64(id+1)); err != nil {
				t.Error(err)
			}
		})
		clients.Go(func() {
			if err := s.streamLoad(ctx, sdk, id); err != nil {
				t.Error(err)
			}
		})
	}
	r := s.rebalance()
	s.await(keyspace.Epoch(r.GetEpoch()))
	stop()
	clients.Wait()
	total := int64(0)
	for user := range s.applied {
		total += s.applied[user].Load()
	}
	t.Logf("%d increments while %d vertices moved; pause p99 %d µs, max %d µs; client %+v", total, r.GetMovedVertices(), r.GetPauseP99Micros(), r.GetPauseMaxMicros(), sdk.Stats())
	if r.GetMovedVertices() != storeUsers/2 {
		t.Errorf("%d vertices moved, want %d: %v", r.GetMovedVertices(), storeUsers/2, r)
	}
	s.checkPlaces("after", func(user int) keyspace.ShardID {
		if user%2 == 0 || user == 1 {
			return home(user)%storeShards + 1
		}
		return home(user)
	})
	status, err := s.admin.GetStatus(within(t), &oraclev1.GetStatusRequest{}, grpc.WaitForReady(true))
	if err != nil || status.GetEdgeAcknowledgedEpoch() != status.GetEpoch() {
		t.Errorf("the oracle is at epoch %d, Envoy at %d (error %v)", status.GetEpoch(), status.GetEdgeAcknowledgedEpoch(), err)
	}
}
