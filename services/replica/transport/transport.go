// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package transport owns the wire between the members of one Raft group: gRPC streams with bounded queues.
// It never decides anything about the log, and may lose messages, which Raft allows.
// The host of services/replica calls it.
package transport

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"sync"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	replicav1 "github.com/kolocate/kolocate/api/proto/replica/v1"
)

const (
	// MaxMessageBytes is the size of the largest gRPC message between members.
	MaxMessageBytes = 16 << 20

	// chunkBytes is the size of the parts of a snapshot.
	chunkBytes = 256 << 10
	// requestBytes is about the size from which queued messages go out as one request.
	requestBytes = 1 << 20
	// maxQueued and maxQueuedBytes bound what waits for one peer; over them messages are dropped.
	maxQueued      = 4096
	maxQueuedBytes = 64 << 20

	firstBackoff = 20 * time.Millisecond
	lastBackoff  = 250 * time.Millisecond
	// snapshotStall is how long a snapshot may make no progress.
	snapshotStall = 30 * time.Second
	dialTimeout   = 2 * time.Second
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errStalled ends a snapshot stream that made no progress.
var errStalled = fmt.Errorf("no progress within %v", snapshotStall)

// ServerOptions are the options of a gRPC server that receives from peers.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(MaxMessageBytes),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	}
}

// Handler is the replica behind a transport. Its methods may be called concurrently and don't wait for
// the replica's disk, but for those of snapshots.
type Handler interface {
	// Receive takes in a message of any type but MsgSnap; it may drop it.
	Receive(m *raftpb.Message)
	// ReceiveSnapshot begins to take in the file of the snapshot that the message announces. When the
	// sink is committed, the message counts as received.
	ReceiveSnapshot(m *raftpb.Message) (SnapshotSink, error)
	// OpenSnapshot opens the file that the message, of type MsgSnap, announces.
	OpenSnapshot(m *raftpb.Message) (io.ReadCloser, error)
	// Unreachable says that messages to the peer were lost.
	Unreachable(peer uint64)
	// SnapshotSent says whether the peer has the snapshot it was sent.
	SnapshotSent(peer uint64, ok bool)
}

// SnapshotSink takes in the file of a snapshot. Exactly one of Commit and Abort is called, last.
type SnapshotSink interface {
	io.Writer
	Commit() error
	Abort() error
}

// Config says who talks with whom.
type Config struct {
	Group string
	ID    uint64
	// Peers maps ids to addresses; the own one is left out.
	Peers       map[uint64]string
	Handler     Handler
	DialOptions []grpc.DialOption
	Logger      *slog.Logger
}

// Transport sends to and receives from the other members.
type Transport struct {
	replicav1.UnimplementedReplicaServer

	cfg    Config
	peers  map[uint64]*peer
	ctx    context.Context //nolint:containedctx // the lifetime of the goroutines, ended by Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	closed bool
}

// spawn runs fn in a goroutine that Close waits for. It says false once the transport is closed.
func (t *Transport) spawn(fn func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.wg.Go(fn)
	return true
}

// New makes a transport and starts a goroutine for each peer. Connections are made when needed.
func New(cfg Config) (*Transport, error) {
	ctx, cancel := context.WithCancel(context.Background())
	t := &Transport{cfg: cfg, peers: map[uint64]*peer{}, ctx: ctx, cancel: cancel}
	for id, address := range cfg.Peers {
		if id == cfg.ID {
			continue
		}
		// The name is resolved anew by each dial: an address may change when a peer restarts.
		conn, err := grpc.NewClient("passthrough:///"+address, t.dialOptions()...)
		if err != nil {
			t.Close()
			return nil, fmt.Errorf("make a connection to replica %d of %q at %s: %w", id, cfg.Group, address, err)
		}
		t.peers[id] = &peer{t: t, id: id, address: address, conn: conn, client: replicav1.NewReplicaClient(conn), wake: make(chan struct{}, 1)}
	}
	for _, p := range t.peers {
		t.spawn(func() { p.run(ctx) })
	}
	return t, nil
}

func (t *Transport) dialOptions() []grpc.DialOption {
	options := []grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(MaxMessageBytes)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstBackoff, Multiplier: 1.6, Jitter: 0.2, MaxDelay: lastBackoff},
			MinConnectTimeout: dialTimeout,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second}),
	}
	if len(t.cfg.DialOptions) == 0 {
		return append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	}
	return append(options, t.cfg.DialOptions...)
}

// Enqueue enqueues messages for the members they are addressed to, and never waits. The slice is not kept.
func (t *Transport) Enqueue(messages []*raftpb.Message) {
	for _, m := range messages {
		p := t.peers[m.GetTo()]
		switch {
		case p == nil:
			t.cfg.Logger.Debug("dropped a message to an unknown replica", "to", m.GetTo(), "type", m.GetType().String())
		case m.GetType() == raftpb.MsgSnap:
			p.sendSnapshot(m)
		default:
			p.enqueue(m)
		}
	}
}

// Close ends all streams and waits for the goroutines.
func (t *Transport) Close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.cancel()
	t.wg.Wait()
	for _, p := range t.peers {
		if err := p.conn.Close(); err != nil && !errors.Is(err, context.Canceled) {
			t.cfg.Logger.Debug("closing a connection", "peer", p.id, "error", err)
		}
	}
}
