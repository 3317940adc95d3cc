// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	replicav1 "github.com/kolocate/kolocate/api/proto/replica/v1"
)

// agree waits until all members have applied the same, at least want entries, and returns it.
func (c *cluster) agree(want int) []string {
	c.t.Helper()
	var first []string
	for id := uint64(1); id <= uint64(len(c.peers)); id++ {
		m := c.members[id]
		if m == nil {
			continue
		}
		m.state.wait(c.t, fmt.Sprintf("%d entries at replica %d", want, id), func() bool { return len(m.state.applied) >= want })
		if got := m.state.get(); first == nil {
			first = got
		} else if !slices.Equal(first, got) {
			c.t.Fatalf("replica %d has applied %d entries, not the %d that another has", id, len(got), len(first))
		}
	}
	return first
}

func TestThreeMembersReplicate(t *testing.T) {
	c := newCluster(t, 3, nil)
	_, leader := c.leader()
	for i := range 100 {
		if err := leader.ProposeWait(testContext(t), fmt.Appendf(nil, "entry %d", i)); err != nil {
			t.Fatal(err)
		}
	}
	c.agree(100)
	for _, m := range c.members {
		if m == leader {
			continue
		}
		if err := m.Propose([]byte("x")); !errors.Is(err, ErrNotLeader) {
			t.Errorf("a follower answers a proposal with %v", err)
		}
		if err := m.Read(testContext(t), func() {}); !errors.Is(err, ErrNotLeader) {
			t.Errorf("a follower answers a read with %v", err)
		}
	}
}

// TestLeaderIsKilled kills leaders under load: what was acknowledged is in the log of all in the end.
func TestLeaderIsKilled(t *testing.T) {
	c := newCluster(t, 3, nil)
	var acknowledged []string
	for round := range 4 {
		for i := range 30 {
			data := fmt.Sprintf("round %d entry %d", round, i)
			c.propose(data)
			acknowledged = append(acknowledged, data)
		}
		id, _ := c.leader()
		c.kill(id)
		data := fmt.Sprintf("round %d without replica %d", round, id)
		c.propose(data)
		acknowledged = append(acknowledged, data)
		c.open(id, nil)
	}
	applied := c.agree(len(acknowledged))
	for _, data := range acknowledged {
		if !slices.Contains(applied, data) {
			t.Errorf("%q was acknowledged and is lost", data)
		}
	}
}

func TestFollowerCatchesUp(t *testing.T) {
	for name, keep := range map[string]int64{"by log": 16 << 20, "by snapshot": 1} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 3, func(cfg *Config) { cfg.SnapshotEveryBytes, cfg.KeepLogBytes = 30_000, keep })
			leaderID, leader := c.leader()
			follower := leaderID%3 + 1
			c.propose("before")
			c.kill(follower)
			for i := range 500 {
				if err := leader.ProposeWait(testContext(t), fmt.Appendf(nil, "entry %d", i)); err != nil {
					t.Fatal(err)
				}
			}
			m := c.open(follower, nil)
			c.agree(501)
			if (m.state.restores > 0) != (keep == 1) {
				t.Errorf("the follower was restored from %d snapshots", m.state.restores)
			}
			// What it has must survive its restart.
			c.kill(follower)
			c.propose("after")
			c.open(follower, nil)
			c.agree(502)
		})
	}
}

// TestReadsAreLinearizable counts acknowledged increments: a read begun after one must see it, through
// changes of the leader, with and without a lease.
func TestReadsAreLinearizable(t *testing.T) {
	for name, clockError := range map[string]time.Duration{"quorum": 0, "lease": 20 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 3, func(cfg *Config) { cfg.MaxClockError = clockError })
			c.leader()
			members := []*member{c.members[1], c.members[2], c.members[3]}
			var acknowledged, reads atomic.Int64
			end := make(chan struct{})
			var wg sync.WaitGroup
			for w := range 3 {
				wg.Go(func() { writeUntil(t, end, members, w, &acknowledged) })
				wg.Go(func() { readUntil(t, end, members, &acknowledged, &reads) })
			}
			for range 5 {
				_, leader := c.leader()
				before := reads.Load()
				for deadline := time.Now().Add(10 * time.Second); reads.Load() < before+50 && time.Now().Before(deadline); {
					pause()
				}
				if err := leader.TransferLeadership(testContext(t)); err != nil && !errors.Is(err, ErrNotLeader) {
					t.Error(err)
				}
			}
			close(end)
			wg.Wait()
		})
	}
}

