// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"cmp"
	"slices"
	"sync"
	"time"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
)

// memberSilence is how long a replica may be silent before its knowledge of
// epochs is no longer waited for.
const memberSilence = 10 * time.Second

// registry is what the replicas of shards reported: soft state of the oracle's
// leader, rebuilt within a second by their next reports. It is bounded by the
// number of shards and replicas. It is safe for concurrent use.
type registry struct {
	mu      sync.Mutex
	members map[memberID]*member
	meter   *meter
	changed chan struct{}
}

type memberID struct{ shard, replica uint32 }

type member struct {
	address     string
	leader      bool
	term        uint64
	knownEpoch  uint64
	initialised bool
	counters    *oraclev1.Counters
	seen        time.Time
}

func newRegistry() *registry {
	return &registry{members: map[memberID]*member{}, meter: newMeter(), changed: make(chan struct{})}
}

// reset forgets everything, for a new term of leadership.
func (g *registry) reset() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.members, g.meter = map[memberID]*member{}, newMeter()
	g.announce()
}

func (g *registry) announce() {
	close(g.changed)
	g.changed = make(chan struct{})
}

// changes returns a channel that is closed when addresses or leaders change.
func (g *registry) changes() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.changed
}

// report takes what a replica says of itself.
func (g *registry) report(r *oraclev1.JoinRequest, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	id := memberID{r.GetShard(), r.GetReplica()}
	known, ok := g.members[id]
	if !ok {
		known = &member{}
		g.members[id] = known
	}
	moved := known.address != r.GetAddress() || known.leader != r.GetLeader() || known.term != r.GetTerm()
	*known = member{
		address: r.GetAddress(), leader: r.GetLeader(), term: r.GetTerm(), knownEpoch: r.GetKnownEpoch(),
		initialised: r.GetInitialised(), counters: r.GetCounters(), seen: now,
	}
	if r.GetLeader() && r.GetCounters() != nil {
		g.meter.observe(r.GetShard(), r.GetCounters(), now)
	}
	if moved || !ok {
		g.announce()
	}
}

// endpoints returns the replicas of shards 1 to shards, ordered. At most one
// replica of a shard is marked as its leader: the one of the highest term.
func (g *registry) endpoints(shards uint32) []*oraclev1.ShardEndpoints {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make([]*oraclev1.ShardEndpoints, shards)
	for i := range all {
		all[i] = &oraclev1.ShardEndpoints{Shard: uint32(i) + 1}
	}
	for id, m := range g.members {
		if id.shard >= 1 && id.shard <= shards {
			e := all[id.shard-1]
			e.Replicas = append(e.Replicas, &oraclev1.ReplicaEndpoint{Replica: id.replica, Address: m.address, Leader: m.leader, Term: m.term})
		}
	}
	for _, e := range all {
		slices.SortFunc(e.Replicas, func(a, b *oraclev1.ReplicaEndpoint) int { return cmp.Compare(a.GetReplica(), b.GetReplica()) })
		var term uint64
		for _, r := range e.Replicas {
			if r.GetLeader() {
				term = max(term, r.GetTerm())
			}
		}
		for _, r := range e.Replicas {
			r.Leader = r.GetLeader() && r.GetTerm() == term
		}
	}
	return all
}

// leader returns what the leader of a shard reported last, if it is known.
func (g *registry) leader(shard uint32) (member, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var best member
	found := false
	for id, m := range g.members {
		if id.shard == shard && m.leader && (!found || m.term > best.term) {
			best, found = *m, true
		}
	}
	return best, found
}

// knownEverywhere returns the lowest epoch that a live replica knows, and
// atMost if none is known to be alive.
func (g *registry) knownEverywhere(atMost uint64, now time.Time) uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, m := range g.members {
		if now.Sub(m.seen) < memberSilence {
			atMost = min(atMost, m.knownEpoch)
		}
	}
	return atMost
}

// since measures the load from a moment on.
func (g *registry) since(from, now time.Time) reading {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.meter.since(from, now)
}
