// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"io"
	"maps"
	"slices"

	"github.com/tidwall/btree"

	"github.com/kolocate/kolocate/services/keyspace"
)

// A snapshot is a magic text and a sequence of frames: kind (1 byte), length (4
// bytes), payload, CRC-32C of all that (4 bytes). The numbers are little-endian.
const (
	snapshotMagic   = "kolocate shard snapshot\n"
	snapshotVersion = 1
	// frameBytes is the size at which a frame of many values is closed.
	frameBytes = 256 << 10
	// maxFrameBytes is more than any frame can have that WriteTo writes.
	maxFrameBytes = 1 << 30
)

type frameKind byte

const (
	frameHead frameKind = iota + 1
	frameOwnership
	frameWork
	frameKeys
	frameRecords
	frameMarks
	frameFinished
	frameEnded
	frameEnd
)

// Snapshot is the state of a core at one index.
type Snapshot struct {
	index    uint64
	head     []byte
	work     []byte
	err      error
	owner    ownership
	keys     keys
	records  records
	finished *btree.BTreeG[attemptKey]
	ended    *btree.Map[uint64, struct{}]
}

// Snapshot returns a copy of the state that later entries do not change. It
// shares the trees with the core (copy on write) and may be written by another
// goroutine. What it copies at once is bounded by MaxPending, MaxQueued and the
// number of vertices placed elsewhere than their slot.
func (c *Core) Snapshot() *Snapshot {
	head, work := c.encodeHead(), c.encodeWork()
	s := &Snapshot{
		index: c.index, head: head.buffer, work: work.buffer, err: work.err,
		owner: c.owner.clone(), keys: c.keys.copy(), records: c.records.copy(),
		finished: c.finished.numbers.Copy(), ended: c.ended.Copy(),
	}
	return s
}

// Applied returns the index the snapshot was taken at.
func (s *Snapshot) Applied() uint64 { return s.index }

// Close lets the copy go. WriteTo must have returned.
func (s *Snapshot) Close() { *s = Snapshot{index: s.index} }

// frameWriter writes frames.
type frameWriter struct {
	w       *bufio.Writer
	written int64
	err     error
}

func (f *frameWriter) frame(kind frameKind, payload []byte) {
	if f.err != nil {
		return
	}
	head := make([]byte, 5)
	head[0] = byte(kind)
	binary.LittleEndian.PutUint32(head[1:], uint32(len(payload))) //nolint:gosec // below maxFrameBytes
	sum := crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, payload)
	for _, part := range [][]byte{head, payload, binary.LittleEndian.AppendUint32(nil, sum)} {
		n, err := f.w.Write(part)
		f.written += int64(n)
		if err != nil {
			f.err = err
			return
		}
	}
}

// batch collects values and writes them as frames of a bounded size.
type batch struct {
	f    *frameWriter
	kind frameKind
	e    encoder
}

func (b *batch) next() bool {
	if len(b.e.buffer) >= frameBytes {
		b.flush()
	}
	return b.f.err == nil
}

func (b *batch) flush() {
	if b.f.err == nil {
		b.f.err = b.e.err
	}
	if len(b.e.buffer) > 0 {
		b.f.frame(b.kind, b.e.buffer)
	}
	b.e.buffer = b.e.buffer[:0]
}

// WriteTo writes the snapshot with a format version and checksums, and returns
// the bytes written.
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) {
	if s.err != nil {
		return 0, s.err
	}
	f := &frameWriter{w: bufio.NewWriterSize(w, 64<<10)}
	n, err := f.w.WriteString(snapshotMagic)
	f.written, f.err = int64(n), err
	f.frame(frameHead, s.head)
	owner := s.owner.encode()
	f.frame(frameOwnership, owner.buffer)
	f.frame(frameWork, s.work)
	s.writeTrees(f)
	f.frame(frameEnd, nil)
	if f.err == nil {
		f.err = f.w.Flush()
	}
	if f.err != nil {
		return f.written, fmt.Errorf("write a shard's snapshot at entry %d: %w", s.index, f.err)
	}
	return f.written, nil
}

