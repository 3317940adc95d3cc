// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	"github.com/kolocate/kolocate/services/shard/serve/peers"
)

// statusOf is where the outcomes of commands become the status of unary calls.
func statusOf(r *request, reply *kvv1.Reply) error {
	message := reply.GetMessage()
	switch reply.GetOutcome() {
	case kvv1.Outcome_OUTCOME_OK:
		if refused := reply.GetResult().GetRefused(); refused != "" {
			return status.Error(codes.FailedPrecondition, refused)
		}
		return nil
	case kvv1.Outcome_OUTCOME_REJECTED:
		return status.Error(codes.InvalidArgument, message)
	case kvv1.Outcome_OUTCOME_UNKNOWN:
		if r.reason == reasonDeadline {
			return status.Error(codes.DeadlineExceeded, message+"; it may have run or may yet run")
		}
		return status.Error(codes.Unavailable, message+"; it may have run or may yet run")
	default:
		switch r.reason {
		case reasonBound:
			return status.Error(codes.ResourceExhausted, message+"; try again in a moment")
		case reasonDeadline:
			return status.Error(codes.DeadlineExceeded, message)
		default:
			return status.Error(codes.Unavailable, message+"; it did not run, try again in a moment")
		}
	}
}

// notLeader refuses a stream and names the leader in the trailer, if it is known.
func (s *service) notLeader(ctx context.Context) error {
	e := s.engine
	leader := e.config.Peers[e.term.Load().leaderID]
	if e.term.Load().leaderID == e.config.Replica {
		leader = ""
	}
	if leader == "" {
		return status.Errorf(codes.FailedPrecondition, "replica %d does not lead %v, and knows of no leader yet; try again in a moment", e.config.Replica, e.config.Shard)
	}
	if err := grpc.SetTrailer(ctx, metadata.Pairs(peers.LeaderTrailer, leader)); err != nil {
		e.log.Debug("the leader could not be named to a client", "reason", err)
	}
	return status.Errorf(codes.FailedPrecondition, "replica %d does not lead %v; replica %d at %s does", e.config.Replica, e.config.Shard, e.term.Load().leaderID, leader)
}
