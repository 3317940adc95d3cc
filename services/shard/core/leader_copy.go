// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"maps"
	"slices"
	"time"

	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
)

// recordsPerStep bounds the records looked at in one step of a copy.
const recordsPerStep = 4096

// handoffCopy makes the chunks of one attempt of a handoff: first what the
// shard held when it began, then, round by round, what changed meanwhile.
type handoffCopy struct {
	c       *Core
	o       *outgoing
	cfg     LeaderConfig
	tracker *tracker

	base    keys
	targets []target
	from    place
	after   bool // from itself has been sent
	queue   []*record
	marks   []*shardv1.Acknowledged
	since   int64 // log time at the start

	round        int
	roundKeys    []string
	roundRecords []*record

	number  uint64 // of the next chunk
	unacked []sentChunk

	rate     uint64 // bytes per second; 0 means no limit
	tokens   float64
	refilled time.Time

	keysSent, bytesSent uint64
}

type sentChunk struct {
	chunk *shardv1.HandoffChunk
	at    time.Time
}

func newHandoffCopy(c *Core, o *outgoing, cfg LeaderConfig, now time.Time) *handoffCopy {
	h := &handoffCopy{
		c: c, o: o, cfg: cfg, tracker: newTracker(o.area, &c.records), base: c.keys.copy(), targets: o.area.targets(),
		queue: c.records.copy().queue, since: c.now, refilled: now, tokens: float64(cfg.ChunkBytes),
	}
	h.marks = c.records.marksSince(0)
	if len(h.targets) > 0 {
		h.from = h.targets[0].start()
	}
	c.track(h.tracker)
	return h
}

func (r *records) marksSince(time int64) []*shardv1.Acknowledged {
	var list []*shardv1.Acknowledged
	r.marks.Scan(func(client uint64, m mark) bool {
		if m.time >= time {
			list = append(list, &shardv1.Acknowledged{Client: client, Below: m.below, TimeMillis: m.time})
		}
		return true
	})
	return list
}

// stop lets go of the copy.
func (h *handoffCopy) stop(c *Core) {
	if h.tracker != nil {
		c.untrack(h.tracker)
	}
	rate, keysSent, bytesSent := h.rate, h.keysSent, h.bytesSent
	*h = handoffCopy{rate: rate, keysSent: keysSent, bytesSent: bytesSent}
}

// next returns the next chunk to send, or nil if there is none now: the window
// is full, the rate is spent, or nothing is left but the remainder.
func (h *handoffCopy) next(now time.Time) *shardv1.HandoffChunk {
	if len(h.unacked) >= h.cfg.ChunkWindow || !h.mayspend(now) {
		return nil
	}
	b := &chunkBuilder{limit: h.cfg.ChunkBytes}
	h.fillBase(b)
	h.fillRound(b)
	if b.empty() && h.baseDone() && len(h.roundKeys) == 0 && len(h.roundRecords) == 0 && h.worthRound() {
		h.takeRound()
		h.fillRound(b)
	}
	if b.empty() {
		return nil
	}
	chunk := &shardv1.HandoffChunk{
		Id: h.o.handoff.Id, Attempt: h.cfg.Term, Number: h.number, Keys: b.keys, Records: b.records, Acknowledged: b.marks,
	}
	chunk.Checksum = chunkChecksum(chunk)
	h.number++
	h.unacked = append(h.unacked, sentChunk{chunk: chunk, at: now})
	h.tokens -= float64(b.size)
	h.keysSent += uint64(len(b.keys))
	h.bytesSent += uint64(b.size) //nolint:gosec // a size
	return chunk
}

// mayspend refills the token bucket. A sealed handoff is not held up by its rate.
func (h *handoffCopy) mayspend(now time.Time) bool {
	if h.rate == 0 || h.o.phase == outgoingSealed {
		return true
	}
	burst := max(float64(h.cfg.ChunkBytes), float64(h.rate)/10)
	h.tokens = min(burst, h.tokens+now.Sub(h.refilled).Seconds()*float64(h.rate))
	h.refilled = now
	return h.tokens > 0
}

// fillBase adds what the shard held at the start.
func (h *handoffCopy) fillBase(b *chunkBuilder) {
	for len(h.targets) > 0 && !b.full() {
		t := h.targets[0]
		done := true
		h.base.places.Ascend(h.from, func(p place) bool {
			if !t.has(p) {
				return false
			}
			if h.after && p == h.from {
				return true
			}
			if b.full() {
				done = false
				return false
			}
			h.from, h.after = p, true
			if cl, found := h.base.get(p.key); found && h.c.owner.has(p.vertex) {
				b.key(p.key, cl, true)
			}
			return true
		})
		if !done {
			return
		}
		h.targets = h.targets[1:]
		if len(h.targets) > 0 {
			h.from, h.after = h.targets[0].start(), false
		}
	}
	for n := 0; len(h.queue) > 0 && n < recordsPerStep && !b.full(); n++ {
		rec := h.queue[0]
		h.queue = h.queue[1:]
		b.record(h.c, rec, h.o.area)
	}
	for len(h.marks) > 0 && !b.full() {
		b.mark(h.marks[0])
		h.marks = h.marks[1:]
	}
}

