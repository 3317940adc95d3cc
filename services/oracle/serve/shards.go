// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/services/oracle/directory"
)

// shardService is what shards report to.
type shardService struct {
	oraclev1.UnimplementedRegistryServer
	oraclev1.UnimplementedTraceServer
	oracle *Oracle
}

// Join takes the reports of one replica and answers each of them.
func (s *shardService) Join(stream oraclev1.Registry_JoinServer) error {
	for {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		response, err := s.joined(stream.Context(), request)
		if err != nil {
			return err
		}
		if err := stream.Send(response); err != nil {
			return err
		}
	}
}

func (s *shardService) joined(ctx context.Context, r *oraclev1.JoinRequest) (*oraclev1.JoinResponse, error) {
	if err := s.oracle.requireLeader(); err != nil {
		return nil, err
	}
	now := time.Now()
	var response *oraclev1.JoinResponse
	var refusal error
	initialised := false
	s.oracle.machine.view(func(d *directory.Directory) {
		if !d.Founded() {
			refusal = status.Error(codes.Unavailable, "the store is not founded yet; try again in a moment")
			return
		}
		if r.GetStore() != d.Store() {
			refusal = status.Errorf(codes.FailedPrecondition, "this is the oracle of store %q, the replica belongs to %q; correct its --store or --oracle", d.Store(), r.GetStore())
			return
		}
		response, refusal = s.welcome(d, r)
		initialised = d.Initialised(r.GetShard())
	})
	if refusal != nil {
		return nil, refusal
	}
	s.oracle.registry.report(r, now)
	response.EpochKnownEverywhere = s.oracle.epochKnownEverywhere(now)
	response.SampleRate = s.oracle.sampleRate()
	if r.GetLeader() && r.GetInitialised() && !initialised {
		entry := &oraclev1.LogEntry{Body: &oraclev1.LogEntry_ShardInitialised{ShardInitialised: &oraclev1.ShardInitialised{Shard: r.GetShard()}}}
		if err := s.oracle.propose(ctx, entry); err != nil {
			return nil, grpcError(err)
		}
	}
	return response, nil
}

// welcome answers with the genesis of a shard that has none yet, and refuses one
// that lost the data it had.
func (s *shardService) welcome(d *directory.Directory, r *oraclev1.JoinRequest) (*oraclev1.JoinResponse, error) {
	response := &oraclev1.JoinResponse{}
	genesis, err := d.Genesis(r.GetShard())
	if err != nil {
		return nil, grpcError(err)
	}
	switch {
	case r.GetInitialised() || !r.GetLeader():
	case d.Initialised(r.GetShard()):
		response.Refused = "this shard held data before and comes back empty: its volume was lost or replaced. Restore the volume; serving without it would lose acknowledged writes"
	default:
		response.Genesis = genesis
	}
	return response, nil
}

// Report takes what a shard leader sampled.
func (s *shardService) Report(_ context.Context, r *oraclev1.ReportRequest) (*oraclev1.ReportResponse, error) {
	if err := s.oracle.requireLeader(); err != nil {
		return nil, err
	}
	if r.GetStore() != s.oracle.config.Store {
		return nil, status.Errorf(codes.FailedPrecondition, "trace report for store %q reached the oracle of %q; correct the shard's --oracle", r.GetStore(), s.oracle.config.Store)
	}
	if err := s.oracle.tracer.merge(r, time.Now()); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return &oraclev1.ReportResponse{}, nil
}
