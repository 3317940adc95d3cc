// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"hash/crc32"

	"google.golang.org/protobuf/proto"

	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// incomingPhase says how far a handoff is at its destination.
type incomingPhase uint8

const (
	incomingStaging incomingPhase = iota + 1
	incomingCommitted
	incomingTombstoned
)

// incoming is a handoff of which this shard is the destination. What is staged
// lies among the keys already: nobody reads it, because the vertices are not
// owned. So the commit takes no longer than its last delta.
type incoming struct {
	handoff *shardv1.Handoff // nil for the tombstone of an unknown handoff
	area    *area
	phase   incomingPhase
	attempt uint64
	next    uint64 // chunks below are staged
}

// handoffStage logs an offer or a chunk (DESIGN 3.5, step 2).
func (c *Core) handoffStage(s *shardv1.HandoffStage) {
	if s.Offer != nil {
		c.stageOffer(s.Offer)
	}
	if s.Chunk != nil {
		c.stageChunk(s.Chunk)
	}
}

// stageOffer accepts a handoff, or the next attempt of one, which starts again
// from nothing. It does nothing while keys of the area wait for deletion: the
// source repeats the offer.
func (c *Core) stageOffer(offer *shardv1.HandoffOffer) {
	h := offer.GetHandoff()
	id := h.GetId()
	if id == 0 || c.endedHandoff(id) {
		return
	}
	if in := c.incoming[id]; in != nil {
		if in.phase == incomingStaging && offer.Attempt > in.attempt {
			if in.next > 0 {
				c.sweepLater(in.area)
			}
			in.attempt, in.next = offer.Attempt, 0
		}
		c.ackChunks(in)
		return
	}
	a := newArea(h)
	if c.busyHere(id, a) || len(c.stagings) >= maxHandoffs {
		return
	}
	if reason := c.refuseIncoming(h, a); reason != "" {
		c.handoffEvent(id, HandoffRefused, h, reason)
		c.send(keyspace.ShardID(h.From), chunkAckMessage(id, offer.Attempt, 0, reason))
		return
	}
	in := &incoming{handoff: h, area: a, phase: incomingStaging, attempt: offer.Attempt}
	c.incoming[id] = in
	c.relist()
	c.handoffEvent(id, HandoffStaged, h, "")
	c.ackChunks(in)
}

// busyHere says that an area can't be staged yet: this shard has not finished
// giving some of it away, deleting it, or staging it by another handoff. Of two
// handoffs that wait for each other's source (a slot one way, a vertex of it the
// other way) the later one is not kept waiting: it is refused.
func (c *Core) busyHere(id uint64, a *area) bool {
	for _, o := range c.sources {
		if o.area.overlaps(a) && !o.refuses(id) {
			return true
		}
	}
	for _, in := range c.stagings {
		if in.area.overlaps(a) {
			return true
		}
	}
	return c.sweeping(a)
}

// refuses says that a handoff which copies its area away refuses the handoff id,
// which is to bring some of it. One that is sealed will soon be over.
func (o *outgoing) refuses(id uint64) bool {
	return o.phase == outgoingCopying && o.handoff.Id < id
}

func (c *Core) refuseIncoming(h *shardv1.Handoff, a *area) string {
	self := c.cfg.Shard
	if keyspace.ShardID(h.To) != self || keyspace.ShardID(h.From) == self {
		return fmt.Sprintf("stage handoff %d at %v: it goes from %v to %v", h.Id, self, keyspace.ShardID(h.From), keyspace.ShardID(h.To))
	}
	for _, o := range c.sources {
		if o.area.overlaps(a) && o.refuses(h.Id) {
			return fmt.Sprintf("stage handoff %d at %v: handoff %d takes some of its vertices away from there; wait for it", h.Id, self, o.handoff.Id)
		}
	}
	for _, slot := range a.whole {
		if c.owner.slots.Has(slot) {
			return fmt.Sprintf("stage handoff %d at %v: slot %d is owned there already", h.Id, self, slot)
		}
	}
	for _, v := range a.named {
		if c.owner.has(v) {
			return fmt.Sprintf("stage handoff %d at %v: vertex %q is owned there already", h.Id, self, v)
		}
	}
	return ""
}

func (c *Core) stageChunk(chunk *shardv1.HandoffChunk) {
	in := c.incoming[chunk.Id]
	if in == nil || in.phase != incomingStaging || in.attempt != chunk.Attempt {
		return
	}
	if chunk.Number == in.next && !c.sweeping(in.area) && chunk.Checksum == chunkChecksum(chunk) {
		c.stageKeys(in, chunk.Keys)
		c.mergeRecords(chunk.Records, chunk.Acknowledged)
		in.next++
		c.handoffEvent(chunk.Id, HandoffStaged, in.handoff, "")
	}
	c.ackChunks(in)
}

// stageKeys writes what is handed over. Keys outside the area are left out: no
// correct source sends them, and they may be owned.
func (c *Core) stageKeys(in *incoming, list []*shardv1.StagedKey) {
	for _, k := range list {
		key := text(k.Key)
		if v := keyspace.VertexOf(key); !in.area.has(v) || c.owner.has(v) {
			continue
		}
		if k.Deleted {
			c.keys.delete(key)
		} else {
			c.keys.set(key, cell{value: k.Value, version: k.Version})
		}
	}
}

