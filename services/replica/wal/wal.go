// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package wal owns the log files of one replica: Raft entries, hard state and snapshot marks, in segments.
// It has no goroutine, clock or random source, and touches nothing but the vfs.FS it is given.
// The node of services/replica calls it, from one goroutine.
package wal

import (
	"errors"
	"fmt"
	"log/slog"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"
)

var (
	// ErrOtherGroup is returned for a log that another Raft group or another replica wrote.
	ErrOtherGroup = errors.New("the log belongs to another group or replica")
	// ErrVersion is returned for a log in a format that this program does not know.
	ErrVersion = errors.New("the log has another format")
	// ErrCorrupt is returned for a log that lost or changed something that had been acknowledged.
	ErrCorrupt = errors.New("the log is corrupt")
	// ErrDiskFull is returned when the disk has no room for the log. Nothing acknowledged is lost.
	ErrDiskFull = errors.New("the disk is full")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("the log is closed")
)

// category tells the file system what is written, for its own statistics.
const category vfs.DiskWriteCategory = "kolocate-wal"

// defaultSegmentBytes is the size at which a segment is followed by another.
const defaultSegmentBytes = 16 << 20

// Mark says that a snapshot of everything up to Index is durable.
type Mark struct {
	Index, Term uint64
	// ConfState is the membership of the group at Index.
	ConfState *raftpb.ConfState
	// Reset says that the snapshot came from another replica and replaces the log: entries written
	// before the mark are void.
	Reset bool
}

// Batch is what one Append makes durable.
type Batch struct {
	// Reset, if not nil, comes before the entries; Mark after them.
	Reset, Mark *Mark
	// Entries have consecutive indexes; the first may overwrite a suffix of the log.
	Entries []*raftpb.Entry
	// State is the hard state, nil if it is unchanged.
	State *raftpb.HardState
}

// Options say where a log is and whose.
type Options struct {
	FS  vfs.FS
	Dir string
	// Group and Replica must be those that the log was founded with.
	Group   string
	Replica uint64
	// Founding is written to a log that does not exist yet: the members of the group at index 0.
	Founding *raftpb.ConfState
	// SegmentBytes is the size from which a new segment is begun; default 16 MiB.
	SegmentBytes int64
	// OnSync, if not nil, is called before (true) and after (false) each sync of Append.
	OnSync func(begin bool)
	Logger *slog.Logger
}

// Log is an open log. It is used by one goroutine at a time.
type Log struct {
	opt Options
	dir vfs.File

	file     vfs.File
	sequence uint64
	size     int64
	buf      []byte

	// segments are the older ones, in order; the file being written is not among them.
	segments []segment
	maxIndex uint64

	state *raftpb.HardState
	marks []Mark

	// err is the first failure: after it nothing is written, since what the disk holds is unknown.
	err error
}

// segment is a finished file.
type segment struct {
	sequence uint64
	size     int64
	maxIndex uint64
}

// keptMarks is how many marks a log remembers: the last snapshot and the one to fall back to.
const keptMarks = 2

// bufferKept is the size of the write buffer that is kept between calls.
const bufferKept = 4 << 20

// Append makes the batch durable with one sync: when it returns nil, the batch survives a crash. After an
// error the log takes nothing more, and what an earlier Append wrote is not lost.
func (l *Log) Append(b Batch) error {
	if l.err != nil {
		return l.err
	}
	if l.size >= l.opt.SegmentBytes {
		if err := l.rotate(); err != nil {
			return l.fail(err)
		}
	}
	if err := l.write(b); err != nil {
		return l.fail(err)
	}
	return nil
}

// write writes the batch as one frame, or as several if it is large, each synced before the next.
func (l *Log) write(b Batch) error {
	if cap(l.buf) > bufferKept {
		l.buf = nil
	}
	var err error
	buf := l.beginFrame()
	if b.Reset != nil {
		if buf, err = appendMark(buf, *b.Reset); err != nil {
			return err
		}
		l.noteMark(*b.Reset)
	}
	// The state goes into the first frame: a term must be durable no later than its entries.
	if b.State != nil {
		buf = appendState(buf, b.State)
		l.state = b.State
	}
	for _, e := range b.Entries {
		if len(buf) > frameHeader && len(buf)+entrySize(e) > maxFramePayload {
			if err := l.flush(buf); err != nil {
				return err
			}
			buf = l.beginFrame()
		}
		buf = appendEntry(buf, e)
		l.maxIndex = max(l.maxIndex, e.GetIndex())
	}
	if b.Mark != nil {
		if buf, err = appendMark(buf, *b.Mark); err != nil {
			return err
		}
		l.noteMark(*b.Mark)
	}
	if len(buf) == frameHeader {
		return nil
	}
	return l.flush(buf)
}

// beginFrame returns the write buffer with room for a frame header.
func (l *Log) beginFrame() []byte { return append(l.buf[:0], make([]byte, frameHeader)...) }

