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
	planv1 "github.com/kolocate/kolocate/api/proto/plan/v1"
	"github.com/kolocate/kolocate/services/oracle/directory"
	"github.com/kolocate/kolocate/services/oracle/graph"
	"github.com/kolocate/kolocate/services/replica"
)

// adminService implements oraclev1.AdminServer.
type adminService struct {
	oraclev1.UnimplementedAdminServer
	oracle *Oracle
}

// grpcError maps the errors of proposals to gRPC's.
func grpcError(err error) error {
	var refusal *directory.RefusalError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refusal) && refusal.NotFound:
		return status.Error(codes.NotFound, refusal.Reason)
	case errors.As(err, &refusal):
		return status.Error(codes.FailedPrecondition, refusal.Reason)
	case errors.Is(err, replica.ErrNotLeader), errors.Is(err, replica.ErrLeadershipLost), errors.Is(err, replica.ErrStopped):
		return status.Errorf(codes.Unavailable, "%v; try again", err)
	case errors.Is(err, context.DeadlineExceeded):
		return status.Errorf(codes.Unavailable, "the oracle's log did not take the change within %v; it may still do: read before you try again", proposeTimeout)
	default:
		return status.Error(codes.Internal, err.Error())
	}
}

// GetStatus returns what the oracle knows of the store.
func (s *adminService) GetStatus(context.Context, *oraclev1.GetStatusRequest) (*oraclev1.StoreStatus, error) {
	if err := s.oracle.requireLeader(); err != nil {
		return nil, err
	}
	return s.oracle.status(time.Now()), nil
}

// SetShards raises the number of shards.
func (s *adminService) SetShards(ctx context.Context, r *oraclev1.SetShardsRequest) (*oraclev1.StoreStatus, error) {
	entry := &oraclev1.LogEntry{Body: &oraclev1.LogEntry_ShardsSet{ShardsSet: &oraclev1.ShardsSet{Count: r.GetCount()}}}
	if err := s.oracle.propose(ctx, entry); err != nil {
		return nil, grpcError(err)
	}
	return s.oracle.status(time.Now()), nil
}

// SetPolicy replaces the rebalancing policy; unset fields get their defaults.
func (s *adminService) SetPolicy(ctx context.Context, r *oraclev1.SetPolicyRequest) (*oraclev1.StoreStatus, error) {
	entry := &oraclev1.LogEntry{Body: &oraclev1.LogEntry_PolicySet{PolicySet: &oraclev1.PolicySet{Policy: r.GetPolicy()}}}
	if err := s.oracle.propose(ctx, entry); err != nil {
		return nil, grpcError(err)
	}
	return s.oracle.status(time.Now()), nil
}

// CreateRebalance starts a rebalance. With the name of an existing one it returns that.
func (s *adminService) CreateRebalance(ctx context.Context, r *oraclev1.CreateRebalanceRequest) (*oraclev1.Rebalance, error) {
	created := &oraclev1.RebalanceCreated{Name: r.GetName(), Approval: r.GetApproval(), TraceSeconds: r.GetTraceSeconds()}
	if r.GetReason() != "" {
		created.Reasons = []string{r.GetReason()}
	}
	entry := &oraclev1.LogEntry{Body: &oraclev1.LogEntry_RebalanceCreated{RebalanceCreated: created}}
	if err := s.oracle.propose(ctx, entry); err != nil {
		return nil, grpcError(err)
	}
	return s.rebalance(r.GetName())
}

// GetRebalance returns one rebalance.
func (s *adminService) GetRebalance(_ context.Context, r *oraclev1.GetRebalanceRequest) (*oraclev1.Rebalance, error) {
	if err := s.oracle.requireLeader(); err != nil {
		return nil, err
	}
	return s.rebalance(r.GetName())
}

func (s *adminService) rebalance(name string) (r *oraclev1.Rebalance, err error) {
	s.oracle.machine.view(func(d *directory.Directory) { r, err = d.Rebalance(name) })
	if err != nil {
		return nil, grpcError(err)
	}
	s.oracle.conductor.Load().addProgress(r)
	return r, nil
}

// ListRebalances returns all rebalances that are kept, oldest first.
func (s *adminService) ListRebalances(context.Context, *oraclev1.ListRebalancesRequest) (*oraclev1.ListRebalancesResponse, error) {
	if err := s.oracle.requireLeader(); err != nil {
		return nil, err
	}
	var response oraclev1.ListRebalancesResponse
	s.oracle.machine.view(func(d *directory.Directory) { response.Rebalances = d.Rebalances() })
	for _, r := range response.GetRebalances() {
		s.oracle.conductor.Load().addProgress(r)
	}
	return &response, nil
}

