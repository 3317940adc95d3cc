// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/kolocate/kolocate/api/client/sequence"
	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
)

// service serves clients, other shards and the oracle.
type service struct {
	kvv1.UnimplementedKVServer
	shardv1.UnimplementedPeerServer
	shardv1.UnimplementedControlServer
	engine *engine
	// client and ids make updates exactly-once that came without an id, so that
	// this process can try them again.
	client uint64
	ids    sequence.Window
}

// unarySink takes the one reply of a unary call.
type unarySink struct {
	service *service
	reply   chan *kvv1.Reply
}

func (u *unarySink) put(r *request, reply *kvv1.Reply) {
	if r.sequence != 0 {
		u.service.ids.Answer(r.sequence)
	}
	u.reply <- reply
}

func (u *unarySink) flush() {}

// run runs one command for a unary call, wherever its keys are.
func (s *service) run(ctx context.Context, cmd *kvv1.Command) (*kvv1.Result, error) {
	now := time.Now()
	timeout := time.Duration(0)
	if deadline, ok := ctx.Deadline(); ok {
		timeout = max(time.Millisecond, deadline.Sub(now))
	}
	out := &unarySink{service: s, reply: make(chan *kvv1.Reply, 1)}
	r := &request{sink: out}
	r.prepare(cmd, proto.Size(cmd), timeout, &s.engine.config.Limits, now)
	if !r.reads && cmd.GetId() == nil {
		next, below, err := s.ids.Take()
		if err != nil {
			return nil, status.Error(codes.ResourceExhausted, err.Error())
		}
		r.sequence = next
		cmd.Id = &kvv1.CommandId{Client: s.client, Sequence: next, AcknowledgedBelow: below}
	}
	s.engine.accept([]*request{r})
	select {
	case reply := <-out.reply:
		return reply.GetResult(), statusOf(r, reply)
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

func first(result *kvv1.Result) *kvv1.OpResult {
	if ops := result.GetOps(); len(ops) > 0 {
		return ops[0]
	}
	return nil
}

// Get reads a key.
func (s *service) Get(ctx context.Context, m *kvv1.GetRequest) (*kvv1.GetResponse, error) {
	result, err := s.run(ctx, getCommand(m))
	if err != nil {
		return nil, err
	}
	r := first(result)
	return &kvv1.GetResponse{Found: r.GetFound(), Value: r.GetValue(), Version: r.GetVersion()}, nil
}

// Put writes a key.
func (s *service) Put(ctx context.Context, m *kvv1.PutRequest) (*kvv1.PutResponse, error) {
	result, err := s.run(ctx, putCommand(m))
	if err != nil {
		return nil, err
	}
	return &kvv1.PutResponse{Version: first(result).GetVersion()}, nil
}

// Delete removes a key.
func (s *service) Delete(ctx context.Context, m *kvv1.DeleteRequest) (*kvv1.DeleteResponse, error) {
	result, err := s.run(ctx, deleteCommand(m))
	if err != nil {
		return nil, err
	}
	return &kvv1.DeleteResponse{Existed: first(result).GetFound()}, nil
}

// CompareAndSwap writes a key if it holds what is expected.
func (s *service) CompareAndSwap(ctx context.Context, m *kvv1.CompareAndSwapRequest) (*kvv1.CompareAndSwapResponse, error) {
	result, err := s.run(ctx, compareAndSwapCommand(m))
	if err != nil {
		return nil, err
	}
	r := first(result)
	if result.GetSucceeded() {
		return &kvv1.CompareAndSwapResponse{Swapped: true, Version: r.GetVersion()}, nil
	}
	return &kvv1.CompareAndSwapResponse{Found: r.GetFound(), Value: r.GetValue(), Version: r.GetVersion()}, nil
}

// Increment adds to the decimal integer in a key.
func (s *service) Increment(ctx context.Context, m *kvv1.IncrementRequest) (*kvv1.IncrementResponse, error) {
	result, err := s.run(ctx, incrementCommand(m))
	if err != nil {
		return nil, err
	}
	r := first(result)
	return &kvv1.IncrementResponse{Value: r.GetNumber(), Version: r.GetVersion()}, nil
}

// Scan reads keys in order.
func (s *service) Scan(ctx context.Context, m *kvv1.ScanRequest) (*kvv1.ScanResponse, error) {
	cmd, err := scanCommand(m)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	result, err := s.run(ctx, cmd)
	if err != nil {
		return nil, err
	}
	r := first(result)
	return &kvv1.ScanResponse{Entries: r.GetEntries(), More: r.GetMore()}, nil
}

// Txn runs a transaction over declared keys.
func (s *service) Txn(ctx context.Context, m *kvv1.TxnRequest) (*kvv1.TxnResponse, error) {
	cmd, err := txnCommand(m)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	result, err := s.run(ctx, cmd)
	if err != nil {
		return nil, err
	}
	return &kvv1.TxnResponse{Succeeded: result.GetSucceeded(), Results: result.GetOps()}, nil
}
