// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"maps"
	"slices"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// Class says where a command can run, as this shard sees it.
type Class uint8

// The classes of a command.
const (
	// ClassLocal: all vertices are owned here; propose it in a Commands entry.
	ClassLocal Class = iota + 1
	// ClassMulti: several shards are involved and this one coordinates; hand it
	// to Leader.Submit with the claims.
	ClassMulti
	// ClassElsewhere: another shard should run or coordinate it.
	ClassElsewhere
	// ClassIncoming: a vertex is on its way here; wait for the EffectHandoff.
	ClassIncoming
	// ClassUnknown: the home of a vertex is not known, neither here nor to the
	// placement.
	ClassUnknown
)

// Placement tells where vertices are believed to be. keyspace.Placement is one.
type Placement interface {
	// ShardOf returns NoShard for a vertex whose home it does not know.
	ShardOf(v keyspace.Vertex) keyspace.ShardID
}

// Classification is Classify's answer.
type Classification struct {
	Class Class
	// Claims, with ClassMulti: ascending by shard.
	Claims []*shardv1.Claim
	// Target, with ClassElsewhere: the shard that owns the command's vertices, or
	// most of them (ties: the lowest id), and so coordinates it.
	Target keyspace.ShardID
	// Hints names the believed shard of every vertex that is not owned here.
	Hints []*kvv1.Hint
}

// Classify says, from this shard's ownership and forwarding pointers and, for
// vertices of which they say nothing, from the placement, where cmd can run. cmd
// has passed Validate. shards lists all shards of the store, ascending: a scan
// over all shards claims each of them. With coordinateHere, for a command that
// has been forwarded too often, it is ClassElsewhere only if this shard owns none
// of its vertices.
func (c *Core) Classify(cmd *kvv1.Command, p Placement, shards []keyspace.ShardID, coordinateHere bool) Classification {
	if isRangeScan(cmd) {
		return c.classifyRangeScan(shards)
	}
	var result Classification
	at := map[keyspace.Vertex]keyspace.ShardID{}
	count := map[keyspace.ShardID]int{}
	for _, v := range Vertices(cmd) {
		shard, incoming := c.locate(v, p)
		if incoming {
			return Classification{Class: ClassIncoming}
		}
		if shard == keyspace.NoShard {
			return Classification{Class: ClassUnknown}
		}
		if shard != c.cfg.Shard {
			result.Hints = append(result.Hints, &kvv1.Hint{Vertex: []byte(v), Shard: uint32(shard)})
		}
		at[v] = shard
		count[shard]++
	}
	most := mostOwned(count)
	switch {
	case count[c.cfg.Shard] == len(at):
		result.Class = ClassLocal
	case len(count) == 1, most != c.cfg.Shard && (!coordinateHere || count[c.cfg.Shard] == 0):
		result.Class, result.Target = ClassElsewhere, most
	default:
		result.Class, result.Claims = ClassMulti, claimsOf(cmd, at)
	}
	return result
}

// locate returns the shard a vertex is believed at.
func (c *Core) locate(v keyspace.Vertex, p Placement) (shard keyspace.ShardID, incoming bool) {
	owned, hint, incoming := c.Owns(v)
	if owned {
		return c.cfg.Shard, false
	}
	if hint == keyspace.NoShard && p != nil {
		// The log knows better than a placement that still points here.
		if hint = p.ShardOf(v); hint == c.cfg.Shard {
			hint = keyspace.NoShard
		}
	}
	return hint, incoming
}

// mostOwned returns the shard that owns most; of several the lowest.
func mostOwned(count map[keyspace.ShardID]int) keyspace.ShardID {
	most := keyspace.NoShard
	for _, shard := range slices.Sorted(maps.Keys(count)) {
		if most == keyspace.NoShard || count[shard] > count[most] {
			most = shard
		}
	}
	return most
}

func claimsOf(cmd *kvv1.Command, at map[keyspace.Vertex]keyspace.ShardID) []*shardv1.Claim {
	byShard := map[keyspace.ShardID]*shardv1.Claim{}
	for i, key := range cmd.Keys {
		shard := at[keyspace.VertexOf(text(key))]
		if byShard[shard] == nil {
			byShard[shard] = &shardv1.Claim{Shard: uint32(shard)}
		}
		byShard[shard].Keys = append(byShard[shard].Keys, uint32(i))
	}
	claims := make([]*shardv1.Claim, 0, len(byShard))
	for _, shard := range slices.Sorted(maps.Keys(byShard)) {
		claims = append(claims, byShard[shard])
	}
	return claims
}

func (c *Core) classifyRangeScan(shards []keyspace.ShardID) Classification {
	if c.owner.ownsAll() && !c.sealedAny() {
		return Classification{Class: ClassLocal}
	}
	set := map[keyspace.ShardID]struct{}{c.cfg.Shard: {}}
	for _, shard := range shards {
		set[shard] = struct{}{}
	}
	c.owner.successors(set)
	result := Classification{Class: ClassMulti}
	for _, shard := range slices.Sorted(maps.Keys(set)) {
		result.Claims = append(result.Claims, &shardv1.Claim{Shard: uint32(shard)})
	}
	return result
}
