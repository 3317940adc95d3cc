// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package follow owns a shard's ties to the oracle: it watches the placement,
// reports to the registry and sends traces.
// It decides nothing: what it hears are hints. The shard server calls it.
package follow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/services/keyspace"
	"github.com/kolocate/kolocate/services/keyspace/wire"
)

const (
	// retryInterval is the pause before the next replica of the oracle is tried.
	retryInterval = 100 * time.Millisecond
	// reportInterval is how often a replica reports itself (contract of Registry.Join).
	reportInterval = time.Second
	// answerTimeout bounds the wait for the answer to one report.
	answerTimeout = 5 * time.Second
	maxMessage    = 64 << 20
)

// Config says whom to follow and what to tell.
type Config struct {
	// Oracle lists the addresses of the oracle's replicas.
	Oracle []string
	// Report returns what to tell the registry now.
	Report func() *oraclev1.JoinRequest
	// Heard is told each answer of the registry.
	Heard func(*oraclev1.JoinResponse)
	// Moved is called after each change of the placement.
	Moved       func()
	DialOptions []grpc.DialOption
	Logger      *slog.Logger
}

// Follower is what a shard knows from the oracle. All methods may be called concurrently.
type Follower struct {
	config    Config
	conns     []*grpc.ClientConn
	placement atomic.Pointer[keyspace.Placement]
	poke      chan struct{}
	// gap: a delta did not fit, so the whole placement is asked for until it comes.
	gap atomic.Bool

	mu     sync.RWMutex
	shards map[keyspace.ShardID]*oraclev1.ShardEndpoints
	ids    []keyspace.ShardID
}

// New returns a follower. Nothing is asked before Run.
func New(config Config) (*Follower, error) {
	if len(config.Oracle) == 0 {
		return nil, errors.New("follow the oracle: no address is configured: give at least one host:port")
	}
	options := append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 2 * time.Second,
		}),
	}, config.DialOptions...)
	f := &Follower{config: config, poke: make(chan struct{}, 1)}
	for _, address := range config.Oracle {
		conn, err := grpc.NewClient(address, options...)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("follow the oracle at %q: %w: expected host:port", address, err), f.close())
		}
		f.conns = append(f.conns, conn)
	}
	return f, nil
}

// Run watches and reports until ctx ends, and closes the connections.
func (f *Follower) Run(ctx context.Context) {
	var tasks sync.WaitGroup
	tasks.Go(func() { f.each(ctx, "watch the placement", f.watch) })
	tasks.Go(func() { f.each(ctx, "report to the registry", f.join) })
	tasks.Wait()
	if err := f.close(); err != nil {
		f.config.Logger.Debug("connections to the oracle did not close cleanly", "reason", err)
	}
}

func (f *Follower) close() error {
	failures := make([]error, len(f.conns))
	for i, conn := range f.conns {
		failures[i] = conn.Close()
	}
	return errors.Join(failures...)
}

// each runs a stream against one replica of the oracle after the other: the
// leader alone answers all of them.
func (f *Follower) each(ctx context.Context, what string, stream func(context.Context, *grpc.ClientConn) error) {
	for i := 0; ctx.Err() == nil; i++ {
		at := i % len(f.conns)
		err := stream(ctx, f.conns[at])
		if ctx.Err() == nil {
			f.config.Logger.Debug("the oracle does not answer; the next replica is tried", "to", what, "address", f.config.Oracle[at], "reason", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryInterval):
		}
	}
}

// Placement returns the newest placement, or nil before the first.
func (f *Follower) Placement() *keyspace.Placement { return f.placement.Load() }

// Epoch returns the newest epoch known, 0 before the first.
func (f *Follower) Epoch() keyspace.Epoch {
	if p := f.placement.Load(); p != nil {
		return p.Epoch()
	}
	return 0
}

// Shards returns all shards of the store, ascending.
func (f *Follower) Shards() []keyspace.ShardID {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.ids
}

// Addresses returns the addresses of a shard's replicas, the leader's first.
func (f *Follower) Addresses(shard keyspace.ShardID) []string {
	f.mu.RLock()
	defer f.mu.RUnlock()
	var addresses []string
	for _, r := range f.shards[shard].GetReplicas() {
		if r.GetLeader() {
			addresses = append([]string{r.GetAddress()}, addresses...)
		} else {
			addresses = append(addresses, r.GetAddress())
		}
	}
	return addresses
}

func (f *Follower) watch(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	known := uint64(f.Epoch())
	if f.gap.Load() {
		known = 0
	}
	stream, err := oraclev1.NewPlacementClient(conn).Watch(ctx, &oraclev1.WatchRequest{KnownEpoch: known})
	if err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := f.update(m); err != nil {
			if errors.Is(err, keyspace.ErrEpochGap) {
				f.gap.Store(true)
			}
			return err
		}
		f.config.Moved()
	}
}

func (f *Follower) update(m *oraclev1.WatchResponse) error {
	old := f.placement.Load()
	next := old
	if s := m.GetSnapshot(); s != nil {
		p, err := wire.DecodePlacement(s)
		if err != nil {
			return err
		}
		if old != nil && p.Epoch() < old.Epoch() {
			return fmt.Errorf("the oracle sent placement epoch %d, older than epoch %d that is known already", p.Epoch(), old.Epoch())
		}
		next = p
		f.gap.Store(false)
	}
	if d := m.GetDelta(); d != nil {
		if next == nil {
			return fmt.Errorf("apply delta from epoch %d: no placement is known: %w", d.GetFromEpoch(), keyspace.ErrEpochGap)
		}
		delta, err := wire.DecodeDelta(d)
		if err != nil {
			return err
		}
		if next, err = next.Apply(delta); err != nil {
			return err
		}
	}
	if next != old {
		f.placement.Store(next)
	}
	if len(m.GetShards()) > 0 {
		f.setShards(m.GetShards())
	}
	return nil
}

func (f *Follower) setShards(all []*oraclev1.ShardEndpoints) {
	shards := make(map[keyspace.ShardID]*oraclev1.ShardEndpoints, len(all))
	ids := make([]keyspace.ShardID, 0, len(all))
	for _, s := range all {
		shards[keyspace.ShardID(s.GetShard())] = s
		ids = append(ids, keyspace.ShardID(s.GetShard()))
	}
	slices.Sort(ids)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shards, f.ids = shards, ids
}
