// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Verify reads the whole snapshot and returns an error that names the file if it is not intact.
func (s *Store) Verify(p Position) error { return s.verify(s.Path(p), p) }

func (s *Store) verify(path string, p Position) (err error) {
	f, err := s.open(path, p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h := crc32.New(castagnoli)
	if _, err := io.CopyBuffer(struct{ io.Writer }{h}, f.body, make([]byte, bufferBytes)); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if h.Sum32() != f.checksum {
		return fmt.Errorf("%w: %s: the checksum of its %d bytes is %08x, expected %08x", ErrCorrupt, path, f.bodyBytes, h.Sum32(), f.checksum)
	}
	return nil
}

// Body opens what the state machine wrote. The caller has called Verify before.
func (s *Store) Body(p Position) (io.ReadCloser, error) {
	f, err := s.open(s.Path(p), p)
	if err != nil {
		return nil, err
	}
	return &bodyReader{Reader: bufio.NewReaderSize(f.body, bufferBytes), file: f.File}, nil
}

type bodyReader struct {
	io.Reader
	file vfs.File
}

// Close closes the file.
func (r *bodyReader) Close() error { return r.file.Close() } //nolint:wrapcheck // a thin wrapper

// File opens the whole file, to be streamed to a peer, and returns its size. It stays readable when
// the snapshot is removed meanwhile.
func (s *Store) File(p Position) (io.ReadCloser, int64, error) {
	f, err := s.fs.Open(s.Path(p), vfs.SequentialReadsOption)
	if err != nil {
		return nil, 0, fmt.Errorf("open %s: %w", s.Path(p), err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("stat %s: %w", s.Path(p), err), f.Close())
	}
	return f, info.Size(), nil
}

// opened is a snapshot whose head and footer are intact.
type opened struct {
	vfs.File
	body      io.Reader
	bodyBytes int64
	checksum  uint32
}

func (s *Store) open(path string, p Position) (*opened, error) {
	f, err := s.fs.Open(path, vfs.SequentialReadsOption)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	o, err := s.check(f, p)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read %s: %w", path, err), f.Close())
	}
	return o, nil
}

// check reads head and footer.
func (s *Store) check(f vfs.File, p Position) (*opened, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller names the file
	}
	headBytes, err := s.checkHead(f, p)
	if err != nil {
		return nil, err
	}
	footerAt := info.Size() - footerSize
	if footerAt < headBytes {
		return nil, fmt.Errorf("%w: it ends after %d bytes", ErrCorrupt, info.Size())
	}
	footer := make([]byte, footerSize)
	if _, err := f.ReadAt(footer, footerAt); err != nil {
		return nil, err //nolint:wrapcheck // the caller names the file
	}
	if string(footer[16:]) != footerMagic || crc32.Checksum(footer[:12], castagnoli) != binary.LittleEndian.Uint32(footer[12:]) {
		return nil, fmt.Errorf("%w: it has no intact footer in its last %d of %d bytes", ErrCorrupt, footerSize, info.Size())
	}
	bodyBytes := binary.LittleEndian.Uint64(footer)
	if bodyBytes != uint64(footerAt-headBytes) { //nolint:gosec // not negative: checked above
		return nil, fmt.Errorf("%w: it holds %d bytes, its footer says %d", ErrCorrupt, footerAt-headBytes, bodyBytes)
	}
	return &opened{
		File:      f,
		body:      io.NewSectionReader(f, headBytes, footerAt-headBytes),
		bodyBytes: footerAt - headBytes,
		checksum:  binary.LittleEndian.Uint32(footer[8:]),
	}, nil
}

// checkHead returns the bytes before the body.
func (s *Store) checkHead(f vfs.File, p Position) (int64, error) {
	start := make([]byte, preamble+4)
	if _, err := f.ReadAt(start, 0); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	length := binary.LittleEndian.Uint32(start[preamble:])
	if string(start[:len(magic)]) != magic || length > maxHead {
		return 0, fmt.Errorf("%w: it does not begin as a snapshot", ErrCorrupt)
	}
	if start[len(magic)] != version {
		return 0, fmt.Errorf("%w: it has version %d, this program reads version %d: run the program that wrote it", ErrVersion, start[len(magic)], version)
	}
	head := make([]byte, length+4)
	if _, err := f.ReadAt(head, preamble+4); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	payload := head[:length]
	if crc32.Checksum(payload, castagnoli) != binary.LittleEndian.Uint32(head[length:]) {
		return 0, fmt.Errorf("%w: the checksum of its head is wrong", ErrCorrupt)
	}
	index, n := binary.Uvarint(payload)
	term, m := binary.Uvarint(payload[max(n, 0):])
	if n <= 0 || m <= 0 {
		return 0, fmt.Errorf("%w: its head cannot be read", ErrCorrupt)
	}
	if group := string(payload[n+m:]); group != s.group {
		return 0, fmt.Errorf("%w: it is of group %q, this is group %q", ErrOtherGroup, group, s.group)
	}
	if got := (Position{Index: index, Term: term}); got != p {
		return 0, fmt.Errorf("%w: it is of index %d and term %d, expected %d and %d", ErrCorrupt, index, term, p.Index, p.Term)
	}
	return preamble + 4 + int64(length) + 4, nil
}
