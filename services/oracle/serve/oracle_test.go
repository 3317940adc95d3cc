// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
	"github.com/kolocate/kolocate/services/keyspace/wire"
)

func quickPolicy(mode string) *oraclev1.Policy {
	return &oraclev1.Policy{Mode: mode, WindowSeconds: 1, CooldownSeconds: 0.1, MinimumCommands: 100, MpoShareThreshold: 0.2}
}

func create(t *testing.T, h *harness, name, approval string) {
	t.Helper()
	_, err := h.admin.CreateRebalance(context.Background(), &oraclev1.CreateRebalanceRequest{Name: name, Approval: approval, TraceSeconds: 1, Reason: "test"})
	if err != nil {
		t.Fatal(err)
	}
}

func control(t *testing.T, h *harness, name string, action oraclev1.RebalanceAction) {
	t.Helper()
	if _, err := h.admin.ControlRebalance(context.Background(), &oraclev1.ControlRebalanceRequest{Name: name, Action: action}); err != nil {
		t.Fatal(err)
	}
}

// TestRebalanceSucceeds leads a rebalance through every phase with approval by
// a person, watched by a client, and checks the epochs it sees.
func TestRebalanceSucceeds(t *testing.T) {
	h := startOracle(t, t.TempDir(), quickPolicy("Manual"))
	first, second := h.startShard(1), h.startShard(2)
	epochs := watch(t, h)
	create(t, h, "r", "Manual")
	before := h.awaitPhase("r", oraclev1.Phase_PHASE_PARTITIONING)
	if share := before.GetBefore().GetMpoShare(); share < 0.49 || share > 0.51 {
		t.Errorf("measured share before is %g, want the 0.5 that the shards report", share)
	}
	wantA, wantB := 3-h.shardOf("a"), 3-h.shardOf("b")
	if err := h.plan("r", "a", "b"); err != nil {
		t.Fatal(err)
	}
	h.awaitPhase("r", oraclev1.Phase_PHASE_PROPOSED)
	first.set(func() { first.share = 0.1 })
	second.set(func() { second.share = 0.1 })
	control(t, h, "r", oraclev1.RebalanceAction_REBALANCE_ACTION_APPROVE)
	r := h.awaitPhase("r", oraclev1.Phase_PHASE_SUCCEEDED)
	if r.GetStepsDone() != 2 || r.GetMovedBytes() != 200 || r.GetPauseMaxMicros() != 7 || r.GetEpoch() != 3 || r.GetAfter().GetMpoShare() > 0.2 {
		t.Errorf("after success: %v", r)
	}
	if h.shardOf("a") != wantA || h.shardOf("b") != wantB {
		t.Errorf("the placement does not show the moves")
	}
	h.eventually("the watcher sees epoch 3", func(context.Context) (bool, string) { e := epochs(); return e == 3, "epoch" })
}

