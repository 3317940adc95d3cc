// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"bufio"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const bufferBytes = 256 << 10

// Create writes a snapshot by the given function and makes it durable. It returns the bytes of the file.
// When it fails nothing is left but a temporary file that the next Open removes.
func (s *Store) Create(p Position, write func(io.Writer) (int64, error)) (int64, error) {
	w, err := s.begin(p)
	if err != nil {
		return 0, err
	}
	out := bufio.NewWriterSize(w.file, bufferBytes)
	body := &bodyWriter{out: out}
	_, err = out.Write(encodeHead(s.group, p))
	if err == nil {
		_, err = write(body)
	}
	if err == nil {
		_, err = out.Write(encodeFooter(body.bytes, body.checksum))
	}
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		return 0, errors.Join(fmt.Errorf("write snapshot %s: %w", w.temporary, err), w.Abort())
	}
	if err := w.publish(); err != nil {
		return 0, err
	}
	return int64(len(encodeHead(s.group, p))) + int64(body.bytes) + footerSize, nil //nolint:gosec // a size
}

// bodyWriter counts and checksums the body.
type bodyWriter struct {
	out      *bufio.Writer
	bytes    uint64
	checksum uint32
}

// Write passes b on, always through the buffer: a vfs.File may change the slice it is given.
func (w *bodyWriter) Write(b []byte) (int, error) {
	written := 0
	for written < len(b) {
		if w.out.Available() == 0 {
			if err := w.out.Flush(); err != nil {
				return written, err //nolint:wrapcheck // the caller names the file
			}
		}
		part := b[written:min(len(b), written+w.out.Available())]
		n, err := w.out.Write(part)
		w.bytes += uint64(n) //nolint:gosec // a count
		w.checksum = crc32.Update(w.checksum, castagnoli, part[:n])
		written += n
		if err != nil {
			return written, err //nolint:wrapcheck // the caller names the file
		}
	}
	return written, nil
}

// Receiver takes in the file of a snapshot from a peer. It is used by one goroutine.
type Receiver struct {
	store     *Store
	position  Position
	temporary string
	file      vfs.File
	bytes     int64
}

// Receive begins to take in a snapshot.
func (s *Store) Receive(p Position) (*Receiver, error) { return s.begin(p) }

func (s *Store) begin(p Position) (*Receiver, error) {
	path := fmt.Sprintf("%s.%d%s", s.Path(p), s.writes.Add(1), temporarySuffix)
	f, err := s.fs.Create(path, category)
	if err != nil {
		return nil, fmt.Errorf("create %s: %w", path, err)
	}
	f = vfs.NewSyncingFile(f, vfs.SyncingFileOptions{BytesPerSync: bytesPerSync})
	return &Receiver{store: s, position: p, temporary: path, file: f}, nil
}

// Write appends a part of the file. It may change b.
func (r *Receiver) Write(b []byte) (int, error) {
	n, err := r.file.Write(b)
	r.bytes += int64(n)
	if err != nil {
		return n, fmt.Errorf("write %s: %w", r.temporary, err)
	}
	return n, nil
}

// Commit checks the whole file and gives it its name. It returns the bytes of the file. An error wraps
// ErrCorrupt if what came is not what the peer wrote.
func (r *Receiver) Commit() (int64, error) {
	if err := r.store.verify(r.temporary, r.position); err != nil {
		return 0, errors.Join(err, r.Abort())
	}
	return r.bytes, r.publish()
}

// Abort removes what was written.
func (r *Receiver) Abort() error {
	if err := errors.Join(r.file.Close(), r.store.fs.Remove(r.temporary)); err != nil {
		return fmt.Errorf("remove %s: %w", r.temporary, err)
	}
	return nil
}

// publish makes the file durable under its name.
func (r *Receiver) publish() error {
	if err := r.file.Sync(); err != nil {
		return errors.Join(fmt.Errorf("sync %s: %w", r.temporary, err), r.Abort())
	}
	if err := r.file.Close(); err != nil {
		return fmt.Errorf("close %s: %w", r.temporary, err)
	}
	path := r.store.Path(r.position)
	if err := r.store.fs.Rename(r.temporary, path); err != nil {
		return fmt.Errorf("rename %s to %s: %w", r.temporary, path, err)
	}
	return syncDir(r.store.fs, r.store.dir)
}