func (h *handoffCopy) baseDone() bool {
	return len(h.targets) == 0 && len(h.queue) == 0 && len(h.marks) == 0
}

// fillRound adds what changed before the round began, as it is now.
func (h *handoffCopy) fillRound(b *chunkBuilder) {
	for h.baseDone() && len(h.roundKeys) > 0 && !b.full() {
		key := h.roundKeys[0]
		h.roundKeys = h.roundKeys[1:]
		cl, found := h.c.keys.get(key)
		b.key(key, cl, found)
	}
	for h.baseDone() && len(h.roundRecords) > 0 && !b.full() {
		b.record(h.c, h.roundRecords[0], h.o.area)
		h.roundRecords = h.roundRecords[1:]
	}
}

// worthRound says that what changed meanwhile goes in chunks: it is too much for
// the final, and there is hope that the next round is smaller.
func (h *handoffCopy) worthRound() bool {
	if h.small() {
		return false
	}
	return h.o.drained || h.o.phase == outgoingCopying && h.round < h.cfg.MaxRounds
}

// small says whether what changed meanwhile is little enough for the final.
func (h *handoffCopy) small() bool {
	if len(h.tracker.keys) > h.cfg.SealKeys {
		return false
	}
	size := 0
	for key := range h.tracker.keys {
		cl, _ := h.c.keys.get(key)
		size += len(key) + len(cl.value)
	}
	for _, rec := range h.tracker.records {
		size += rec.bytes
	}
	return size <= h.cfg.SealBytes
}

func (h *handoffCopy) takeRound() {
	h.round++
	h.roundKeys = slices.Sorted(maps.Keys(h.tracker.keys))
	h.roundRecords = h.tracker.records
	h.tracker.reset()
}

// exhausted says that nothing is left to send in chunks.
func (h *handoffCopy) exhausted() bool {
	return h.baseDone() && len(h.roundKeys) == 0 && len(h.roundRecords) == 0 && !h.worthRound()
}

// caughtUp says that all chunks have arrived and the remainder is small, or will
// not get smaller.
func (h *handoffCopy) caughtUp() bool { return h.exhausted() && len(h.unacked) == 0 }

// acknowledge notes that chunks below next are in the destination's log.
func (h *handoffCopy) acknowledge(next uint64) {
	for len(h.unacked) > 0 && h.unacked[0].chunk.Number < next {
		h.unacked = h.unacked[1:]
	}
}

// due returns the chunks to send again: all that are unacknowledged, if the
// oldest has been for too long, because the destination takes them in order.
func (h *handoffCopy) due(now time.Time, after time.Duration) []*shardv1.HandoffChunk {
	if len(h.unacked) == 0 || now.Sub(h.unacked[0].at) < after {
		return nil
	}
	list := make([]*shardv1.HandoffChunk, 0, len(h.unacked))
	for i := range h.unacked {
		h.unacked[i].at = now
		list = append(list, h.unacked[i].chunk)
	}
	return list
}

// finalDelta returns the last of it. The handoff is drained, so nothing can
// change any more.
func (h *handoffCopy) finalDelta(handoff *shardv1.Handoff) *shardv1.HandoffFinal {
	b := &chunkBuilder{}
	for _, key := range slices.Sorted(maps.Keys(h.tracker.keys)) {
		cl, found := h.c.keys.get(key)
		b.key(key, cl, found)
	}
	for _, rec := range h.tracker.records {
		b.record(h.c, rec, h.o.area)
	}
	h.keysSent += uint64(len(b.keys))
	h.bytesSent += uint64(b.size) //nolint:gosec // a size
	return &shardv1.HandoffFinal{
		Id: handoff.Id, Attempt: h.cfg.Term, Chunks: h.number, Keys: b.keys, Records: b.records, Clock: h.c.clock,
		Exceptions: h.c.owner.exceptions(h.o.area), Handoff: handoff, Acknowledged: h.c.records.marksSince(h.since),
	}
}

// chunkBuilder fills a chunk up to a limit in bytes.
type chunkBuilder struct {
	limit   int
	size    int
	keys    []*shardv1.StagedKey
	records []*shardv1.Record
	marks   []*shardv1.Acknowledged
}

func (b *chunkBuilder) full() bool { return b.size >= b.limit }

func (b *chunkBuilder) empty() bool { return b.size == 0 }

func (b *chunkBuilder) key(key string, c cell, found bool) {
	b.size += len(key) + len(c.value) + 16
	b.keys = append(b.keys, &shardv1.StagedKey{Key: raw(key), Deleted: !found, Value: c.value, Version: c.version})
}

// record adds a record that touches the area and is still kept.
func (b *chunkBuilder) record(c *Core, rec *record, a *area) {
	live := c.records.get(rec.id)
	if live == nil || !a.hasAny(live.vertices) {
		return
	}
	kept := *live
	kept.vertices = nil
	for _, v := range live.vertices {
		if a.has(v) {
			kept.vertices = append(kept.vertices, v)
		}
	}
	b.size += kept.bytes
	b.records = append(b.records, kept.toProto())
}

func (b *chunkBuilder) mark(m *shardv1.Acknowledged) {
	b.size += 24
	b.marks = append(b.marks, m)
}
