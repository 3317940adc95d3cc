// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package oracle owns the operator's connections to the oracles of all stores
// and finds the replica that leads. It never decides what to ask. The
// controllers of Store and Rebalance call it.
package oracle

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
)

// callTimeout bounds a call to one replica: an oracle answers from memory, or
// after one commit to its log.
const callTimeout = 5 * time.Second

// Dialer connects to the address of an oracle replica.
type Dialer func(ctx context.Context, address string) (net.Conn, error)

// Pool keeps one connection for each address that was asked for. It may be used
// concurrently.
type Pool struct {
	dial  Dialer
	mu    sync.Mutex
	conns map[string]*grpc.ClientConn
}

// NewPool makes a pool that dials TCP if dial is nil.
func NewPool(dial Dialer) *Pool {
	if dial == nil {
		dial = func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{Timeout: callTimeout}).DialContext(ctx, "tcp", address)
		}
	}
	return &Pool{dial: dial, conns: map[string]*grpc.ClientConn{}}
}

// Forget closes the connections to these addresses, of a store that is gone.
func (p *Pool) Forget(addresses []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, address := range addresses {
		if conn, ok := p.conns[address]; ok {
			delete(p.conns, address)
			_ = conn.Close() // only fails if it was closed before
		}
	}
}

// Close closes all connections.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for address, conn := range p.conns {
		delete(p.conns, address)
		_ = conn.Close() // only fails if it was closed before
	}
}

func (p *Pool) conn(address string) (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if conn, ok := p.conns[address]; ok {
		return conn, nil
	}
	// The name is resolved at each dial: the address of a pod changes with it.
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(p.dial),
		// A pod that came back is found again within seconds.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second},
			MinConnectTimeout: callTimeout,
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("preparing the connection to the oracle at %s: %w", address, err)
	}
	p.conns[address] = conn
	return conn, nil
}

// Admin gives the admin calls of the oracle whose replicas have these addresses.
func (p *Pool) Admin(addresses []string) *Admin {
	return &Admin{pool: p, addresses: addresses}
}

// Admin is the part of the oracle's admin service that the operator uses. Each
// call goes to the replicas in turn until one that leads answers. Errors keep
// their gRPC status.
type Admin struct {
	pool      *Pool
	addresses []string
}

// Status gives the state of the store as the oracle sees it.
func (a *Admin) Status(ctx context.Context) (*oraclev1.StoreStatus, error) {
	return call(ctx, a, "GetStatus", oraclev1.AdminClient.GetStatus, &oraclev1.GetStatusRequest{})
}

// SetShards says how many shards the store should have.
func (a *Admin) SetShards(ctx context.Context, count uint32) (*oraclev1.StoreStatus, error) {
	return call(ctx, a, "SetShards", oraclev1.AdminClient.SetShards, &oraclev1.SetShardsRequest{Count: count})
}

// SetPolicy replaces the rebalancing policy.
func (a *Admin) SetPolicy(ctx context.Context, policy *oraclev1.Policy) (*oraclev1.StoreStatus, error) {
	return call(ctx, a, "SetPolicy", oraclev1.AdminClient.SetPolicy, &oraclev1.SetPolicyRequest{Policy: policy})
}

// List gives the rebalances that the oracle keeps.
func (a *Admin) List(ctx context.Context) ([]*oraclev1.Rebalance, error) {
	response, err := call(ctx, a, "ListRebalances", oraclev1.AdminClient.ListRebalances, &oraclev1.ListRebalancesRequest{})
	return response.GetRebalances(), err
}

// Get gives one rebalance; codes.NotFound if the oracle does not know it.
func (a *Admin) Get(ctx context.Context, name string) (*oraclev1.Rebalance, error) {
	return call(ctx, a, "GetRebalance", oraclev1.AdminClient.GetRebalance, &oraclev1.GetRebalanceRequest{Name: name})
}

// Create starts a rebalance, or gives the one of that name.
func (a *Admin) Create(ctx context.Context, request *oraclev1.CreateRebalanceRequest) (*oraclev1.Rebalance, error) {
	return call(ctx, a, "CreateRebalance", oraclev1.AdminClient.CreateRebalance, request)
}

// Control approves, pauses, resumes, stops or fails a rebalance.
func (a *Admin) Control(ctx context.Context, name string, action oraclev1.RebalanceAction, message string) (*oraclev1.Rebalance, error) {
	return call(ctx, a, "ControlRebalance", oraclev1.AdminClient.ControlRebalance,
		&oraclev1.ControlRebalanceRequest{Name: name, Action: action, Message: message})
}

type method[Q, R any] func(oraclev1.AdminClient, context.Context, Q, ...grpc.CallOption) (R, error)

func call[Q, R any](ctx context.Context, a *Admin, name string, do method[Q, R], request Q) (R, error) {
	var (
		none R
		last error
	)
	for _, address := range a.addresses {
		conn, err := a.pool.conn(address)
		if err != nil {
			return none, err
		}
		bounded, cancel := context.WithTimeout(ctx, callTimeout)
		response, err := do(oraclev1.NewAdminClient(conn), bounded, request)
		cancel()
		if err == nil {
			return response, nil
		}
		last = fmt.Errorf("calling %s of the oracle at %s: %w", name, address, err)
		if !elsewhere(status.Code(err)) || ctx.Err() != nil {
			return none, last
		}
	}
	if last == nil {
		last = status.Errorf(codes.Unavailable, "calling %s of the oracle: it has no replica", name)
	}
	return none, last
}

// elsewhere says whether another replica may answer: followers refuse with
// Unavailable, and a replica that hangs runs into the timeout.
func elsewhere(code codes.Code) bool {
	return code == codes.Unavailable || code == codes.DeadlineExceeded
}

// Reason gives the text of an error of this package without the gRPC wording,
// for conditions and events.
func Reason(err error) string {
	var answer interface{ GRPCStatus() *status.Status }
	if errors.As(err, &answer) && answer.GRPCStatus().Message() != "" {
		return answer.GRPCStatus().Message()
	}
	return err.Error()
}
