// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package snapshot owns the snapshot files of one replica: written under a temporary name, checksummed, renamed.
// It never decides which snapshot counts: that is the log's, whose marks name them.
// The node of services/replica writes, reads and removes files by it; its transport streams them.
package snapshot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"
)

var (
	// ErrCorrupt is returned for a snapshot file whose content is not what was written.
	ErrCorrupt = errors.New("the snapshot is corrupt")
	// ErrOtherGroup is returned for a snapshot of another Raft group.
	ErrOtherGroup = errors.New("the snapshot belongs to another group")
	// ErrVersion is returned for a snapshot in a format that this program does not know.
	ErrVersion = errors.New("the snapshot has another format")
)

// A file is: magic, version; uint32 length of the head, head, its CRC-32C; the body; a footer of
// uint64 length of the body, CRC-32C of the body, CRC-32C of the footer so far, magic. Little-endian.
const (
	magic       = "kolosnp"
	version     = 1
	preamble    = 8
	footerSize  = 24
	footerMagic = "kolosend"
	maxHead     = 1024

	suffix          = ".snapshot"
	temporarySuffix = ".tmp"

	category vfs.DiskWriteCategory = "kolocate-snapshot"
	// bytesPerSync spreads the disk's work over the time of writing, so that the log's syncs don't wait for it.
	bytesPerSync = 1 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Position names a snapshot: it holds everything up to the entry of this index and term.
type Position struct {
	Index, Term uint64
}

// Store is the directory of snapshots of one replica. Its methods may be called concurrently for
// different positions.
type Store struct {
	fs    vfs.FS
	dir   string
	group string
	// writes numbers the temporary files, so that two writers never share one.
	writes atomic.Uint64
}

// Open makes the directory if needed and removes what an interrupted write left.
func Open(fs vfs.FS, dir, group string) (*Store, error) {
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make directory %s: %w", dir, err)
	}
	s := &Store{fs: fs, dir: dir, group: group}
	if err := syncDir(fs, fs.PathDir(dir)); err != nil {
		return nil, err
	}
	names, err := s.list()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if !strings.HasSuffix(name, temporarySuffix) {
			continue
		}
		if err := fs.Remove(fs.PathJoin(dir, name)); err != nil {
			return nil, fmt.Errorf("remove %s: %w", fs.PathJoin(dir, name), err)
		}
	}
	return s, nil
}

// list returns the names in the directory, in order.
func (s *Store) list() ([]string, error) {
	names, err := s.fs.List(s.dir)
	if err != nil {
		return nil, fmt.Errorf("list directory %s: %w", s.dir, err)
	}
	slices.Sort(names)
	return names, nil
}

// Path is the file of the snapshot.
func (s *Store) Path(p Position) string { return s.fs.PathJoin(s.dir, name(p)) }

func name(p Position) string { return fmt.Sprintf("%016x-%016x%s", p.Index, p.Term, suffix) }

// Exists says whether there is a finished snapshot.
func (s *Store) Exists(p Position) bool {
	_, err := s.fs.Stat(s.Path(p))
	return err == nil
}

// Remove removes a finished snapshot, if it exists.
func (s *Store) Remove(p Position) error {
	if err := s.fs.Remove(s.Path(p)); err != nil && !oserror.IsNotExist(err) {
		return fmt.Errorf("remove %s: %w", s.Path(p), err)
	}
	return syncDir(s.fs, s.dir)
}

// Retain removes all finished snapshots but those given.
func (s *Store) Retain(keep ...Position) error {
	names, err := s.list()
	if err != nil {
		return err
	}
	kept := make([]string, 0, len(keep))
	for _, p := range keep {
		kept = append(kept, name(p))
	}
	removed := false
	for _, n := range names {
		if !strings.HasSuffix(n, suffix) || slices.Contains(kept, n) {
			continue
		}
		path := s.fs.PathJoin(s.dir, n)
		if err := s.fs.Remove(path); err != nil {
			return fmt.Errorf("remove %s: %w", path, err)
		}
		removed = true
	}
	if !removed {
		return nil
	}
	return syncDir(s.fs, s.dir)
}

func syncDir(fs vfs.FS, path string) error {
	dir, err := fs.OpenDir(path)
	if err != nil {
		return fmt.Errorf("open directory %s: %w", path, err)
	}
	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
		return fmt.Errorf("sync directory %s: %w", path, err)
	}
	return nil
}

// encodeHead returns preamble and head of a snapshot.
func encodeHead(group string, p Position) []byte {
	payload := binary.AppendUvarint(nil, p.Index)
	payload = binary.AppendUvarint(payload, p.Term)
	payload = append(payload, group...)
	b := append([]byte(magic), version)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload))) //nolint:gosec // below maxHead
	b = append(b, payload...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(payload, castagnoli))
}

// encodeFooter returns what follows the body.
func encodeFooter(bodyBytes uint64, checksum uint32) []byte {
	b := binary.LittleEndian.AppendUint64(nil, bodyBytes)
	b = binary.LittleEndian.AppendUint32(b, checksum)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return append(b, footerMagic...)
}
