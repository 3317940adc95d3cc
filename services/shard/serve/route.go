// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"maps"
	"time"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
	"github.com/kolocate/kolocate/services/shard/core"
	"github.com/kolocate/kolocate/services/shard/serve/peers"
)

// guesses are places of vertices learnt from retries and redirects. They may be
// newer than the placement and the forwarding pointers of the log, and are bounded.
type guesses struct {
	limit int
	epoch keyspace.Epoch
	at    map[keyspace.Vertex]keyspace.ShardID
}

func (g *guesses) learn(hints []*kvv1.Hint) {
	for _, h := range hints {
		if h.GetShard() == 0 || h.GetShard() > keyspace.MaxShards {
			continue
		}
		if len(g.at) >= g.limit {
			clear(g.at)
		}
		g.at[keyspace.Vertex(h.GetVertex())] = keyspace.ShardID(h.GetShard())
	}
}

// drop forgets guesses that have not helped.
func (g *guesses) drop(vertices []keyspace.Vertex) {
	for _, v := range vertices {
		delete(g.at, v)
	}
}

// adopt forgets the guesses that a newer placement confirms.
func (g *guesses) adopt(p *keyspace.Placement) {
	if p == nil || p.Epoch() == g.epoch {
		return
	}
	g.epoch = p.Epoch()
	maps.DeleteFunc(g.at, func(v keyspace.Vertex, shard keyspace.ShardID) bool { return p.ShardOf(v) == shard })
}

// locate returns the shard at which a vertex is believed to be. Whether it is
// here is a fact; of the hints the guesses are the newest, and the placement
// follows the handoffs of all shards, while a forwarding pointer knows only the
// next step. A hint that points here is wrong.
func (e *engine) locate(v keyspace.Vertex, p *keyspace.Placement) (shard keyspace.ShardID, incoming bool) {
	self := e.config.Shard
	owned, pointer, incoming := e.core.Owns(v)
	switch {
	case owned:
		return self, false
	case incoming:
		return self, true
	}
	if guess, ok := e.guesses.at[v]; ok && guess != self {
		return guess, false
	}
	if p != nil {
		if at := p.ShardOf(v); at != self {
			return at, false
		}
	}
	if pointer == self {
		return keyspace.NoShard, false
	}
	return pointer, false
}

// dispatch sends a request on its way: into the log, to the Leader, to another
// shard, or back to the client.
func (e *engine) dispatch(r *request, now time.Time) {
	switch {
	case r.place == placeDone:
	case !now.Before(r.deadline):
		e.expire(r, now)
	case e.leader == nil:
		e.passToLeader(r, now)
	case !e.core.HasGenesis():
		e.settle(r, retryReply("the shard is new and has not heard from the oracle yet which slots are its own"), now)
	case len(r.vertices) == 0:
		e.dispatchRangeScan(r, now)
	default:
		e.classify(r, now)
	}
}

func (e *engine) dispatchRangeScan(r *request, now time.Time) {
	c := e.core.Classify(r.command, nil, e.follower.Shards(), true)
	if c.Class == core.ClassLocal {
		e.propose1(r, now)
		return
	}
	e.submit(r, c.Claims, now)
}

// classify finds the way of a command that names its vertices.
func (e *engine) classify(r *request, now time.Time) {
	if e.leader == nil {
		e.passToLeader(r, now)
		return
	}
	self := e.config.Shard
	p := e.follower.Placement()
	e.guesses.adopt(p)
	var count [keyspace.MaxShards + 1]int
	clear(e.at)
	for _, v := range r.vertices {
		shard, incoming := e.locate(v, p)
		if incoming {
			e.park(r, now)
			return
		}
		if shard == keyspace.NoShard {
			e.settle(r, retryReply("the home of a key is not known yet"), now)
			return
		}
		e.at[v] = shard
		count[shard]++
	}
	most := keyspace.ShardID(1)
	for shard := range count {
		if count[shard] > count[most] {
			most = keyspace.ShardID(shard)
		}
	}
	here := count[self]
	switch {
	case here == len(e.at):
		e.runHere(r, now)
	case r.redirects && here == 0:
		e.finish(r, &kvv1.Reply{Outcome: kvv1.Outcome_OUTCOME_MOVED, Hints: e.hintsOf(r), Message: "the command's keys are at other shards"}, now)
	case most != self && count[most] > 0 && (r.hops < maxHops || here == 0):
		e.forward(r, most, now)
	default:
		e.submit(r, e.claimsOf(r), now)
	}
}

