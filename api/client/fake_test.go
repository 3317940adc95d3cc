// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/services/keyspace"
	"github.com/kolocate/kolocate/services/keyspace/wire"
)

// fakeStore is a store of several shards behind one address: what Envoy, the
// oracle and the shards are to a client. Commands run one at a time, an id once.
type fakeStore struct {
	kvv1.UnimplementedKVServer

	address string
	server  *grpc.Server
	changed chan struct{} // closed and replaced at each change of placement

	mu        sync.Mutex
	placement *keyspace.Placement // where vertices are
	published *keyspace.Placement // what the oracle says
	data      map[string]string
	results   map[[2]uint64]*kvv1.Result
	executed  map[[2]uint64]int
	lowest    map[uint64]uint64
	requests  int
	// meddle may answer a command in place of the store (nil: the store does) or
	// end the stream.
	meddle func(shard keyspace.ShardID, n int, cmd *kvv1.Command) (*kvv1.Reply, error)
	// loseReply runs the command and ends the stream instead of answering.
	loseReply func(n int) bool
}

func newFakeStore(t *testing.T, shards int) *fakeStore {
	t.Helper()
	p, err := keyspace.EvenPlacement(shards)
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeStore{
		placement: p, published: p, changed: make(chan struct{}), data: map[string]string{},
		results: map[[2]uint64]*kvv1.Result{}, executed: map[[2]uint64]int{}, lowest: map[uint64]uint64{},
	}
	f.start(t, "127.0.0.1:0")
	t.Cleanup(func() { f.server.Stop() })
	return f
}

func (f *fakeStore) start(t *testing.T, address string) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	f.address = listener.Addr().String()
	f.server = grpc.NewServer(grpc.MaxRecvMsgSize(maxMessageBytes))
	kvv1.RegisterKVServer(f.server, f)
	oraclev1.RegisterPlacementServer(f.server, fakeOracle{store: f})
	server := f.server
	go func() {
		if err := server.Serve(listener); err != nil {
			t.Logf("fake store: %v", err)
		}
	}()
}

