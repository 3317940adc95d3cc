// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	planv1 "github.com/kolocate/kolocate/api/proto/plan/v1"
	"github.com/kolocate/kolocate/services/oracle/directory"
	"github.com/kolocate/kolocate/services/replica"
)

const (
	// chunkBytes is the size of one chunk of a graph or plan on the wire.
	chunkBytes = 1 << 20
	// maxPlanBytes bounds an encoded plan.
	maxPlanBytes = 256 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// adminService implements oraclev1.AdminServer.
type adminService struct {
	oraclev1.UnimplementedAdminServer
	oracle *Oracle
}

// grpcError maps the errors of proposals to gRPC's.
func grpcError(err error) error {
	var refusal *directory.Refusal
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

// FetchGraph streams the graph that a rebalance is to be planned from.
func (s *adminService) FetchGraph(r *oraclev1.FetchGraphRequest, stream oraclev1.Admin_FetchGraphServer) error {
	if err := s.oracle.requireLeader(); err != nil {
		return err
	}
	graph, err := s.oracle.graphFor(r.GetRebalance())
	if err != nil {
		return err
	}
	data, err := proto.Marshal(graph)
	if err != nil {
		return status.Errorf(codes.Internal, "encode graph: %v", err)
	}
	checksum := crc32.Checksum(data, castagnoli)
	for first := true; first || len(data) > 0; first = false {
		chunk := &oraclev1.GraphChunk{Data: data[:min(len(data), chunkBytes)]}
		data = data[len(chunk.GetData()):]
		if first {
			chunk.Options = s.oracle.planOptions()
		}
		if len(data) == 0 {
			chunk.Last, chunk.Checksum = true, checksum
		}
		if err := stream.Send(chunk); err != nil {
			return err
		}
	}
	return nil
}

// SubmitPlan takes the plan of a partitioner that runs elsewhere.
func (s *adminService) SubmitPlan(stream oraclev1.Admin_SubmitPlanServer) error {
	var name string
	var data []byte
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
		data = append(data, chunk.GetData()...)
		if len(data) > maxPlanBytes {
			return status.Errorf(codes.ResourceExhausted, "the plan is over %d bytes; raise the vertices in a step or lower the moves", maxPlanBytes)
		}
		if last = chunk.GetLast(); last && crc32.Checksum(data, castagnoli) != chunk.GetChecksum() {
			return status.Error(codes.DataLoss, "the plan was damaged on its way (its checksum differs); send it again")
		}
	}
	var plan planv1.Plan
	if err := proto.Unmarshal(data, &plan); err != nil {
		return status.Errorf(codes.InvalidArgument, "read the plan: %v", err)
	}
	if err := s.oracle.acceptPlan(stream.Context(), name, &plan); err != nil {
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
	data, err := proto.Marshal(plan)
	if err != nil {
		return fmt.Errorf("encode plan: %w", err)
	}
	checksum := crc32.Checksum(data, castagnoli)
	for last := false; !last; {
		chunk := &oraclev1.PlanChunk{Rebalance: r.GetRebalance(), Data: data[:min(len(data), chunkBytes)]}
		data = data[len(chunk.GetData()):]
		if last = len(data) == 0; last {
			chunk.Last, chunk.Checksum = true, checksum
		}
		if err := stream.Send(chunk); err != nil {
			return err
		}
	}
	return nil
}
