// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package job

import (
	"context"
	"errors"
	"flag"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	planv1 "github.com/kolocate/kolocate/api/proto/plan/v1"
	"github.com/kolocate/kolocate/services/keyspace"
	"github.com/kolocate/kolocate/services/oracle/graph"
	"github.com/kolocate/kolocate/services/partitioner/plan"
)

// blocks is a partitioner that puts the first half of the vertices into part 0.
type blocks struct{}

func (blocks) Name() string { return "blocks" }

func (blocks) Partition(ctx context.Context, g *plan.CSR, parts int, _ plan.PartitionOptions) ([]int32, error) {
	part := make([]int32, len(g.VertexWeights))
	for v := range part {
		part[v] = int32(v * parts / len(part))
	}
	return part, ctx.Err()
}

// pairs is a graph of four vertices: a-b and c-d are used together, across shards.
func pairs() *planv1.Graph {
	g := &planv1.Graph{
		Version: graph.Version, Store: "s", Epoch: 7, Shards: []uint32{1, 2}, SingleVertexWeight: 10,
		SlotHomes: []*planv1.SlotHome{{First: 0, Last: keyspace.Slots - 1, Shard: 1}},
	}
	for i, name := range []string{"a", "b", "c", "d"} {
		g.Vertices = append(g.Vertices, &planv1.GraphVertex{Name: []byte(name), Slot: uint32(keyspace.SlotOf(keyspace.Vertex(name))), Shard: uint32(1 + i%2), Load: 10, Bytes: 100})
	}
	g.Edges = []*planv1.GraphEdge{{A: 0, B: 1, Weight: 5}, {A: 2, B: 3, Weight: 5}}
	for range 20 {
		g.Commands = append(g.Commands, &planv1.SampledCommand{Vertices: []uint32{0, 1}, Weight: 0.25}, &planv1.SampledCommand{Vertices: []uint32{2, 3}, Weight: 0.25})
	}
	return g
}

func write(t *testing.T, name string, m proto.Message) string {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRunWithFiles(t *testing.T) {
	t.Parallel()
	c := Config{GraphFile: write(t, "graph", pairs()), OptionsFile: write(t, "options", &planv1.PlanOptions{Imbalance: 0.05}), PlanFile: filepath.Join(t.TempDir(), "plan")}
	var out strings.Builder
	if err := Run(context.Background(), c, blocks{}, &out); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(c.PlanFile)
	if err != nil {
		t.Fatal(err)
	}
	made, err := graph.DecodePlan(data, "s")
	if err != nil {
		t.Fatal(err)
	}
	if len(made.GetSteps()) == 0 || made.GetPrediction().GetMpoShareAfter() != 0 || made.GetEpoch() != 7 {
		t.Fatalf("plan %v", made)
	}
	if !strings.Contains(out.String(), "multi-shard share 50.00 % to 0.00 %") {
		t.Fatalf("summary %q", out.String())
	}
	left, err := os.ReadDir(filepath.Dir(c.PlanFile))
	if err != nil || len(left) != 1 {
		t.Fatalf("beside the plan lies %v (%v)", left, err)
	}
}

func TestRunNamesWhatIsWrongWithFiles(t *testing.T) {
	t.Parallel()
	newer := pairs()
	newer.Version = 99
	plans := filepath.Join(t.TempDir(), "plan")
	torn := write(t, "torn", pairs())
	data, err := os.ReadFile(torn)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(torn, data[:len(data)-3], 0o600); err != nil {
		t.Fatal(err)
	}
	for name, try := range map[string]struct {
		config Config
		want   error
	}{
		"no graph":         {Config{GraphFile: filepath.Join(t.TempDir(), "none"), PlanFile: plans}, os.ErrNotExist},
		"no folder":        {Config{GraphFile: write(t, "g", pairs()), PlanFile: filepath.Join(t.TempDir(), "none", "plan")}, os.ErrNotExist},
		"newer graph":      {Config{GraphFile: write(t, "g", newer), PlanFile: plans}, graph.ErrVersion},
		"torn graph":       {Config{GraphFile: torn, PlanFile: plans}, graph.ErrTorn},
		"options in words": {Config{GraphFile: write(t, "g", pairs()), OptionsFile: write(t, "o", &planv1.PlanOptions{Preconfiguration: "quick"}), PlanFile: plans}, plan.ErrOptions},
	} {
		if err := Run(context.Background(), try.config, blocks{}, io.Discard); !errors.Is(err, try.want) {
			t.Errorf("%s: %v, expected %v", name, err, try.want)
		}
	}
	if _, err := os.Stat(plans); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a plan was written: %v", err)
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	c, err := Parse([]string{"--oracle", "a:1, b:2", "--rebalance", "r"}, io.Discard)
	if err != nil || len(c.Oracle) != 2 || c.Oracle[1] != "b:2" {
		t.Errorf("%v, %v", c, err)
	}
	for _, arguments := range [][]string{
		{},
		{"--graph", "g"},
		{"--oracle", "a:1"},
		{"--rebalance", "r"},
		{"--graph", "g", "--plan", "p", "--oracle", "a:1", "--rebalance", "r"},
		{"--what"},
		{"--graph", "g", "--plan", "p", "more"},
	} {
		if _, err := Parse(arguments, io.Discard); !errors.Is(err, ErrUsage) {
			t.Errorf("%q: %v, expected a usage error", arguments, err)
		}
	}
	if _, err := Parse([]string{"--help"}, io.Discard); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("--help: %v", err)
	}
}