func (f *fakeStore) dial(t *testing.T, change func(*Config)) *Client {
	t.Helper()
	config := Config{Target: f.address}
	if change != nil {
		change(&config)
	}
	c, err := Dial(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

// move changes where a vertex is; publish tells the oracle's watchers.
func (f *fakeStore) move(t *testing.T, v keyspace.Vertex, to keyspace.ShardID, publish bool) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	next, err := f.placement.Apply(keyspace.Delta{From: f.placement.Epoch(), To: f.placement.Epoch() + 1, Overrides: []keyspace.VertexMove{{Vertex: v, To: to}}})
	if err != nil {
		t.Fatal(err)
	}
	f.placement = next
	if publish {
		f.published = next
		close(f.changed)
		f.changed = make(chan struct{})
	}
}

// fakeOracle is the oracle's Placement service of a fakeStore.
type fakeOracle struct {
	oraclev1.UnimplementedPlacementServer
	store *fakeStore
}

// Watch sends the whole placement whenever it changes.
func (o fakeOracle) Watch(r *oraclev1.WatchRequest, stream grpc.ServerStreamingServer[oraclev1.WatchResponse]) error {
	known, f := r.GetKnownEpoch(), o.store
	for {
		f.mu.Lock()
		p, changed := f.published, f.changed
		f.mu.Unlock()
		if uint64(p.Epoch()) != known {
			if err := stream.Send(&oraclev1.WatchResponse{Snapshot: wire.EncodePlacement("fake", p)}); err != nil {
				return err
			}
			known = uint64(p.Epoch())
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

// Execute implements the KV service.
func (f *fakeStore) Execute(stream grpc.BidiStreamingServer[kvv1.ExecuteRequest, kvv1.ExecuteResponse]) error {
	md, _ := metadata.FromIncomingContext(stream.Context())
	shard, err := keyspace.ParseShard(strings.Join(md.Get(shardHeader), ","))
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, r := range m.GetRequests() {
			reply, err := f.answer(shard, r)
			if err != nil {
				return err
			}
			if reply == nil {
				continue
			}
			reply.Tag = r.GetTag()
			if err := stream.Send(&kvv1.ExecuteResponse{Replies: []*kvv1.Reply{reply}}); err != nil {
				return err
			}
		}
	}
}

func (f *fakeStore) answer(shard keyspace.ShardID, r *kvv1.Request) (*kvv1.Reply, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests++
	cmd := r.GetCommand()
	if f.meddle != nil {
		if reply, err := f.meddle(shard, f.requests, cmd); reply != nil || err != nil {
			return reply, err
		}
	}
	var hints []*kvv1.Hint
	here := 0
	for _, key := range cmd.GetKeys() {
		v := keyspace.VertexOf(string(key))
		at := f.placement.ShardOf(v)
		hints = append(hints, &kvv1.Hint{Vertex: []byte(v), Shard: uint32(at)})
		if at == shard {
			here++
		}
	}
	if here == 0 {
		return &kvv1.Reply{Outcome: kvv1.Outcome_OUTCOME_MOVED, Hints: hints}, nil
	}
	reply := &kvv1.Reply{Outcome: kvv1.Outcome_OUTCOME_OK, Result: f.once(cmd), MultiShard: here < len(cmd.GetKeys())}
	if f.loseReply != nil && f.loseReply(f.requests) {
		return nil, status.Error(codes.Unavailable, "the reply is lost")
	}
	return reply, nil
}

func (f *fakeStore) once(cmd *kvv1.Command) *kvv1.Result {
	if cmd.GetId() == nil {
		return f.run(cmd)
	}
	id := [2]uint64{cmd.GetId().GetClient(), cmd.GetId().GetSequence()}
	f.lowest[id[0]] = max(f.lowest[id[0]], cmd.GetId().GetAcknowledgedBelow())
	if r := f.results[id]; r != nil {
		return r
	}
	f.executed[id]++
	f.results[id] = f.run(cmd)
	return f.results[id]
}

func (f *fakeStore) run(cmd *kvv1.Command) *kvv1.Result {
	result := &kvv1.Result{Succeeded: true}
	for _, c := range cmd.GetCompares() {
		value, found := f.data[string(cmd.GetKeys()[c.GetKey()])]
		switch c.GetKind() {
		case kvv1.CompareKind_COMPARE_KIND_VALUE_EQUAL:
			result.Succeeded = result.Succeeded && found && value == string(c.GetValue())
		default:
			result.Succeeded = result.Succeeded && !found
		}
	}
	ops := cmd.GetThenOps()
	if !result.GetSucceeded() {
		ops = cmd.GetElseOps()
	}
	for _, op := range ops {
		key := string(cmd.GetKeys()[op.GetKey()])
		out := &kvv1.OpResult{}
		value, found := f.data[key]
		switch op.GetKind() {
		case kvv1.OpKind_OP_KIND_PUT:
			f.data[key] = string(op.GetValue())
		case kvv1.OpKind_OP_KIND_DELETE:
			out.Found = found
			delete(f.data, key)
		case kvv1.OpKind_OP_KIND_INCREMENT:
			n, err := strconv.ParseInt("0"+value, 10, 64)
			if err != nil {
				return &kvv1.Result{Refused: "no integer"}
			}
			out.Number = n + op.GetDelta()
			f.data[key] = strconv.FormatInt(out.GetNumber(), 10)
		case kvv1.OpKind_OP_KIND_SCAN_VERTEX, kvv1.OpKind_OP_KIND_SCAN_RANGE:
			f.scan(op, key, out)
		default:
			out.Found, out.Value = found, []byte(value)
		}
		result.Ops = append(result.Ops, out)
	}
	return result
}

func (f *fakeStore) scan(op *kvv1.Op, start string, out *kvv1.OpResult) {
	for key := range f.data {
		inVertex := op.GetKind() == kvv1.OpKind_OP_KIND_SCAN_RANGE || keyspace.VertexOf(key) == keyspace.VertexOf(start)
		if inVertex && (op.GetFromFirst() || key >= start) && (len(op.GetEnd()) == 0 || key < string(op.GetEnd())) {
			out.Entries = append(out.Entries, &kvv1.KeyValue{Key: []byte(key), Value: []byte(f.data[key])})
		}
	}
	slices.SortFunc(out.Entries, func(a, b *kvv1.KeyValue) int { return strings.Compare(string(a.GetKey()), string(b.GetKey())) })
	limit := int(op.GetLimit())
	if limit == 0 {
		limit = keyspace.DefaultScanEntries
	}
	if len(out.Entries) > limit {
		out.Entries, out.More = out.Entries[:limit], true
	}
}

func within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}
