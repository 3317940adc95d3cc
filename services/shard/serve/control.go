// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

const (
	// moveInterval is how often the progress of a handoff is looked at.
	moveInterval = 10 * time.Millisecond
	// moveReport is how often it is sent though nothing changed.
	moveReport = time.Second
)

// Move starts or joins a handoff and streams its progress until it has ended.
func (s *service) Move(m *shardv1.MoveRequest, stream grpc.ServerStreamingServer[shardv1.MoveProgress]) error {
	h, config := m.GetHandoff(), s.engine.config
	if keyspace.ShardID(h.GetFrom()) != config.Shard {
		return status.Errorf(codes.InvalidArgument, "handoff %d is from %v, but this is %v; ask its source", h.GetId(), keyspace.ShardID(h.GetFrom()), config.Shard)
	}
	ctx := stream.Context()
	if err := s.onLeader(ctx, func(e *engine) error { return e.leader.StartMove(m, time.Now()) }); err != nil {
		return err
	}
	ticker := time.NewTicker(moveInterval)
	defer ticker.Stop()
	var last *shardv1.MoveProgress
	sent := time.Time{}
	for {
		p, err := s.progress(ctx, h.GetId())
		if err != nil {
			return err
		}
		if now := time.Now(); p != nil && (now.Sub(sent) >= moveReport || !proto.Equal(p, last)) {
			last, sent = p, now
			if err := stream.Send(p); err != nil {
				return err
			}
		}
		if ended(p) {
			return nil
		}
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-ticker.C:
		}
	}
}

func ended(p *shardv1.MoveProgress) bool {
	return p.GetPhase() == shardv1.HandoffPhase_HANDOFF_PHASE_DONE || p.GetPhase() == shardv1.HandoffPhase_HANDOFF_PHASE_ABORTED
}

func (s *service) progress(ctx context.Context, id uint64) (p *shardv1.MoveProgress, err error) {
	err = s.onLeader(ctx, func(e *engine) error {
		p = e.leader.Progress(id)
		return nil
	})
	return p, err
}

// onLeader runs fn on the apply goroutine if this replica leads an initialised shard.
func (s *service) onLeader(ctx context.Context, fn func(*engine) error) error {
	var failure error
	leads, ready := false, false
	err := s.engine.host.Run(func() { //nolint:contextcheck // the function neither waits nor outlives the call
		e := s.engine
		leads, ready = e.leader != nil, e.core.HasGenesis()
		if leads && ready {
			failure = fn(e)
			e.finishRound(time.Now())
		}
	})
	switch {
	case err != nil:
		return status.Error(codes.Unavailable, err.Error())
	case !leads:
		return s.notLeader(ctx)
	case !ready:
		return status.Errorf(codes.Unavailable, "%v has not heard from the oracle yet which slots are its own; try again in a moment", s.engine.config.Shard)
	case failure != nil:
		return status.Error(codes.FailedPrecondition, failure.Error())
	}
	return nil
}

// AbortMove takes a handoff back if it has not passed its point of no return,
// and answers when it has ended one way or the other.
func (s *service) AbortMove(ctx context.Context, m *shardv1.AbortMoveRequest) (*shardv1.MoveProgress, error) {
	if err := s.onLeader(ctx, func(e *engine) error { return e.leader.AbortMove(m.GetId(), time.Now()) }); err != nil {
		return nil, err
	}
	ticker := time.NewTicker(moveInterval)
	defer ticker.Stop()
	for {
		p, err := s.progress(ctx, m.GetId())
		if err != nil || ended(p) {
			return p, err
		}
		select {
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		case <-ticker.C:
		}
	}
}

// Status describes this replica.
func (s *service) Status(context.Context, *shardv1.StatusRequest) (*shardv1.StatusResponse, error) {
	e := s.engine
	var moves []*shardv1.MoveProgress
	if err := e.host.Run(func() { //nolint:contextcheck // the function does not wait
		if e.leader != nil {
			moves = e.leader.Moves()
		}
	}); err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	r, raft := e.known.Load(), e.host.Status()
	return &shardv1.StatusResponse{
		Store: e.config.Store, Shard: uint32(e.config.Shard), Replica: uint32(e.config.Replica), //nolint:gosec // at most 5 replicas
		Leader: r.leading, LeaderReplica: uint32(raft.LeaderID), Term: raft.Term, Applied: raft.Applied, //nolint:gosec // at most 5 replicas
		Keys: r.stats.Keys, Bytes: r.stats.Bytes, Clock: r.stats.Clock, Epoch: uint64(e.follower.Epoch()),
		Slots: uint32(r.stats.Slots), VerticesIn: uint64(r.stats.VerticesIn), VerticesOut: uint64(r.stats.VerticesOut), //nolint:gosec // lengths
		Pending: uint64(r.stats.Pending), Held: uint64(r.stats.Held), Handoffs: moves, Version: e.config.Version, //nolint:gosec // lengths
	}, nil
}
