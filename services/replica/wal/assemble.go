// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"fmt"

	"go.etcd.io/raft/v3/raftpb"
)

// reader puts the frames together.
type reader struct {
	log      *Log
	state    *raftpb.HardState
	marks    []Mark
	entries  []*raftpb.Entry
	maxIndex uint64
	// next is the index that must follow after a reset with no entries yet, 0 for any.
	next uint64
}

// segment reads the frames of one file. End is where its successor says it ends, -1 for the last file.
func (r *reader) segment(f *file, end int64) error {
	r.maxIndex = 0
	// The head repeats what was known when the segment was begun; older segments may be gone.
	r.marks, r.state = nil, nil
	if err := r.payload(f, preambleSize, f.records); err != nil {
		return err
	}
	offset := f.first
	limit := int64(len(f.data))
	if end >= 0 {
		if end > limit || end < offset {
			return fmt.Errorf("%w: %s has %d bytes, its successor says %d: %s", ErrCorrupt, f.path, limit, end, advice)
		}
		limit = end
	}
	for offset < limit {
		payload, next, ok := frameAt(f.data[:limit], f.sequence, offset)
		if !ok {
			break
		}
		if err := r.payload(f, offset, payload); err != nil {
			return err
		}
		offset = next
	}
	if offset < limit {
		if err := r.tail(f, offset, end >= 0); err != nil {
			return err
		}
	}
	r.log.segments = append(r.log.segments, segment{sequence: f.sequence, size: offset, maxIndex: r.maxIndex})
	return nil
}

// tail judges the broken frame at the offset: torn by a crash, or corrupt.
func (r *reader) tail(f *file, offset int64, finished bool) error {
	if finished {
		return fmt.Errorf("%w: %s at offset %d of %d, in a finished segment: %s", ErrCorrupt, f.path, offset, len(f.data), advice)
	}
	if later, ok := laterFrame(f.data, f.sequence, offset); ok {
		return fmt.Errorf("%w: %s at offset %d, before an intact record at offset %d: %s", ErrCorrupt, f.path, offset, later, advice)
	}
	if !looksTorn(f.data, f.sequence, offset) {
		return fmt.Errorf("%w: %s at offset %d: the last record is complete but its checksum is wrong: %s", ErrCorrupt, f.path, offset, advice)
	}
	r.log.opt.Logger.Warn("cut a torn tail off the log; it was never acknowledged",
		"file", f.path, "offset", offset, "bytes", int64(len(f.data))-offset)
	return nil
}

// payload takes in the records of one frame.
func (r *reader) payload(f *file, offset int64, payload []byte) error {
	for len(payload) > 0 {
		kind, body, rest, err := nextRecord(payload)
		if err == nil {
			err = r.record(kind, body)
		}
		if err != nil {
			return fmt.Errorf("%w: %s at offset %d: %w: %s", ErrCorrupt, f.path, offset, err, advice)
		}
		payload = rest
	}
	return nil
}

func (r *reader) record(kind byte, body []byte) (err error) {
	switch kind {
	case recordEntry:
		var e *raftpb.Entry
		if e, err = decodeEntry(body); err == nil {
			err = r.entry(e)
		}
	case recordState:
		r.state, err = decodeState(body)
	case recordMark, recordReset:
		var m Mark
		if m, err = decodeMark(body, kind == recordReset); err == nil {
			r.marks = addMark(r.marks, m)
			if m.Reset {
				r.entries, r.next = nil, m.Index+1
			}
		}
	default:
		err = fmt.Errorf("%w: unknown kind %d", errRecord, kind)
	}
	return err
}

// entry appends e, which may overwrite a suffix.
func (r *reader) entry(e *raftpb.Entry) error {
	index := e.GetIndex()
	r.maxIndex = max(r.maxIndex, index)
	n := len(r.entries)
	switch {
	case n == 0 && (r.next == 0 || r.next == index):
		r.entries = append(r.entries, e)
	case n == 0:
		return fmt.Errorf("%w: entry %d follows a snapshot of %d", errRecord, index, r.next-1)
	case index == r.entries[n-1].GetIndex()+1:
		r.entries = append(r.entries, e)
	case index > r.entries[n-1].GetIndex():
		return fmt.Errorf("%w: entry %d follows entry %d", errRecord, index, r.entries[n-1].GetIndex())
	case index < r.entries[0].GetIndex():
		r.entries = append(r.entries[:0], e)
	default:
		r.entries = append(r.entries[:index-r.entries[0].GetIndex()], e)
	}
	return nil
}

// contents checks that the entries join the oldest mark.
func (r *reader) contents() (*Contents, error) {
	c := &Contents{State: r.state, Marks: r.marks, Entries: r.entries}
	if c.State == nil {
		c.State = &raftpb.HardState{}
	}
	if len(c.Marks) == 0 {
		if len(r.log.segments) > 0 {
			return nil, fmt.Errorf("%w: the log in %s has no founding mark: %s", ErrCorrupt, r.log.opt.Dir, advice)
		}
		return c, nil
	}
	for i := range c.Marks {
		c.Marks[i].Reset = false
	}
	base := c.Marks[0].Index
	for len(c.Entries) > 0 && c.Entries[0].GetIndex() <= base {
		c.Entries = c.Entries[1:]
	}
	if len(c.Entries) > 0 && c.Entries[0].GetIndex() != base+1 {
		return nil, fmt.Errorf("%w: the log in %s begins with entry %d, the oldest snapshot ends at %d: %s",
			ErrCorrupt, r.log.opt.Dir, c.Entries[0].GetIndex(), base, advice)
	}
	last := c.Marks[len(c.Marks)-1].Index
	if newest := base + uint64(len(c.Entries)); newest < last {
		return nil, fmt.Errorf("%w: the log in %s ends with entry %d, before its snapshot of %d: %s", ErrCorrupt, r.log.opt.Dir, newest, last, advice)
	}
	return c, nil
}