func (s *Snapshot) writeTrees(f *frameWriter) {
	b := &batch{f: f, kind: frameKeys}
	s.keys.cells.Scan(func(key string, c cell) bool {
		b.e.text(key)
		b.e.text(text(c.value))
		b.e.number(c.version)
		return b.next()
	})
	b.flush()
	b.kind = frameRecords
	for _, rec := range s.records.queue {
		if s.records.get(rec.id) == rec {
			b.e.message(rec.toProto())
			if !b.next() {
				break
			}
		}
	}
	b.flush()
	b.kind = frameMarks
	s.records.marks.Scan(func(client uint64, m mark) bool {
		b.e.number(client)
		b.e.number(m.below)
		b.e.signed(m.time)
		return b.next()
	})
	b.flush()
	b.kind = frameFinished
	s.finished.Scan(func(k attemptKey) bool {
		b.e.number(uint64(k.coordinator))
		b.e.number(k.number)
		return b.next()
	})
	b.flush()
	b.kind = frameEnded
	s.ended.Scan(func(id uint64, _ struct{}) bool {
		b.e.number(id)
		return b.next()
	})
	b.flush()
}

func (c *Core) encodeHead() encoder {
	var e encoder
	e.number(snapshotVersion)
	e.text(c.cfg.Store)
	e.number(uint64(c.cfg.Shard))
	e.flag(c.genesis)
	e.number(c.index)
	e.signed(c.now)
	e.number(c.clock)
	e.number(c.epochKnown)
	e.number(c.lastAttempt)
	e.number(uint64(len(c.finished.below)))
	for _, shard := range slices.Sorted(maps.Keys(c.finished.below)) {
		e.number(uint64(shard))
		e.number(c.finished.below[shard])
	}
	return e
}

func (o *ownership) encode() encoder {
	var e encoder
	ranges := o.slots.Ranges()
	e.number(uint64(len(ranges)))
	for _, r := range ranges {
		e.number(uint64(r.First))
		e.number(uint64(r.Last))
	}
	e.number(uint64(len(o.in)))
	for _, v := range slices.Sorted(maps.Keys(o.in)) {
		e.text(string(v))
	}
	e.number(uint64(len(o.out)))
	for _, v := range slices.Sorted(maps.Keys(o.out)) {
		e.text(string(v))
		e.number(uint64(o.out[v].to))
		e.number(o.out[v].handoff)
	}
	e.number(uint64(len(o.forwardVertex)))
	for _, v := range slices.Sorted(maps.Keys(o.forwardVertex)) {
		e.text(string(v))
		e.number(uint64(o.forwardVertex[v].to))
		e.number(o.forwardVertex[v].handoff)
	}
	e.number(uint64(len(o.forwardSlot)))
	for _, slot := range slices.Sorted(maps.Keys(o.forwardSlot)) {
		e.number(uint64(slot))
		e.number(uint64(o.forwardSlot[slot].to))
		e.number(o.forwardSlot[slot].handoff)
	}
	return e
}

// decodeOwnership reads what encode wrote.
func decodeOwnership(d *decoder) ownership {
	o := newOwnership()
	for range d.count() {
		first, last := int(d.slot()), int(d.slot())
		for slot := first; slot <= last; slot++ {
			o.slots.Add(keyspace.Slot(slot)) //nolint:gosec // slots checked when read
		}
	}
	for range d.count() {
		o.in[keyspace.Vertex(d.text())] = struct{}{}
	}
	for range d.count() {
		v := keyspace.Vertex(d.text())
		o.out[v] = forward{to: d.shard(), handoff: d.number()}
	}
	for range d.count() {
		v := keyspace.Vertex(d.text())
		o.forwardVertex[v] = forward{to: d.shard(), handoff: d.number()}
	}
	for range d.count() {
		slot := d.slot()
		o.forwardSlot[slot] = forward{to: d.shard(), handoff: d.number()}
	}
	return o
}

// StateHash returns a hash over the whole state: equal at replicas that applied
// the same entries. It walks the state: for tests and the simulator.
func (c *Core) StateHash() uint64 {
	h := fnv.New64a()
	if _, err := c.Snapshot().WriteTo(h); err != nil {
		return 0
	}
	return h.Sum64()
}
