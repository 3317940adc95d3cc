// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"
)

// Contents is what a log held when it was opened.
type Contents struct {
	// Founded says that the log did not exist before.
	Founded bool
	// State is the last hard state, empty if none was written.
	State *raftpb.HardState
	// Marks are the last snapshots, the newest last; Marks[0] is where Entries begin. A mark of index 0
	// stands for the empty state at the founding.
	Marks []Mark
	// Entries are consecutive from Marks[0].Index+1.
	Entries []*raftpb.Entry
}

// advice closes the errors about a log that cannot be read.
const advice = "restore the directory from a backup, or replace this replica by a new one; do not delete the file: that would lose acknowledged entries"

// Open reads the log in the directory, or founds it, and begins a new segment. What a crash tore off at
// the end is cut, and logged. Errors name the file and the offset.
func Open(opt Options) (*Log, *Contents, error) {
	if opt.SegmentBytes == 0 {
		opt.SegmentBytes = defaultSegmentBytes
	}
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	if err := makeDir(opt.FS, opt.Dir); err != nil {
		return nil, nil, err
	}
	dir, err := opt.FS.OpenDir(opt.Dir)
	if err != nil {
		return nil, nil, fmt.Errorf("open directory %s: %w", opt.Dir, err)
	}
	l := &Log{opt: opt, dir: dir}
	contents, err := l.recover()
	if err != nil {
		return nil, nil, errors.Join(err, dir.Close())
	}
	return l, contents, nil
}

// makeDir makes the directory and syncs those it lies in, so that a crash does not take it away.
func makeDir(fs vfs.FS, path string) error {
	if err := fs.MkdirAll(path, 0o755); err != nil {
		return fmt.Errorf("make directory %s: %w", path, err)
	}
	for child := path; ; {
		parent := fs.PathDir(child)
		if parent == child {
			return nil
		}
		dir, err := fs.OpenDir(parent)
		if oserror.IsPermission(err) && child != path {
			// A directory that the replica may not even read is not one that it has made.
			return nil
		}
		if err != nil {
			return fmt.Errorf("open directory %s: %w", parent, err)
		}
		if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
			return fmt.Errorf("sync directory %s: %w", parent, err)
		}
		child = parent
	}
}

// recover reads all segments and begins a new one.
func (l *Log) recover() (*Contents, error) {
	files, err := l.readSegments()
	if err != nil {
		return nil, l.fail(err)
	}
	r := reader{log: l}
	for i := range files {
		end := int64(-1)
		if i+1 < len(files) {
			end = int64(files[i+1].head.previousEnd) //nolint:gosec // checked against the file's size
		}
		if err := r.segment(&files[i], end); err != nil {
			return nil, l.fail(err)
		}
	}
	contents, err := r.contents()
	if err != nil {
		return nil, l.fail(err)
	}
	l.state, l.marks = r.state, slices.Clone(contents.Marks)
	if len(files) == 0 {
		contents.Founded = true
		contents.Marks = []Mark{{ConfState: l.opt.Founding}}
		l.marks = slices.Clone(contents.Marks)
	}
	sequence, previousEnd := uint64(1), int64(0)
	if n := len(l.segments); n > 0 {
		sequence, previousEnd = l.segments[n-1].sequence+1, l.segments[n-1].size
	}
	if err := l.begin(sequence, previousEnd); err != nil {
		return nil, l.fail(err)
	}
	return contents, nil
}

// file is a segment in memory.
type file struct {
	sequence uint64
	path     string
	data     []byte
	head     head
	// first is the offset behind the head frame; records are those of the head frame behind the head.
	first   int64
	records []byte
}

// readSegments reads the files and their heads, and removes a last one whose creation a crash interrupted.
func (l *Log) readSegments() ([]file, error) {
	sequences, err := l.list()
	if err != nil {
		return nil, err
	}
	files := make([]file, 0, len(sequences))
	for i, sequence := range sequences {
		f := file{sequence: sequence, path: l.path(sequence)}
		if i > 0 && sequence != sequences[i-1]+1 {
			return nil, fmt.Errorf("%w: %s is missing between %s and %s: %s", ErrCorrupt,
				segmentName(sequences[i-1]+1), l.path(sequences[i-1]), f.path, advice)
		}
		if f.data, err = readFile(l.opt.FS, f.path); err != nil {
			return nil, err
		}
		err := l.readHead(&f)
		if err == nil {
			files = append(files, f)
			continue
		}
		if i+1 < len(sequences) || !errors.Is(err, errRecord) || !unfinished(&f) {
			return nil, err
		}
		l.opt.Logger.Warn("removed a log segment whose creation was interrupted", "file", f.path, "bytes", len(f.data))
		if err := l.opt.FS.Remove(f.path); err != nil {
			return nil, fmt.Errorf("remove %s: %w", f.path, err)
		}
		if err := l.dir.Sync(); err != nil {
			return nil, fmt.Errorf("sync directory %s: %w", l.opt.Dir, err)
		}
	}
	return files, nil
}

// unfinished says whether the segment has no intact frame at all: then it never took an entry.
func unfinished(f *file) bool {
	_, found := laterFrame(f.data, f.sequence, preambleSize-frameAlign)
	return !found
}

// list returns the sequences of the segments, in order. Other files are not the log's.
func (l *Log) list() ([]uint64, error) {
	names, err := l.opt.FS.List(l.opt.Dir)
	if err != nil {
		return nil, fmt.Errorf("list directory %s: %w", l.opt.Dir, err)
	}
	var sequences []uint64
	for _, name := range names {
		digits, ok := strings.CutSuffix(name, ".wal")
		if !ok {
			continue
		}
		sequence, err := strconv.ParseUint(digits, 16, 64)
		if err != nil || segmentName(sequence) != name {
			return nil, fmt.Errorf("%w: %s is no name of a log segment: move the file away", ErrCorrupt, l.opt.FS.PathJoin(l.opt.Dir, name))
		}
		sequences = append(sequences, sequence)
	}
	slices.Sort(sequences)
	return sequences, nil
}

// readHead checks whose the segment is. The error wraps errRecord if there is no intact head.
func (l *Log) readHead(f *file) error {
	broken := func(err error) error {
		return fmt.Errorf("%w: %s has no intact head: %w: %s", ErrCorrupt, f.path, err, advice)
	}
	if err := checkPreamble(f.data); err != nil {
		if errors.Is(err, ErrVersion) {
			return fmt.Errorf("read %s: %w", f.path, err)
		}
		return broken(err)
	}
	payload, next, ok := frameAt(f.data, f.sequence, preambleSize)
	if !ok {
		return broken(errRecord)
	}
	kind, body, rest, err := nextRecord(payload)
	if err != nil || kind != recordHead {
		return broken(errRecord)
	}
	if f.head, err = decodeHead(body); err != nil {
		return broken(err)
	}
	if f.head.group != l.opt.Group || f.head.replica != l.opt.Replica {
		return fmt.Errorf("%w: %s was written by replica %d of group %q, this is replica %d of group %q: give it the right data directory",
			ErrOtherGroup, f.path, f.head.replica, f.head.group, l.opt.Replica, l.opt.Group)
	}
	f.first, f.records = next, rest
	return nil
}

// readFile reads a whole file.
func readFile(fs vfs.FS, path string) (data []byte, err error) {
	f, err := fs.Open(path, vfs.SequentialReadsOption)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("stat %s: %w", path, err)
	}
	data = make([]byte, info.Size())
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return data, nil
}
