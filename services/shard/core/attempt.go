// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"cmp"
	"slices"

	"github.com/tidwall/btree"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// attemptKey names one try of a multi-shard command for ever.
type attemptKey struct {
	coordinator keyspace.ShardID
	number      uint64
}

func (k attemptKey) compare(b attemptKey) int {
	return cmp.Or(cmp.Compare(k.coordinator, b.coordinator), cmp.Compare(k.number, b.number))
}

func (k attemptKey) proto() *shardv1.Attempt {
	return &shardv1.Attempt{Coordinator: uint32(k.coordinator), Number: k.number}
}

func attemptKeyOf(a *shardv1.Attempt) attemptKey {
	return attemptKey{coordinator: keyspace.ShardID(a.GetCoordinator()), number: a.GetNumber()}
}

// stamp orders multi-shard commands: by clock, then shard (then attempt).
type stamp struct {
	clock uint64
	shard keyspace.ShardID
}

func (s stamp) compare(b stamp) int {
	return cmp.Or(cmp.Compare(s.clock, b.clock), cmp.Compare(s.shard, b.shard))
}

func (s stamp) proto() *shardv1.Timestamp {
	return &shardv1.Timestamp{Clock: s.clock, Shard: uint32(s.shard)}
}

func stampOf(t *shardv1.Timestamp) stamp {
	return stamp{clock: t.GetClock(), shard: keyspace.ShardID(t.GetShard())}
}

// attemptPhase says how far an attempt is at this shard. It only grows.
type attemptPhase uint8

const (
	// attemptVoted: this shard voted OK; its vote is a lower bound of the timestamp.
	attemptVoted attemptPhase = iota + 1
	// attemptDecided: the timestamp is known; others may have to come first.
	attemptDecided
	// attemptDelivered: it has its place in the queues of its vertices.
	attemptDelivered
	// attemptHolding: it is first at all its vertices and holds them.
	attemptHolding
	// attemptExecuted: at the coordinator only. It ran; some participants may not
	// have released their vertices yet.
	attemptExecuted
)

var attemptPhaseNames = [...]string{"none", "voted", "decided", "delivered", "holding", "executed"}

func (p attemptPhase) String() string { return attemptPhaseNames[p] }

// attempt is one try of a multi-shard command, begun here and not finished.
type attempt struct {
	key      attemptKey
	command  *kvv1.Command
	claims   []*shardv1.Claim
	origin   uint64 // at the coordinator
	mine     []uint32
	vertices []keyspace.Vertex
	phase    attemptPhase
	vote     stamp
	// order is vote until the decision, then the decided timestamp.
	order stamp
	// At the coordinator: what the others lent, and what goes back to them.
	inputs  []*shardv1.Input
	returns []outgoingReturn
	unit    *unit
}

// outgoingReturn is what a participant gets back.
type outgoingReturn struct {
	to keyspace.ShardID
	// message is repeated until it is acknowledged.
	message *shardv1.Return
}

func attemptBefore(a, b *attempt) bool {
	return cmp.Or(a.order.compare(b.order), a.key.compare(b.key)) < 0
}

func newAttempt(key attemptKey, p *shardv1.Propose, self keyspace.ShardID) *attempt {
	a := &attempt{key: key, command: p.Command, claims: p.Claims}
	for _, claim := range p.Claims {
		if keyspace.ShardID(claim.Shard) == self {
			a.mine = claim.Keys
		}
	}
	if !isRangeScan(p.Command) {
		a.vertices = appendVertices(nil, p.Command.Keys, emptyIfNil(a.mine))
	}
	return a
}

func emptyIfNil(indexes []uint32) []uint32 {
	if indexes == nil {
		return []uint32{}
	}
	return indexes
}

// others lists the participants beside the coordinator, as claimed.
func (a *attempt) others() []keyspace.ShardID {
	list := make([]keyspace.ShardID, 0, len(a.claims)-1)
	for _, claim := range a.claims {
		if id := keyspace.ShardID(claim.Shard); id != a.key.coordinator {
			list = append(list, id)
		}
	}
	return list
}

func (a *attempt) claims1(shard keyspace.ShardID) bool {
	return slices.ContainsFunc(a.claims, func(c *shardv1.Claim) bool { return keyspace.ShardID(c.Shard) == shard })
}

// checkClaims returns what is wrong with the claims of a proposal, or "".
func checkClaims(p *shardv1.Propose, coordinator keyspace.ShardID) string {
	cmd := p.GetCommand()
	claimed := make([]bool, len(cmd.GetKeys()))
	left := len(claimed)
	shards := map[uint32]struct{}{}
	for _, claim := range p.GetClaims() {
		if _, dup := shards[claim.Shard]; dup || !isShard(claim.Shard) {
			return "a shard has two claims, or there can be no such shard"
		}
		shards[claim.Shard] = struct{}{}
		for _, key := range claim.Keys {
			if int(key) >= len(claimed) || claimed[key] {
				return "a key is claimed twice or not declared"
			}
			claimed[key] = true
			left--
		}
	}
	if _, own := shards[uint32(coordinator)]; !own {
		return "the coordinator is not among the shards claimed"
	}
	if left > 0 && !isRangeScan(cmd) {
		return "a declared key is claimed of no shard"
	}
	return ""
}

// isShard says that there can be a shard of this id.
func isShard(id uint32) bool { return id > 0 && id <= keyspace.MaxShards }

// finished remembers which attempts have ended here, so that messages that come
// late are told from new ones. Below a coordinator's mark all have.
type finished struct {
	below   map[keyspace.ShardID]uint64
	numbers *btree.BTreeG[attemptKey]
}

func newFinished() finished {
	less := func(a, b attemptKey) bool { return a.compare(b) < 0 }
	return finished{below: map[keyspace.ShardID]uint64{}, numbers: btree.NewBTreeGOptions(less, btree.Options{NoLocks: true})}
}

func (f *finished) has(key attemptKey) bool {
	if key.number < f.below[key.coordinator] {
		return true
	}
	_, ok := f.numbers.Get(key)
	return ok
}

func (f *finished) add(key attemptKey) {
	if !f.has(key) {
		f.numbers.Set(key)
	}
}

// raise lifts a coordinator's mark and says whether that changed anything.
func (f *finished) raise(coordinator keyspace.ShardID, below uint64) bool {
	if below <= f.below[coordinator] {
		return false
	}
	f.below[coordinator] = below
	var gone []attemptKey
	f.numbers.Ascend(attemptKey{coordinator: coordinator}, func(k attemptKey) bool {
		if k.coordinator != coordinator || k.number >= below {
			return false
		}
		gone = append(gone, k)
		return true
	})
	for _, k := range gone {
		f.numbers.Delete(k)
	}
	return true
}
