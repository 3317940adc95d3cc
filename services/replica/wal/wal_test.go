// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.etcd.io/raft/v3/raftpb"
)

func entry(index uint64, size int) *raftpb.Entry {
	return &raftpb.Entry{Term: new(uint64(1)), Index: new(index), Data: bytes.Repeat([]byte{byte(index)}, size)}
}

// write founds a log with n entries of the size, one Append each.
func write(t *testing.T, fs vfs.FS, n, size int) {
	t.Helper()
	l, _, err := Open(testOptions(fs))
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if err := l.Append(Batch{Entries: []*raftpb.Entry{entry(uint64(i+1), size)}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// edit replaces a file.
func edit(t *testing.T, fs vfs.FS, path string, change func([]byte) []byte) {
	t.Helper()
	data, err := readFile(fs, path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := fs.Create(path, category)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(change(slices.Clone(data)))
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// reopen returns how many entries are left, or the error.
func reopen(fs vfs.FS) (int, error) {
	l, c, err := Open(testOptions(fs))
	if err != nil {
		return 0, err
	}
	return len(c.Entries), l.Close()
}

const firstSegment = "data/wal/0000000000000001.wal"

func TestTornTailIsCut(t *testing.T) {
	for _, lost := range []int{1, 9, 400, 900, 1015, 1024} {
		fs := vfs.NewMem()
		write(t, fs, 5, 1000)
		edit(t, fs, firstSegment, func(b []byte) []byte { return b[:len(b)-lost] })
		if n, err := reopen(fs); err != nil || n != 4 {
			t.Errorf("with %d bytes lost: %d entries and error %v, expected 4", lost, n, err)
		}
		if n, err := reopen(fs); err != nil || n != 4 {
			t.Errorf("opened again with %d bytes lost: %d entries and error %v, expected 4", lost, n, err)
		}
	}
	fs := vfs.NewMem()
	write(t, fs, 5, 1000)
	edit(t, fs, firstSegment, func(b []byte) []byte {
		clear(b[len(b)-600:])
		return b
	})
	if n, err := reopen(fs); err != nil || n != 4 {
		t.Errorf("with a sector of zeros: %d entries and error %v, expected 4", n, err)
	}
}

// TestCorruptionIsRefused changes each byte of a log in turn. It must not open with fewer entries, or
// others, than were acknowledged. Where the change cannot be told from a torn write (the header of the very
// last frame), the last entry alone may be missing.
func TestCorruptionIsRefused(t *testing.T) {
	const n = 4
	original := vfs.NewMem()
	write(t, original, n, 600)
	data, err := readFile(original, firstSegment)
	if err != nil {
		t.Fatal(err)
	}
	lastFrame := len(data) - int(frameSize(int64(len(appendEntry(nil, entry(n, 600))))))
	for at := range data {
		fs := vfs.NewMem()
		if err := fs.MkdirAll("data/wal", 0o755); err != nil {
			t.Fatal(err)
		}
		f, err := fs.Create(firstSegment, category)
		if err != nil {
			t.Fatal(err)
		}
		changed := slices.Clone(data)
		changed[at] ^= 0x40
		_, err = f.Write(changed)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		entries, err := reopen(fs)
		inPadding := padding(data, at)
		switch {
		case err == nil && (entries == n && inPadding || entries == n-1 && at >= lastFrame && at < lastFrame+frameHeader):
		case err != nil && (errors.Is(err, ErrCorrupt) || errors.Is(err, ErrVersion)):
			if !strings.Contains(err.Error(), firstSegment) {
				t.Fatalf("byte %d: the error does not name the file: %v", at, err)
			}
		default:
			t.Fatalf("byte %d of %d (last frame at %d): %d entries and error %v", at, len(data), lastFrame, entries, err)
		}
	}
}

// padding says whether the byte belongs to no checksum: zeros behind a payload or in a header.
func padding(data []byte, at int) bool {
	offset := int64(preambleSize)
	for offset < int64(len(data)) {
		payload, next, ok := frameAt(data, 1, offset)
		if !ok {
			return false
		}
		if int64(at) < next && int64(at) >= offset {
			return int64(at) >= offset+frameHeader+int64(len(payload)) || int64(at) >= offset+12 && int64(at) < offset+frameHeader
		}
		offset = next
	}
	return false
}

func TestFinishedSegmentMustBeWhole(t *testing.T) {
	for name, change := range map[string]func([]byte) []byte{
		"cut":     func(b []byte) []byte { return b[:len(b)-100] },
		"cleared": func(b []byte) []byte { clear(b[len(b)-100:]); return b },
	} {
		fs := vfs.NewMem()
		write(t, fs, 40, 1000)
		edit(t, fs, firstSegment, change)
		if _, err := reopen(fs); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), firstSegment) {
			t.Errorf("a finished segment that was %s: %v", name, err)
		}
	}
	fs := vfs.NewMem()
	write(t, fs, 40, 1000)
	if err := fs.Remove("data/wal/0000000000000002.wal"); err != nil {
		t.Fatal(err)
	}
	if _, err := reopen(fs); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "0000000000000002.wal is missing") {
		t.Errorf("a missing segment: %v", err)
	}
}

func TestOtherOwnersLogIsRefused(t *testing.T) {
	fs := vfs.NewMem()
	write(t, fs, 3, 10)
	for _, change := range []func(*Options){
		func(o *Options) { o.Group = "store/shard-2" },
		func(o *Options) { o.Replica = 2 },
	} {
		opt := testOptions(fs)
		change(&opt)
		if _, _, err := Open(opt); !errors.Is(err, ErrOtherGroup) {
			t.Errorf("the log of another was opened: %v", err)
		}
	}
	edit(t, fs, firstSegment, func(b []byte) []byte { b[len(magic)]++; return b })
	if _, _, err := Open(testOptions(fs)); !errors.Is(err, ErrVersion) {
		t.Errorf("a log of another version was opened: %v", err)
	}
}

// TestDiskFull lets the disk be full from each operation on. Append fails with a named error and stays
// failed; what was acknowledged is there when there is room again.
func TestDiskFull(t *testing.T) {
	for from := range 60 {
		mem := vfs.NewMem()
		writes := 0
		fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			switch op.Kind {
			case errorfs.OpCreate, errorfs.OpFileWrite, errorfs.OpFileSync, errorfs.OpFileSyncData:
				if writes++; writes > from {
					return &vfsError{op: fmt.Sprint(op.Kind), err: syscall.ENOSPC}
				}
			default:
			}
			return nil
		}))
		acknowledged := 0
		l, _, err := Open(testOptions(fs))
		for i := 1; err == nil && i < 40; i++ {
			if err = l.Append(Batch{Entries: []*raftpb.Entry{entry(uint64(i), 1000)}}); err == nil {
				acknowledged = i
			}
		}
		if err == nil {
			t.Fatalf("the disk was never full from operation %d on", from)
		}
		if l != nil {
			if !errors.Is(err, ErrDiskFull) {
				t.Fatalf("a full disk gives %v", err)
			}
			if again := l.Append(Batch{Entries: []*raftpb.Entry{entry(uint64(acknowledged+1), 10)}}); !errors.Is(again, ErrDiskFull) {
				t.Fatalf("after a failure Append gives %v", again)
			}
		}
		if n, err := reopen(mem); err != nil || n < acknowledged || n > acknowledged+1 {
			t.Fatalf("full from operation %d on: %d entries and error %v, %d were acknowledged", from, n, err, acknowledged)
		}
	}
}

