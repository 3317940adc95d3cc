// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
)

// fakeOracle answers the admin calls of one store as the oracle does, and moves
// through the phases of a rebalance when a test says so.
type fakeOracle struct {
	oraclev1.UnimplementedAdminServer
	listener *bufconn.Listener

	mu         sync.Mutex
	status     *oraclev1.StoreStatus
	rebalances []*oraclev1.Rebalance
	looks      int
	policies   []*oraclev1.Policy
	actions    []*oraclev1.ControlRebalanceRequest
	refusal    error
}

func startOracle(t *testing.T, namespace, store string, shards uint32) *fakeOracle {
	t.Helper()
	o := &fakeOracle{
		listener: bufconn.Listen(1 << 16),
		status:   &oraclev1.StoreStatus{Store: store, Epoch: 1, Policy: &oraclev1.Policy{Mode: "Off"}},
	}
	o.setShards(shards)
	server := grpc.NewServer()
	oraclev1.RegisterAdminServer(server, o)
	served := make(chan error, 1)
	go func() { served <- server.Serve(o.listener) }()
	name := namespace + "/" + store
	oracles.mu.Lock()
	oracles.servers[name] = o
	oracles.mu.Unlock()
	t.Cleanup(func() {
		oracles.mu.Lock()
		delete(oracles.servers, name)
		oracles.mu.Unlock()
		server.Stop()
		if err := <-served; err != nil {
			t.Errorf("the test's oracle ended: %v", err)
		}
	})
	return o
}

func (o *fakeOracle) setShards(count uint32) {
	for n := uint32(len(o.status.GetShards())) + 1; n <= count; n++ {
		o.status.Shards = append(o.status.Shards, &oraclev1.ShardStatus{Shard: n, Ready: true})
	}
}

// change alters the oracle's state under its lock.
func (o *fakeOracle) change(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f()
}

func (o *fakeOracle) lookCount() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.looks
}

func (o *fakeOracle) find(name string) *oraclev1.Rebalance {
	i := slices.IndexFunc(o.rebalances, func(r *oraclev1.Rebalance) bool { return r.GetName() == name })
	if i < 0 {
		return nil
	}
	return o.rebalances[i]
}

func (o *fakeOracle) GetStatus(context.Context, *oraclev1.GetStatusRequest) (*oraclev1.StoreStatus, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.looks++
	if o.refusal != nil {
		return nil, o.refusal
	}
	return proto.CloneOf(o.status), nil
}

func (o *fakeOracle) SetShards(_ context.Context, r *oraclev1.SetShardsRequest) (*oraclev1.StoreStatus, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.setShards(r.GetCount())
	return proto.CloneOf(o.status), nil
}

func (o *fakeOracle) SetPolicy(_ context.Context, r *oraclev1.SetPolicyRequest) (*oraclev1.StoreStatus, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.policies = append(o.policies, r.GetPolicy())
	o.status.Policy = proto.CloneOf(r.GetPolicy())
	return proto.CloneOf(o.status), nil
}

func (o *fakeOracle) CreateRebalance(_ context.Context, r *oraclev1.CreateRebalanceRequest) (*oraclev1.Rebalance, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if found := o.find(r.GetName()); found != nil {
		return proto.CloneOf(found), nil
	}
	for _, other := range o.rebalances {
		if other.GetPhase() < oraclev1.Phase_PHASE_SUCCEEDED {
			return nil, status.Errorf(codes.FailedPrecondition, "rebalance %s is under way; wait for its end or stop it", other.GetName())
		}
	}
	approval := r.GetApproval()
	if approval == "" {
		approval = o.status.GetPolicy().GetApproval()
	}
	made := &oraclev1.Rebalance{
		Name: r.GetName(), Phase: oraclev1.Phase_PHASE_TRACING, Approval: approval, Message: "watching the workload",
		CreatedUnixMillis: time.Now().UnixMilli(), PhaseSinceUnixMillis: time.Now().UnixMilli(),
	}
	if r.GetReason() != "" {
		made.Reasons = []string{r.GetReason()}
	}
	o.rebalances = append(o.rebalances, made)
	return proto.CloneOf(made), nil
}

func (o *fakeOracle) GetRebalance(_ context.Context, r *oraclev1.GetRebalanceRequest) (*oraclev1.Rebalance, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if found := o.find(r.GetName()); found != nil {
		return proto.CloneOf(found), nil
	}
	return nil, status.Errorf(codes.NotFound, "rebalance %q is unknown", r.GetName())
}

func (o *fakeOracle) ListRebalances(context.Context, *oraclev1.ListRebalancesRequest) (*oraclev1.ListRebalancesResponse, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	response := &oraclev1.ListRebalancesResponse{}
	for _, r := range o.rebalances {
		response.Rebalances = append(response.Rebalances, proto.CloneOf(r))
	}
	return response, nil
}

func (o *fakeOracle) ControlRebalance(_ context.Context, r *oraclev1.ControlRebalanceRequest) (*oraclev1.Rebalance, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	found := o.find(r.GetName())
	if found == nil {
		return nil, status.Errorf(codes.NotFound, "rebalance %q is unknown", r.GetName())
	}
	o.actions = append(o.actions, r)
	switch r.GetAction() {
	case oraclev1.RebalanceAction_REBALANCE_ACTION_APPROVE:
		found.Phase, found.Message = oraclev1.Phase_PHASE_MIGRATING, "moving"
	case oraclev1.RebalanceAction_REBALANCE_ACTION_PAUSE:
		found.Paused = true
	case oraclev1.RebalanceAction_REBALANCE_ACTION_RESUME:
		found.Paused = false
	case oraclev1.RebalanceAction_REBALANCE_ACTION_STOP:
		found.Phase, found.Message = oraclev1.Phase_PHASE_STOPPED, "stopped"
	case oraclev1.RebalanceAction_REBALANCE_ACTION_FAIL:
		found.Phase, found.Message = oraclev1.Phase_PHASE_FAILED, r.GetMessage()
	default:
		return nil, status.Errorf(codes.InvalidArgument, "action %v is unknown", r.GetAction())
	}
	return proto.CloneOf(found), nil
}
