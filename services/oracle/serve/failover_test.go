// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
)

// oracleMember is one of three replicas of an oracle.
type oracleMember struct {
	admin oraclev1.AdminClient
	stop  func()
}

func startThree(t *testing.T) []*oracleMember {
	t.Helper()
	peers := map[uint64]string{}
	for id := range uint64(3) {
		peers[id+1] = freeAddress(t)
	}
	members := make([]*oracleMember, 3)
	for i := range members {
		id := uint64(i + 1)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		config := Config{
			Store: "s", Shards: 2, Replica: id, Peers: peers, DataDir: t.TempDir(), Listen: peers[id], MetricsListen: "127.0.0.1:0",
			EnvoyListener: "127.0.0.1:8080", Policy: quickPolicy("Manual"), Partitioner: PartitionerExternal,
			NewEdge: func(*slog.Logger, prometheus.Registerer) (Edge, error) { return noEnvoy{}, nil },
			Logger:  slog.New(slog.DiscardHandler), TickInterval: 20 * time.Millisecond, ElectionTimeout: 200 * time.Millisecond,
		}
		go func() { ended <- Run(ctx, config) }()
		var once sync.Once
		stop := func() {
			once.Do(func() {
				cancel()
				if err := <-ended; err != nil {
					t.Errorf("replica %d of the oracle ended with %v", id, err)
				}
			})
		}
		t.Cleanup(stop)
		conn, err := grpc.NewClient(peers[id], grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		members[i] = &oracleMember{admin: oraclev1.NewAdminClient(conn), stop: stop}
	}
	return members
}

// leaderOf waits until one of the members answers as the leader.
func leaderOf(t *testing.T, members []*oracleMember) int {
	t.Helper()
	leader := -1
	(&harness{t: t}).eventually("one of the members leads", func(ctx context.Context) (bool, string) {
		why := ""
		for i, m := range members {
			call, cancel := context.WithTimeout(ctx, time.Second)
			s, err := m.admin.GetStatus(call, &oraclev1.GetStatusRequest{})
			cancel()
			if err == nil && s.GetEpoch() > 0 {
				leader = i
				return true, ""
			}
			why += fmt.Sprintf("%d: %v; ", i+1, err)
		}
		return false, why
	})
	return leader
}

// TestAnotherReplicaTakesOver: with three replicas, what one leader recorded the
// next one knows, and a follower names the leader instead of answering.
func TestAnotherReplicaTakesOver(t *testing.T) {
	members := startThree(t)
	first := leaderOf(t, members)
	ctx := context.Background()
	if _, err := members[first].admin.SetShards(ctx, &oraclev1.SetShardsRequest{Count: 3}); err != nil {
		t.Fatal(err)
	}
	if _, err := members[first].admin.CreateRebalance(ctx, &oraclev1.CreateRebalanceRequest{Name: "r", TraceSeconds: 1000}); err != nil {
		t.Fatal(err)
	}
	follower := members[(first+1)%3]
	if _, err := follower.admin.GetStatus(ctx, &oraclev1.GetStatusRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("a follower answers %v, want UNAVAILABLE", err)
	}
	members[first].stop()
	rest := []*oracleMember{members[(first+1)%3], members[(first+2)%3]}
	second := rest[leaderOf(t, rest)]
	s, err := second.admin.GetStatus(ctx, &oraclev1.GetStatusRequest{})
	if err != nil || len(s.GetShards()) != 3 || s.GetActiveRebalance() != "r" {
		t.Errorf("after the change of leader: %v, %v", s, err)
	}
	if _, err := second.admin.ControlRebalance(ctx, &oraclev1.ControlRebalanceRequest{Name: "r", Action: oraclev1.RebalanceAction_REBALANCE_ACTION_STOP}); err != nil {
		t.Errorf("the second leader does not take changes: %v", err)
	}
}