// store is an oracle that serves one rebalance.
type store struct {
	oraclev1.UnimplementedAdminServer

	mu     sync.Mutex
	graph  *planv1.Graph
	follow bool // is no leader
	lost   int  // answers to SubmitPlan that get lost
	refuse error
	plan   []byte
	failed string
}

func (s *store) FetchGraph(_ *oraclev1.FetchGraphRequest, stream oraclev1.Admin_FetchGraphServer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.follow {
		return status.Error(codes.Unavailable, "not the leader")
	}
	data, err := graph.Encode(s.graph)
	if err != nil {
		return err
	}
	for i, c := range graph.Split(data, 50) {
		message := &oraclev1.GraphChunk{Data: c.Data, Checksum: c.Checksum, Last: c.Last}
		if i == 0 {
			message.Options = &planv1.PlanOptions{Imbalance: 0.05}
		}
		if err := stream.Send(message); err != nil {
			return err
		}
	}
	return nil
}

func (s *store) SubmitPlan(stream oraclev1.Admin_SubmitPlanServer) error {
	var joiner graph.Joiner
	for {
		c, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := joiner.Add(graph.Chunk{Data: c.GetData(), Checksum: c.GetChecksum(), Last: c.GetLast()}); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	data, err := joiner.Bytes()
	switch {
	case err != nil:
		return err
	case s.refuse != nil:
		return s.refuse
	case s.plan != nil:
		return status.Error(codes.FailedPrecondition, "it takes a plan only while Partitioning")
	}
	s.plan = data
	if s.lost > 0 {
		s.lost--
		return status.Error(codes.Unavailable, "the answer got lost")
	}
	return stream.SendAndClose(&oraclev1.Rebalance{})
}

func (s *store) GetPlan(_ *oraclev1.GetPlanRequest, stream oraclev1.Admin_GetPlanServer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range graph.Split(s.plan, 0) {
		if err := stream.Send(&oraclev1.PlanChunk{Data: c.Data, Checksum: c.Checksum, Last: c.Last}); err != nil {
			return err
		}
	}
	return nil
}

func (s *store) ControlRebalance(_ context.Context, r *oraclev1.ControlRebalanceRequest) (*oraclev1.Rebalance, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.GetAction() == oraclev1.RebalanceAction_REBALANCE_ACTION_FAIL {
		s.failed = r.GetMessage()
	}
	return &oraclev1.Rebalance{}, nil
}

func serve(t *testing.T, s *store) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	oraclev1.RegisterAdminServer(server, s)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-ended
	})
	return listener.Addr().String()
}

func TestRunWithAnOracle(t *testing.T) {
	t.Parallel()
	leader := &store{graph: pairs(), lost: 1}
	c := Config{Oracle: []string{serve(t, &store{follow: true}), serve(t, leader)}, Rebalance: "r"}
	if err := Run(context.Background(), c, blocks{}, io.Discard); err != nil {
		t.Fatal(err)
	}
	leader.mu.Lock()
	defer leader.mu.Unlock()
	made, err := graph.DecodePlan(leader.plan, "s")
	if err != nil || len(made.GetSteps()) == 0 || leader.failed != "" {
		t.Fatalf("plan %v, %v; reported as failed: %q", made, err, leader.failed)
	}
}

func TestRunReportsWhatAnotherTryCannotMend(t *testing.T) {
	t.Parallel()
	broken := pairs()
	broken.Edges[0].B = 44
	for name, s := range map[string]*store{
		"edge 0-44": {graph: broken},
		"old epoch": {graph: pairs(), refuse: status.Error(codes.FailedPrecondition, "old epoch")},
	} {
		err := Run(context.Background(), Config{Oracle: []string{serve(t, s)}, Rebalance: "r"}, blocks{}, io.Discard)
		s.mu.Lock()
		if err == nil || !strings.Contains(s.failed, name) {
			t.Errorf("%s: %v; reported %q", name, err, s.failed)
		}
		s.mu.Unlock()
	}
}