func (e *engine) runHere(r *request, now time.Time) {
	if r.reads && r.place != placeRead {
		r.place = placeRead
		e.reads.add(r)
		return
	}
	e.propose1(r, now)
}

// hintsOf names the believed shards of a command's vertices, as classify left them.
func (e *engine) hintsOf(r *request) []*kvv1.Hint {
	hints := make([]*kvv1.Hint, 0, len(r.vertices))
	for _, v := range r.vertices {
		hints = append(hints, &kvv1.Hint{Vertex: []byte(v), Shard: uint32(e.at[v])})
	}
	return hints
}

// claimsOf says which keys each shard is believed to own, ascending by shard.
func (e *engine) claimsOf(r *request) []*shardv1.Claim {
	var byShard [keyspace.MaxShards + 1]*shardv1.Claim
	for i, key := range r.command.GetKeys() {
		shard := e.at[keyspace.VertexOf(string(key))]
		if byShard[shard] == nil {
			byShard[shard] = &shardv1.Claim{Shard: uint32(shard)}
		}
		byShard[shard].Keys = append(byShard[shard].Keys, uint32(i))
	}
	var claims []*shardv1.Claim
	for _, claim := range &byShard {
		if claim != nil {
			claims = append(claims, claim)
		}
	}
	return claims
}

// submit has this shard coordinate a command over several shards.
func (e *engine) submit(r *request, claims []*shardv1.Claim, now time.Time) {
	if e.leader == nil {
		e.settle(r, retryReply("this replica leads no longer"), now)
		return
	}
	e.enter(r, placeLog)
	if reply := e.leader.Submit(r.origin, r.command, claims); reply != nil {
		e.settle(r, reply, now)
	}
}

// forward passes a command on to another shard, or another replica's leader.
func (e *engine) forward(r *request, to keyspace.ShardID, now time.Time) {
	if r.hops >= maxHops {
		e.settle(r, retryReply("the command passed too many shards: its keys are moving"), now)
		return
	}
	if r.redirects {
		r.hints = e.hintsOf(r)
	}
	e.enter(r, placePeer)
	r.peer, r.forwarded = to, true
	if !e.peers.Forward(to, peers.Command{Origin: r.origin, Command: r.command, Timeout: r.deadline.Sub(now), Hops: r.hops + 1}) {
		e.settle(r, retryReply("the queue of commands passed on to "+to.String()+" is full"), now)
		return
	}
	e.metrics.forwarded.Inc()
}

// passToLeader has the leader of this shard run what reached another replica.
// Who holds a stream to this replica is told to go there instead.
func (e *engine) passToLeader(r *request, now time.Time) {
	if r.redirects || e.term.Load().leaderID == 0 {
		e.settle(r, retryReply("this replica does not lead "+e.config.Shard.String()), now)
		return
	}
	e.forward(r, e.config.Shard, now)
}

// forwardAnswered takes what another shard answered.
func (e *engine) forwardAnswered(a peers.Answer, now time.Time) {
	r, ok := e.requests[a.Origin]
	if !ok || r.place != placePeer {
		return
	}
	reply := a.Reply
	if reply == nil {
		reply = unknownReply("the connection to " + r.peer.String() + " ended before the answer")
	}
	e.settle(r, reply, now)
}