// ControlRebalance approves, pauses, resumes, stops or fails a rebalance.
func (s *adminService) ControlRebalance(ctx context.Context, r *oraclev1.ControlRebalanceRequest) (*oraclev1.Rebalance, error) {
	entry := &oraclev1.LogEntry{Body: &oraclev1.LogEntry_RebalanceControlled{RebalanceControlled: &oraclev1.RebalanceControlled{
		Name: r.GetName(), Action: r.GetAction(), Message: r.GetMessage(),
	}}}
	if err := s.oracle.propose(ctx, entry); err != nil {
		return nil, grpcError(err)
	}
	return s.rebalance(r.GetName())
}

// FetchGraph streams the graph that a rebalance is to be planned from; without
// a name, a fresh one.
func (s *adminService) FetchGraph(r *oraclev1.FetchGraphRequest, stream oraclev1.Admin_FetchGraphServer) error {
	if err := s.oracle.requireLeader(); err != nil {
		return err
	}
	snapshot, err := s.graphFor(r.GetRebalance())
	if err != nil {
		return err
	}
	data, err := graph.Encode(snapshot)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	for i, chunk := range graph.Split(data, 0) {
		message := &oraclev1.GraphChunk{Data: chunk.Data, Checksum: chunk.Checksum, Last: chunk.Last}
		if i == 0 {
			message.Options = s.oracle.planOptions()
		}
		if err := stream.Send(message); err != nil {
			return err
		}
	}
	return nil
}

func (s *adminService) graphFor(name string) (*planv1.Graph, error) {
	if name == "" {
		now := time.Now()
		var fresh *planv1.Graph
		s.oracle.machine.view(func(d *directory.Directory) {
			if d.Founded() {
				r := s.oracle.registry.since(now.Add(-statusWindow), now)
				fresh = s.oracle.tracer.take("", d.Placement(), r, d.Shards(), now)
			}
		})
		if fresh == nil {
			return nil, status.Error(codes.Unavailable, "the store is not founded yet; try again in a moment")
		}
		return fresh, nil
	}
	snapshot := s.oracle.tracer.taken(name)
	if snapshot == nil {
		return nil, status.Errorf(codes.FailedPrecondition, "no graph was taken for rebalance %q, or another replica of the oracle leads since; wait until it is Partitioning again", name)
	}
	return snapshot, nil
}

// SubmitPlan takes the plan of a partitioner that runs elsewhere.
func (s *adminService) SubmitPlan(stream oraclev1.Admin_SubmitPlanServer) error {
	var name string
	var joiner graph.Joiner
	for last := false; !last; {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return status.Error(codes.InvalidArgument, "the plan ends before its last chunk; send it again")
		}
		if err != nil {
			return err
		}
		if name == "" {
			name = chunk.GetRebalance()
		}
		last = chunk.GetLast()
		if err := joiner.Add(graph.Chunk{Data: chunk.GetData(), Checksum: chunk.GetChecksum(), Last: last}); err != nil {
			return status.Error(codes.DataLoss, err.Error())
		}
	}
	data, err := joiner.Bytes()
	if err != nil {
		return status.Error(codes.DataLoss, err.Error())
	}
	plan, err := graph.DecodePlan(data, s.oracle.config.Store)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if err := s.oracle.acceptPlan(stream.Context(), name, plan); err != nil {
		return grpcError(err)
	}
	r, err := s.rebalance(name)
	if err != nil {
		return err
	}
	return stream.SendAndClose(r)
}

// GetPlan streams the plan of a rebalance.
func (s *adminService) GetPlan(r *oraclev1.GetPlanRequest, stream oraclev1.Admin_GetPlanServer) error {
	if err := s.oracle.requireLeader(); err != nil {
		return err
	}
	var plan *planv1.Plan
	var err error
	s.oracle.machine.view(func(d *directory.Directory) { plan, err = d.Plan(r.GetRebalance()) })
	if err != nil {
		return grpcError(err)
	}
	data, err := graph.EncodePlan(plan)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	for _, chunk := range graph.Split(data, 0) {
		message := &oraclev1.PlanChunk{Rebalance: r.GetRebalance(), Data: chunk.Data, Checksum: chunk.Checksum, Last: chunk.Last}
		if err := stream.Send(message); err != nil {
			return err
		}
	}
	return nil
}