type vfsError struct {
	op  string
	err error
}

func (e *vfsError) Error() string { return e.op + ": " + e.err.Error() }
func (e *vfsError) Unwrap() error { return e.err }

// TestLargeBatch writes more than fits into one frame.
func TestLargeBatch(t *testing.T) {
	fs := vfs.NewMem()
	l, _, err := Open(testOptions(fs))
	if err != nil {
		t.Fatal(err)
	}
	var entries []*raftpb.Entry
	for i := range 9 {
		entries = append(entries, entry(uint64(i+1), 8<<20))
	}
	if err := l.Append(Batch{Entries: entries, State: &raftpb.HardState{Term: new(uint64(1))}}); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := reopen(fs); err != nil || n != len(entries) {
		t.Errorf("%d entries and error %v, expected %d", n, err, len(entries))
	}
}

// FuzzOpen opens whatever stands in a segment: it opens or is refused by a named error.
func FuzzOpen(f *testing.F) {
	fs := vfs.NewMem()
	l, _, err := Open(testOptions(fs))
	if err != nil {
		f.Fatal(err)
	}
	if err := l.Append(Batch{Entries: []*raftpb.Entry{entry(1, 100), entry(2, 10)}, State: &raftpb.HardState{Term: new(uint64(1))}}); err != nil {
		f.Fatal(err)
	}
	seed, err := readFile(fs, firstSegment)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed, uint16(0), byte(0))
	f.Add(seed[:len(seed)-20], uint16(30), byte(1))
	f.Fuzz(func(t *testing.T, data []byte, at uint16, flip byte) {
		if len(data) > 0 {
			data = slices.Clone(data)
			data[int(at)%len(data)] ^= flip
		}
		fs := vfs.NewMem()
		if err := fs.MkdirAll("data/wal", 0o755); err != nil {
			t.Fatal(err)
		}
		file, err := fs.Create(firstSegment, category)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(file, bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := reopen(fs); err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) && !errors.Is(err, ErrOtherGroup) {
			t.Fatalf("an error without a name: %v", err)
		}
	})
}