// pause keeps a test's idle caller from taking the processor from the replicas.
func pause() { time.Sleep(time.Millisecond) }

func ended(end <-chan struct{}) bool {
	select {
	case <-end:
		return true
	default:
		return false
	}
}

func writeUntil(t *testing.T, end <-chan struct{}, members []*member, writer int, acknowledged *atomic.Int64) {
	for i := 0; !ended(end); i++ {
		pause()
		for _, m := range members {
			if m.Status().Leader && m.ProposeWait(testContext(t), fmt.Appendf(nil, "writer %d entry %d", writer, i)) == nil {
				acknowledged.Add(1)
			}
		}
	}
}

func readUntil(t *testing.T, end <-chan struct{}, members []*member, acknowledged, reads *atomic.Int64) {
	for !ended(end) {
		pause()
		for _, m := range members {
			before, seen := acknowledged.Load(), 0
			if m.Read(testContext(t), func() { seen = len(m.state.applied) }) != nil {
				continue
			}
			reads.Add(1)
			if int64(seen) < before {
				t.Errorf("a read saw %d entries, %d were acknowledged before it began", seen, before)
				return
			}
		}
	}
}

// TestStopMovesLeadership stops the leader in the planned way: another leads without an election timeout,
// and the same replica may be started and stopped again.
func TestStopMovesLeadership(t *testing.T) {
	c := newCluster(t, 3, nil)
	for range 3 {
		id, leader := c.leader()
		c.propose("x")
		start := time.Now()
		if err := leader.Stop(testContext(t)); err != nil {
			t.Fatal(err)
		}
		leader.server.Stop()
		delete(c.members, id)
		c.leader()
		t.Logf("a planned stop took %v until another led", time.Since(start))
		if leader.Err() != nil {
			t.Errorf("a stopped replica has the error %v", leader.Err())
		}
		c.open(id, nil)
	}
	c.agree(3)
}

// TestLastOneStops: without anyone to lead, a stop takes no longer than a few election timeouts.
func TestLastOneStops(t *testing.T) {
	c := newCluster(t, 3, nil)
	id, leader := c.leader()
	c.kill(id%3 + 1)
	c.kill((id+1)%3 + 1)
	start := time.Now()
	if err := leader.Stop(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("the last one took %v to stop", took)
	}
}

// TestLossIsAnnouncedInOrder moves leadership away: the former leader is told, and refuses proposals.
func TestLossIsAnnouncedInOrder(t *testing.T) {
	c := newCluster(t, 3, nil)
	_, leader := c.leader()
	if err := leader.ProposeWait(testContext(t), []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := leader.TransferLeadership(testContext(t)); err != nil {
		t.Fatal(err)
	}
	s := leader.state
	s.wait(t, "the loss", func() bool { return !s.leaderships[len(s.leaderships)-1].Leader })
	if err := leader.Propose([]byte("y")); !errors.Is(err, ErrNotLeader) {
		t.Errorf("a replica that lost leadership answers a proposal with %v", err)
	}
	s.wait(t, "the new leader's name", func() bool { return s.leaderships[len(s.leaderships)-1].LeaderID != 0 })
	last := uint64(0)
	for _, l := range s.leaderships {
		if l.Term < last {
			t.Errorf("leaderships went back: %v", s.leaderships)
		}
		last = l.Term
	}
}

// TestOtherGroupIsRefused sends what another group's replica would.
func TestOtherGroupIsRefused(t *testing.T) {
	c := newCluster(t, 1, nil)
	conn, err := grpc.NewClient(c.peers[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	stream, err := replicav1.NewReplicaClient(conn).Send(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&replicav1.SendRequest{Group: "store/shard-2", To: 1}); err != nil {
		t.Fatal(err)
	}
	_, err = stream.CloseAndRecv()
	if err == nil || status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a message of another group was answered by %v", err)
	}
}