// mergeRecords takes records and acknowledgements. They say what has happened,
// whatever becomes of the handoff, so they count at once.
func (c *Core) mergeRecords(list []*shardv1.Record, acknowledged []*shardv1.Acknowledged) {
	for _, a := range acknowledged {
		c.records.acknowledge(a.Client, a.Below, a.TimeMillis)
	}
	for _, p := range list {
		rec := recordFromProto(p)
		c.records.merge(rec)
		for _, t := range c.trackers {
			t.recorded(rec)
		}
	}
}

// handoffCommit is the point of no return: the shard owns the vertices
// (DESIGN 3.5, step 4).
func (c *Core) handoffCommit(f *shardv1.HandoffFinal) {
	in := c.incoming[f.Id]
	if in == nil {
		return
	}
	switch {
	case in.phase == incomingCommitted:
		c.send(keyspace.ShardID(in.handoff.From), committedMessage(f.Id))
		return
	case in.phase == incomingTombstoned:
		c.send(keyspace.ShardID(f.GetHandoff().GetFrom()), abortedMessage(f.Id, false))
		return
	case in.attempt != f.Attempt || in.next != f.Chunks || c.sweeping(in.area):
		c.ackChunks(in)
		return
	}
	c.stageKeys(in, f.Keys)
	c.mergeRecords(f.Records, f.Acknowledged)
	c.clock = max(c.clock, f.Clock)
	c.owner.take(in.area, f.Exceptions, f.Id)
	in.phase = incomingCommitted
	c.relist()
	c.handoffEvent(f.Id, HandoffCommitted, in.handoff, "")
	c.send(keyspace.ShardID(in.handoff.From), committedMessage(f.Id))
	in.handoff, in.area = slimHandoff(in.handoff), nil
}

// handoffTombstone is the destination's promise never to commit a handoff.
func (c *Core) handoffTombstone(id uint64, from keyspace.ShardID) {
	if id == 0 || c.endedHandoff(id) {
		return
	}
	in := c.incoming[id]
	if in == nil {
		in = &incoming{phase: incomingTombstoned}
		c.incoming[id] = in
	}
	if in.phase == incomingStaging {
		in.phase = incomingTombstoned
		c.sweepLater(in.area)
		c.relist()
		c.handoffEvent(id, HandoffTombstoned, in.handoff, "")
		in.handoff, in.area = slimHandoff(in.handoff), nil
	}
	if in.handoff != nil {
		from = keyspace.ShardID(in.handoff.From)
	}
	if from != keyspace.NoShard {
		c.send(from, abortedMessage(id, in.phase == incomingCommitted))
	}
}

func (c *Core) ackChunks(in *incoming) {
	if in.phase == incomingStaging {
		c.send(keyspace.ShardID(in.handoff.From), chunkAckMessage(in.handoff.Id, in.attempt, in.next, ""))
	}
}

func chunkAckMessage(id, attempt, next uint64, refused string) *shardv1.Message {
	return &shardv1.Message{Body: &shardv1.Message_HandoffChunkAck{HandoffChunkAck: &shardv1.HandoffChunkAck{
		Id: id, Attempt: attempt, Next: next, Refused: refused,
	}}}
}

func committedMessage(id uint64) *shardv1.Message {
	return &shardv1.Message{Body: &shardv1.Message_HandoffCommitted{HandoffCommitted: &shardv1.HandoffCommitted{Id: id}}}
}

func abortedMessage(id uint64, committed bool) *shardv1.Message {
	return &shardv1.Message{Body: &shardv1.Message_HandoffAborted{HandoffAborted: &shardv1.HandoffAborted{Id: id, Committed: committed}}}
}

// castagnoli is the polynomial of all checksums here.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// chunkChecksum returns the CRC-32C of a chunk's content.
func chunkChecksum(chunk *shardv1.HandoffChunk) uint32 {
	content := &shardv1.HandoffChunk{Keys: chunk.Keys, Records: chunk.Records, Acknowledged: chunk.Acknowledged}
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(content)
	if err != nil {
		// Only a message that is no valid proto fails: it equals no checksum.
		return ^chunk.Checksum
	}
	return crc32.Checksum(encoded, castagnoli)
}

// endedHandoff says that a handoff is over and forgotten.
func (c *Core) endedHandoff(id uint64) bool {
	_, ended := c.ended.Get(id)
	return ended
}

// maxEnded bounds the ids of ended handoffs that are remembered, so that a
// message that comes very late can't start one again.
const maxEnded = 1 << 20

// forgetHandoffs drops what is known of handoffs that the oracle has finished
// with, once its placement that shows them is known everywhere.
func (c *Core) forgetHandoffs(ids []uint64) {
	for _, id := range ids {
		if o := c.outgoing[id]; o != nil && o.active() {
			continue
		}
		if in := c.incoming[id]; in != nil && in.phase == incomingStaging {
			c.handoffTombstone(id, keyspace.NoShard)
		}
		delete(c.outgoing, id)
		delete(c.incoming, id)
		c.owner.forget(id)
		c.ended.Set(id, struct{}{})
		if c.ended.Len() > maxEnded {
			c.ended.PopMin()
		}
	}
	c.relist()
}
