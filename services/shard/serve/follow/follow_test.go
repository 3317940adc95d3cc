// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/services/keyspace"
	"github.com/kolocate/kolocate/services/keyspace/wire"
)

// oracle is one replica: it serves what script says, or nothing if it does not lead.
type oracle struct {
	oraclev1.UnimplementedPlacementServer
	oraclev1.UnimplementedRegistryServer
	oraclev1.UnimplementedTraceServer
	address string
	leads   bool
	script  []*oraclev1.WatchResponse

	mu      sync.Mutex
	known   []uint64
	joined  []*oraclev1.JoinRequest
	reports int
}

func newOracle(t *testing.T, leads bool) *oracle {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := &oracle{address: listener.Addr().String(), leads: leads}
	server := grpc.NewServer()
	oraclev1.RegisterPlacementServer(server, o)
	oraclev1.RegisterRegistryServer(server, o)
	oraclev1.RegisterTraceServer(server, o)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return o
}

var errNotLeading = status.Error(codes.Unavailable, "does not lead")

func (o *oracle) Watch(m *oraclev1.WatchRequest, stream grpc.ServerStreamingServer[oraclev1.WatchResponse]) error {
	if !o.leads {
		return errNotLeading
	}
	o.mu.Lock()
	o.known = append(o.known, m.GetKnownEpoch())
	first := len(o.known) == 1
	o.mu.Unlock()
	for i, answer := range o.script {
		// Only the first watch sees the gap; the second gets the whole.
		if first || i == 0 {
			if err := stream.Send(answer); err != nil {
				return err
			}
		}
	}
	<-stream.Context().Done()
	return nil
}

func (o *oracle) Join(stream grpc.BidiStreamingServer[oraclev1.JoinRequest, oraclev1.JoinResponse]) error {
	if !o.leads {
		return errNotLeading
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		o.mu.Lock()
		o.joined = append(o.joined, m)
		o.mu.Unlock()
		if err := stream.Send(&oraclev1.JoinResponse{SampleRate: 0.5}); err != nil {
			return err
		}
	}
}

func (o *oracle) Report(context.Context, *oraclev1.ReportRequest) (*oraclev1.ReportResponse, error) {
	if !o.leads {
		return nil, errNotLeading
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.reports++
	return &oraclev1.ReportResponse{}, nil
}

func follow(t *testing.T, heard func(*oraclev1.JoinResponse), replicas ...*oracle) *Follower {
	t.Helper()
	config := Config{
		Report: func() *oraclev1.JoinRequest { return &oraclev1.JoinRequest{Shard: 3} },
		Heard:  heard, Moved: func() {}, Logger: slog.New(slog.DiscardHandler),
	}
	for _, o := range replicas {
		config.Oracle = append(config.Oracle, o.address)
	}
	f, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { f.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	return f
}

func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !condition(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 20 s", what)
		}
		<-time.After(2 * time.Millisecond)
	}
}

func TestFollowsTheLeaderOverAGap(t *testing.T) {
	p, err := keyspace.EvenPlacement(2)
	if err != nil {
		t.Fatal(err)
	}
	follower, leader := newOracle(t, false), newOracle(t, true)
	leader.script = []*oraclev1.WatchResponse{
		{Snapshot: wire.EncodePlacement("test", p), Shards: []*oraclev1.ShardEndpoints{
			{Shard: 2, Replicas: []*oraclev1.ReplicaEndpoint{{Address: "a"}, {Address: "b", Leader: true}}}, {Shard: 1},
		}},
		{Delta: &oraclev1.PlacementDelta{FromEpoch: 1, ToEpoch: 2, Overrides: []*oraclev1.Override{{Vertex: []byte("v"), Shard: 2}}}},
		{Delta: &oraclev1.PlacementDelta{FromEpoch: 5, ToEpoch: 6}},
	}
	heard := make(chan float64, 100)
	f := follow(t, func(m *oraclev1.JoinResponse) {
		select {
		case heard <- m.GetSampleRate():
		default:
		}
	}, follower, leader)
	await(t, "a second watch after the gap", func() bool {
		leader.mu.Lock()
		defer leader.mu.Unlock()
		return len(leader.known) >= 2
	})
	leader.mu.Lock()
	if leader.known[0] != 0 || leader.known[1] != 0 {
		t.Errorf("watched from epochs %v: after a gap the whole placement is wanted", leader.known)
	}
	leader.mu.Unlock()
	if f.Epoch() != 2 || f.Placement().ShardOf("v") != 2 {
		t.Errorf("epoch %d: an older placement replaced a newer one", f.Epoch())
	}
	if got := f.Addresses(2); !slices.Equal(got, []string{"b", "a"}) || !slices.Equal(f.Shards(), []keyspace.ShardID{1, 2}) {
		t.Errorf("addresses %v of shards %v", got, f.Shards())
	}
	if rate := <-heard; rate != 0.5 {
		t.Errorf("sample rate %v", rate)
	}
	leader.mu.Lock()
	before := len(leader.joined)
	leader.mu.Unlock()
	f.Poke()
	await(t, "a report at once", func() bool {
		leader.mu.Lock()
		defer leader.mu.Unlock()
		return len(leader.joined) > before && leader.joined[0].GetShard() == 3
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := f.Trace(ctx, &oraclev1.ReportRequest{}); err != nil || leader.reports != 1 {
		t.Errorf("trace: %v, %d reports", err, leader.reports)
	}
}

func TestNewRefuses(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("no address: no error")
	}
}
