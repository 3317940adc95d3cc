// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/services/keyspace"
	"github.com/kolocate/kolocate/services/keyspace/wire"
)

// locations is what the client believes about where vertices are: the newest
// placement, corrected by the hints of redirects (DynaStar's client cache). It
// is a hint: being wrong costs a redirect.
type locations struct {
	known    chan struct{}
	maxHints int

	mu        sync.RWMutex
	placement *keyspace.Placement
	hints     map[keyspace.Vertex]keyspace.ShardID
	shards    map[keyspace.ShardID]*oraclev1.ShardEndpoints
	failure   error
}

func newLocations(maxHints int) *locations {
	return &locations{known: make(chan struct{}), maxHints: maxHints, hints: map[keyspace.Vertex]keyspace.ShardID{}}
}

func (l *locations) epoch() keyspace.Epoch {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.placement == nil {
		return 0
	}
	return l.placement.Epoch()
}

func (l *locations) shardOf(v keyspace.Vertex) keyspace.ShardID {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.find(v)
}

func (l *locations) find(v keyspace.Vertex) keyspace.ShardID {
	if len(l.hints) > 0 {
		if shard, ok := l.hints[v]; ok {
			return shard
		}
	}
	return l.placement.ShardOf(v)
}

// choose returns the shard of most of the vertices; of several the lowest.
func (l *locations) choose(vertices []keyspace.Vertex) keyspace.ShardID {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if len(vertices) == 1 {
		return l.find(vertices[0])
	}
	var counts [keyspace.MaxShards + 1]int
	best := keyspace.ShardID(1)
	for _, v := range vertices {
		shard := l.find(v)
		counts[shard]++
		if counts[shard] > counts[best] || counts[shard] == counts[best] && shard < best {
			best = shard
		}
	}
	return best
}

// learn takes the hints of a redirect.
func (l *locations) learn(hints []*kvv1.Hint) {
	if len(hints) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range hints {
		v, shard := keyspace.Vertex(h.GetVertex()), keyspace.ShardID(h.GetShard())
		switch {
		case shard == keyspace.NoShard || shard > keyspace.MaxShards:
		case l.placement.ShardOf(v) == shard:
			delete(l.hints, v)
		default:
			if len(l.hints) >= l.maxHints {
				clear(l.hints)
			}
			l.hints[v] = shard
		}
	}
}

// update takes a message of the oracle.
func (l *locations) update(m *oraclev1.WatchResponse) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := l.placement
	if s := m.GetSnapshot(); s != nil {
		p, err := wire.DecodePlacement(s)
		if err != nil {
			return err
		}
		if l.placement != nil && p.Epoch() < l.placement.Epoch() {
			return fmt.Errorf("the oracle sent placement epoch %d, older than epoch %d that is known already", p.Epoch(), l.placement.Epoch())
		}
		next = p
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
	l.adopt(next)
	if len(m.GetShards()) > 0 {
		shards := make(map[keyspace.ShardID]*oraclev1.ShardEndpoints, len(m.GetShards()))
		for _, s := range m.GetShards() {
			shards[keyspace.ShardID(s.GetShard())] = s
		}
		l.shards = shards
	}
	return nil
}

// adopt makes a placement the known one. Hints that it confirms are forgotten;
// the others may be of handoffs that it does not hold yet.
func (l *locations) adopt(p *keyspace.Placement) {
	if p == nil || p == l.placement {
		return
	}
	first := l.placement == nil
	l.placement = p
	for v, shard := range l.hints {
		if p.ShardOf(v) == shard {
			delete(l.hints, v)
		}
	}
	if first {
		close(l.known)
	}
}

// replicas returns the addresses of a shard's replicas, the leader's first.
func (l *locations) replicas(shard keyspace.ShardID) []string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var addresses []string
	for _, r := range l.shards[shard].GetReplicas() {
		if r.GetLeader() {
			addresses = append([]string{r.GetAddress()}, addresses...)
		} else {
			addresses = append(addresses, r.GetAddress())
		}
	}
	return addresses
}

func (l *locations) failed(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failure = err
}

func (l *locations) lastError() error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.failure
}

// watchPlacement follows the oracle until ctx ends.
func (c *Client) watchPlacement(ctx context.Context) {
	conn, err := c.config.dial(c.config.placementTarget())
	if err != nil {
		c.cache.failed(err)
		return
	}
	defer conn.Close() //nolint:errcheck // nothing is lost by a failed close
	known := uint64(0)
	gap := false
	for failures := 0; ctx.Err() == nil; failures++ {
		before := c.cache.epoch()
		err := c.watchOnce(ctx, conn, known, &failures)
		c.cache.failed(err)
		known = uint64(c.cache.epoch())
		gap = errors.Is(err, keyspace.ErrEpochGap) || gap && c.cache.epoch() == before
		if gap {
			known = 0 // until the whole placement has come
		}
		select {
		case <-ctx.Done():
		case <-time.After(c.clock.linkPause(failures)):
		}
	}
}

func (c *Client) watchOnce(ctx context.Context, conn connection, known uint64, failures *int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := oraclev1.NewPlacementClient(conn).Watch(ctx, &oraclev1.WatchRequest{KnownEpoch: known})
	if err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := c.cache.update(m); err != nil {
			return err
		}
		*failures = 0
	}
}