// watch follows the placement like a client does, delta by delta.
func watch(t *testing.T, h *harness) (epoch func() keyspace.Epoch) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := oraclev1.NewPlacementClient(h.conn).Watch(ctx, &oraclev1.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	news := make(chan keyspace.Epoch, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		var p *keyspace.Placement
		for {
			response, err := stream.Recv()
			if err != nil {
				return
			}
			if response.GetSnapshot() != nil {
				p, err = wire.DecodePlacement(response.GetSnapshot())
			}
			if response.GetDelta() != nil && err == nil {
				delta, _ := wire.DecodeDelta(response.GetDelta())
				p, err = p.Apply(delta)
			}
			if err != nil {
				t.Errorf("watch: %v", err)
				return
			}
			news <- p.Epoch()
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	var last keyspace.Epoch
	return func() keyspace.Epoch {
		for {
			select {
			case last = <-news:
			default:
				return last
			}
		}
	}
}

// TestWorseIsTakenBack: the share of multi-shard commands rises after the
// moves, so the reverse plan is carried out.
func TestWorseIsTakenBack(t *testing.T) {
	h := startOracle(t, t.TempDir(), quickPolicy("Manual"))
	first, second := h.startShard(1), h.startShard(2)
	create(t, h, "r", "Automatic")
	h.awaitPhase("r", oraclev1.Phase_PHASE_PARTITIONING)
	home := h.shardOf("a")
	first.set(func() { first.share = 0.9 })
	second.set(func() { second.share = 0.9 })
	if err := h.plan("r", "a"); err != nil {
		t.Fatal(err)
	}
	h.awaitPhase("r", oraclev1.Phase_PHASE_REVERTED)
	if at := h.shardOf("a"); at != home {
		t.Errorf("vertex a is at shard %d after the revert, want %d", at, home)
	}
}

// TestAbortedStepsFail: a handoff that its source keeps taking back is tried a
// bounded number of times, and the rebalance ends with the reason.
func TestAbortedStepsFail(t *testing.T) {
	h := startOracle(t, t.TempDir(), quickPolicy("Manual"))
	first, second := h.startShard(1), h.startShard(2)
	for _, s := range []*shard{first, second} {
		s.set(func() { s.outcome = shardv1.HandoffPhase_HANDOFF_PHASE_ABORTED })
	}
	create(t, h, "r", "Automatic")
	h.awaitPhase("r", oraclev1.Phase_PHASE_PARTITIONING)
	if err := h.plan("r", "a"); err != nil {
		t.Fatal(err)
	}
	r := h.awaitPhase("r", oraclev1.Phase_PHASE_FAILED)
	if r.GetStepsAborted() != 1 || r.GetEpoch() != 1 || len(first.moves)+len(second.moves) != 3 {
		t.Errorf("after failure: %v, %d moves asked for", r, len(first.moves)+len(second.moves))
	}
}

// TestResumesAfterRestart: the oracle dies with a handoff under way; it asks
// for the same handoff again and ends the rebalance.
func TestResumesAfterRestart(t *testing.T) {
	dir := t.TempDir()
	h := startOracle(t, dir, quickPolicy("Manual"))
	first, second := h.startShard(1), h.startShard(2)
	for _, s := range []*shard{first, second} {
		s.set(func() { s.outcome = shardv1.HandoffPhase_HANDOFF_PHASE_UNSPECIFIED })
	}
	create(t, h, "r", "Automatic")
	h.awaitPhase("r", oraclev1.Phase_PHASE_PARTITIONING)
	if err := h.plan("r", "a"); err != nil {
		t.Fatal(err)
	}
	asked := func() (moves []*shardv1.MoveRequest) {
		for _, s := range []*shard{first, second} {
			s.set(func() { moves = append(moves, s.moves...) })
		}
		return moves
	}
	h.eventually("a handoff is under way", func(context.Context) (bool, string) { return len(asked()) == 1, "none yet" })
	h.stop()
	h = startOracle(t, dir, nil)
	first, second = h.startShard(1), h.startShard(2)
	for _, s := range []*shard{first, second} {
		s.set(func() { s.genesis = &oraclev1.Genesis{} }) // they keep their data
	}
	h.awaitPhase("r", oraclev1.Phase_PHASE_SUCCEEDED)
	if again := asked(); len(again) != 1 || again[0].GetHandoff().GetId() != 1 {
		t.Errorf("after the restart %v was asked for, want handoff 1 once", again)
	}
}

// TestTriggerStartsRebalance: in mode Auto the counters alone start one.
func TestTriggerStartsRebalance(t *testing.T) {
	h := startOracle(t, t.TempDir(), quickPolicy("Auto"))
	h.startShard(1)
	h.startShard(2)
	h.eventually("the trigger starts a rebalance", func(ctx context.Context) (bool, string) {
		s, err := h.admin.GetStatus(ctx, &oraclev1.GetStatusRequest{})
		return err == nil && s.GetActiveRebalance() != "", s.GetTrigger()
	})
}

// TestEmptyShardIsRefused: a shard that had data and comes back without is told
// so instead of being given a genesis again.
func TestEmptyShardIsRefused(t *testing.T) {
	h := startOracle(t, t.TempDir(), quickPolicy("Off"))
	s := h.startShard(1)
	h.eventually("the shard is initialised", func(ctx context.Context) (bool, string) {
		status, err := h.admin.GetStatus(ctx, &oraclev1.GetStatusRequest{})
		return err == nil && status.GetShards()[0].GetReady(), "not yet"
	})
	// One more report must have been recorded as initialised before the data goes.
	h.eventually("the oracle refuses it", func(context.Context) (bool, string) {
		refused := ""
		s.set(func() { s.empty, refused = true, s.refused })
		return refused != "", refused
	})
}

func TestRefusedRequests(t *testing.T) {
	h := startOracle(t, t.TempDir(), quickPolicy("Off"))
	ctx := context.Background()
	_, err := h.admin.GetRebalance(ctx, &oraclev1.GetRebalanceRequest{Name: "nobody"})
	wantCode(t, err, codes.NotFound)
	_, err = h.admin.SetShards(ctx, &oraclev1.SetShardsRequest{Count: 1})
	wantCode(t, err, codes.FailedPrecondition)
	_, err = h.admin.SetPolicy(ctx, &oraclev1.SetPolicyRequest{Policy: &oraclev1.Policy{Mode: "Sometimes"}})
	wantCode(t, err, codes.FailedPrecondition)
	_, err = oraclev1.NewTraceClient(h.conn).Report(ctx, &oraclev1.ReportRequest{Store: "other"})
	wantCode(t, err, codes.FailedPrecondition)
	stream, err := oraclev1.NewRegistryClient(h.conn).Join(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&oraclev1.JoinRequest{Store: "other", Shard: 1, Replica: 1}); err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	wantCode(t, err, codes.FailedPrecondition)
}
