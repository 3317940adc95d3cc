// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

var position = Position{Index: 10, Term: 2}

func openStore(t *testing.T, fs vfs.FS) *Store {
	t.Helper()
	if err := fs.MkdirAll("data", 0o755); err != nil {
		t.Fatal(err)
	}
	// The log makes the directory that both lie in durable.
	if err := syncDir(fs, fs.PathDir("data")); err != nil {
		t.Fatal(err)
	}
	s, err := Open(fs, "data/snapshots", "store/shard-1")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func content(n int) []byte { return bytes.Repeat([]byte("snapshot "), n)[:n] }

func create(s *Store, p Position, data []byte) error {
	_, err := s.Create(p, func(w io.Writer) (int64, error) {
		n, err := w.Write(data)
		return int64(n), err
	})
	return err
}

func read(t *testing.T, s *Store, p Position) []byte {
	t.Helper()
	if err := s.Verify(p); err != nil {
		t.Fatal(err)
	}
	body, err := s.Body(p)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(body)
	if err := errors.Join(err, body.Close()); err != nil {
		t.Fatal(err)
	}
	return data
}

func TestWriteAndRead(t *testing.T) {
	for _, size := range []int{0, 1, 4096, 3 << 20} {
		s := openStore(t, vfs.NewMem())
		want := content(size)
		if err := create(s, position, want); err != nil {
			t.Fatal(err)
		}
		if got := read(t, s, position); !bytes.Equal(got, want) {
			t.Errorf("%d bytes were read, %d written", len(got), len(want))
		}
	}
}

// TestEveryByteIsChecked changes and cuts a snapshot at each byte.
func TestEveryByteIsChecked(t *testing.T) {
	fs := vfs.NewMem()
	s := openStore(t, fs)
	if err := create(s, position, content(300)); err != nil {
		t.Fatal(err)
	}
	file, size, err := s.File(position)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := io.ReadAll(file)
	if err := errors.Join(err, file.Close()); err != nil || int64(len(whole)) != size {
		t.Fatalf("%d bytes of %d and error %v", len(whole), size, err)
	}
	receive := func(data []byte) error {
		r, err := s.Receive(position)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Write(slices.Clone(data)); err != nil {
			t.Fatal(err)
		}
		_, err = r.Commit()
		return err
	}
	for at := range whole {
		changed := slices.Clone(whole)
		changed[at] ^= 0x10
		for _, data := range [][]byte{changed, whole[:at]} {
			err := receive(data)
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
				t.Fatalf("byte %d of %d: %v", at, len(whole), err)
			}
			if !strings.Contains(err.Error(), "data/snapshots/") {
				t.Fatalf("the error names no file: %v", err)
			}
		}
	}
	if err := receive(whole); err != nil {
		t.Fatal(err)
	}
	if got := read(t, s, position); !bytes.Equal(got, content(300)) {
		t.Error("what was received differs from what was sent")
	}
	other, err := Open(fs, "data/snapshots", "store/shard-2")
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Verify(position); !errors.Is(err, ErrOtherGroup) {
		t.Errorf("the snapshot of another group gives %v", err)
	}
}

// TestCrashWhileWriting takes the power away before each operation: the snapshot is there whole or not at
// all, and there for sure when Create has returned.
func TestCrashWhileWriting(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, percent := range []int{0, 50, 100} {
		mem := vfs.NewCrashableMem()
		openStore(t, mem)
		check := func(done bool) {
			s := openStore(t, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: r}))
			exists := s.Exists(position)
			if done && !exists {
				t.Fatal("the snapshot is lost")
			}
			if exists {
				if got := read(t, s, position); len(got) != 100_000 {
					t.Fatalf("a snapshot of %d bytes", len(got))
				}
			}
			names, err := s.list()
			if err != nil || slices.ContainsFunc(names, func(n string) bool { return strings.HasSuffix(n, temporarySuffix) }) {
				t.Fatalf("left after opening: %v, error %v", names, err)
			}
		}
		fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
				check(false)
			}
			return nil
		}))
		if err := create(openStore(t, fs), position, content(100_000)); err != nil {
			t.Fatal(err)
		}
		check(true)
	}
}

func TestRetain(t *testing.T) {
	s := openStore(t, vfs.NewMem())
	for i := range uint64(5) {
		if err := create(s, Position{Index: i, Term: 1}, content(10)); err != nil {
			t.Fatal(err)
		}
	}
	open, _, err := s.File(Position{Index: 1, Term: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Retain(Position{Index: 3, Term: 1}, Position{Index: 4, Term: 1}); err != nil {
		t.Fatal(err)
	}
	var left []string
	for i := range uint64(5) {
		if s.Exists(Position{Index: i, Term: 1}) {
			left = append(left, fmt.Sprint(i))
		}
	}
	if strings.Join(left, " ") != "3 4" {
		t.Errorf("left are %v", left)
	}
	// A peer may be in the middle of it.
	if data, err := io.ReadAll(open); err != nil || len(data) == 0 {
		t.Errorf("a removed file gives %d bytes and error %v", len(data), err)
	}
	if err := open.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(Position{Index: 3, Term: 1}); err != nil || s.Exists(Position{Index: 3, Term: 1}) {
		t.Errorf("remove gives %v", err)
	}
}

// TestFailedWriteLeavesNothing lets the writer of the state fail.
func TestFailedWriteLeavesNothing(t *testing.T) {
	s := openStore(t, vfs.NewMem())
	failure := errors.New("the state machine failed")
	if _, err := s.Create(position, func(io.Writer) (int64, error) { return 0, failure }); !errors.Is(err, failure) {
		t.Errorf("Create gives %v", err)
	}
	if names, err := s.list(); err != nil || len(names) != 0 {
		t.Errorf("left are %v, error %v", names, err)
	}
}