// flush writes the frame and syncs it.
func (l *Log) flush(buf []byte) error {
	buf = sealFrame(buf, 0, l.sequence, l.size)
	l.buf = buf
	if _, err := l.file.Write(buf); err != nil {
		return fmt.Errorf("write %d bytes at offset %d of %s: %w", len(buf), l.size, l.path(l.sequence), err)
	}
	if l.opt.OnSync != nil {
		l.opt.OnSync(true)
		defer l.opt.OnSync(false)
	}
	if err := l.file.SyncData(); err != nil {
		return fmt.Errorf("sync %s: %w", l.path(l.sequence), err)
	}
	l.size += int64(len(buf))
	return nil
}

// noteMark remembers a mark for the heads of later segments.
func (l *Log) noteMark(m Mark) { l.marks = addMark(l.marks, m) }

func addMark(marks []Mark, m Mark) []Mark {
	if m.Reset {
		return []Mark{m}
	}
	marks = append(marks, m)
	return marks[max(0, len(marks)-keptMarks):]
}

// rotate finishes the segment and begins the next.
func (l *Log) rotate() error {
	old := l.file
	l.segments = append(l.segments, segment{sequence: l.sequence, size: l.size, maxIndex: l.maxIndex})
	if err := l.begin(l.sequence+1, l.size); err != nil {
		return err
	}
	if err := old.Close(); err != nil {
		return fmt.Errorf("close %s: %w", l.path(l.sequence-1), err)
	}
	return nil
}

// begin creates a segment whose head repeats the state and the marks, and makes it durable.
func (l *Log) begin(sequence uint64, previousEnd int64) error {
	path := l.path(sequence)
	file, err := l.opt.FS.Create(path, category)
	if err != nil {
		return fmt.Errorf("create %s: %w", path, err)
	}
	buf := appendPreamble(l.buf[:0])
	buf = append(buf, make([]byte, frameHeader)...)
	buf = appendHead(buf, head{
		group: l.opt.Group, replica: l.opt.Replica, sequence: sequence, previousEnd: uint64(previousEnd), //nolint:gosec // a size
	})
	if l.state != nil {
		buf = appendState(buf, l.state)
	}
	for _, m := range l.marks {
		m.Reset = false
		if buf, err = appendMark(buf, m); err != nil {
			return errors.Join(err, file.Close())
		}
	}
	buf = sealFrame(buf, preambleSize, sequence, preambleSize)
	l.buf = buf
	size := int64(len(buf))
	if _, err := file.Write(buf); err != nil {
		return errors.Join(fmt.Errorf("write the head of %s: %w", path, err), file.Close())
	}
	if err := file.Sync(); err != nil {
		return errors.Join(fmt.Errorf("sync %s: %w", path, err), file.Close())
	}
	if err := l.dir.Sync(); err != nil {
		return errors.Join(fmt.Errorf("sync directory %s: %w", l.opt.Dir, err), file.Close())
	}
	l.file, l.sequence, l.size, l.maxIndex = file, sequence, size, 0
	return nil
}

// Cut removes the segments that hold nothing above the index. Entries up to there may still be found
// when the log is opened again.
func (l *Log) Cut(index uint64) error {
	if l.err != nil {
		return l.err
	}
	for len(l.segments) > 0 && l.segments[0].maxIndex <= index {
		path := l.path(l.segments[0].sequence)
		if err := l.opt.FS.Remove(path); err != nil {
			return l.fail(fmt.Errorf("remove %s: %w", path, err))
		}
		// One by one, so that a crash leaves no hole in the sequence.
		if err := l.dir.Sync(); err != nil {
			return l.fail(fmt.Errorf("sync directory %s: %w", l.opt.Dir, err))
		}
		l.segments = l.segments[1:]
	}
	return nil
}

// Size returns the bytes of all segments.
func (l *Log) Size() int64 {
	total := l.size
	for _, s := range l.segments {
		total += s.size
	}
	return total
}

// Marks returns the remembered snapshot marks, the newest last: one or two.
func (l *Log) Marks() []Mark { return append([]Mark(nil), l.marks...) }

// Close closes the files. Everything acknowledged is durable already.
func (l *Log) Close() error {
	if errors.Is(l.err, ErrClosed) {
		return nil
	}
	l.err = ErrClosed
	if err := errors.Join(l.file.Close(), l.dir.Close()); err != nil {
		return fmt.Errorf("close the log in %s: %w", l.opt.Dir, err)
	}
	return nil
}

// fail remembers the failure; after it the log takes nothing more.
func (l *Log) fail(err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		err = fmt.Errorf("%w: %w: free some room on the disk of %s and restart; nothing acknowledged is lost", ErrDiskFull, err, l.opt.Dir)
	}
	l.err = err
	return err
}

// path is the file of a segment. Names sort by sequence.
func (l *Log) path(sequence uint64) string {
	return l.opt.FS.PathJoin(l.opt.Dir, segmentName(sequence))
}

func segmentName(sequence uint64) string { return fmt.Sprintf("%016x.wal", sequence) }
