// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
)

// Restore reads a snapshot. It refuses one of another store or shard, another
// format version, or with a wrong checksum, and says which.
func Restore(cfg Config, r io.Reader) (*Core, error) {
	c := New(cfg)
	if err := c.restore(bufio.NewReaderSize(r, 64<<10)); err != nil {
		return nil, fmt.Errorf("restore %v of store %q from a snapshot: %w", cfg.Shard, cfg.Store, err)
	}
	return c, nil
}

func (c *Core) restore(r *bufio.Reader) error {
	magic := make([]byte, len(snapshotMagic))
	if _, err := io.ReadFull(r, magic); err != nil || string(magic) != snapshotMagic {
		return errors.New("it does not begin like a shard's snapshot; give the file that a shard wrote")
	}
	expected := frameHead
	for {
		kind, payload, err := readFrame(r)
		if err != nil {
			return err
		}
		if kind < expected || expected <= frameWork && kind != expected {
			return fmt.Errorf("a frame of kind %d comes where %d was expected", kind, expected)
		}
		if kind == frameEnd {
			return nil
		}
		expected = kind
		if kind <= frameWork {
			expected++
		}
		d := &decoder{buffer: payload}
		c.restoreFrame(kind, d)
		if d.err != nil {
			return d.err
		}
	}
}

func readFrame(r io.Reader) (frameKind, []byte, error) {
	head := make([]byte, 5)
	if _, err := io.ReadFull(r, head); err != nil {
		return 0, nil, fmt.Errorf("it is cut short: %w", err)
	}
	size := binary.LittleEndian.Uint32(head[1:])
	if size > maxFrameBytes {
		return 0, nil, fmt.Errorf("a frame of it claims %d bytes; it is corrupt", size)
	}
	payload, err := readBounded(r, int(size)+4)
	if err != nil {
		return 0, nil, fmt.Errorf("it is cut short: %w", err)
	}
	payload, tail := payload[:size], payload[size:]
	sum := crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, payload)
	if sum != binary.LittleEndian.Uint32(tail) {
		return 0, nil, errors.New("a checksum in it is wrong; it is corrupt, fetch it from a peer")
	}
	return frameKind(head[0]), payload, nil
}

// readBounded reads n bytes without trusting n: a corrupt length can't make it
// allocate more than it finds.
func readBounded(r io.Reader, n int) ([]byte, error) {
	payload := make([]byte, 0, min(n, 1<<20))
	for len(payload) < n {
		step := min(n-len(payload), 1<<20)
		start := len(payload)
		payload = append(payload, make([]byte, step)...)
		if _, err := io.ReadFull(r, payload[start:]); err != nil {
			return nil, err
		}
	}
	return payload, nil
}

func (c *Core) restoreFrame(kind frameKind, d *decoder) {
	switch kind {
	case frameHead:
		c.decodeHead(d)
		return
	case frameOwnership:
		c.owner = decodeOwnership(d)
		return
	case frameWork:
		c.decodeWork(d)
		return
	}
	for len(d.buffer) > 0 && d.err == nil {
		switch kind {
		case frameKeys:
			key := d.text()
			c.keys.set(key, cell{value: d.bytes(), version: d.number()})
		case frameRecords:
			var p shardv1.Record
			d.message(&p)
			c.records.add(recordFromProto(&p))
		case frameMarks:
			client := d.number()
			c.records.marks.Set(client, mark{below: d.number(), time: d.signed()})
		case frameFinished:
			key := attemptKey{coordinator: d.shard()}
			key.number = d.number()
			c.finished.numbers.Set(key)
		case frameEnded:
			c.ended.Set(d.number(), struct{}{})
		default:
			d.fail(fmt.Errorf("it holds a frame of the unknown kind %d", kind))
		}
	}
}

func (c *Core) decodeHead(d *decoder) {
	if version := d.number(); version != snapshotVersion {
		d.fail(fmt.Errorf("its format version is %d, this program reads %d; run the version that wrote it", version, snapshotVersion))
		return
	}
	store, shard := d.text(), d.shard()
	if d.err == nil && (store != c.cfg.Store || shard != c.cfg.Shard) {
		d.fail(fmt.Errorf("it is of %v of store %q; give this shard its own data directory", shard, store))
		return
	}
	c.genesis = d.flag()
	c.index = d.number()
	c.now = d.signed()
	c.clock = d.number()
	c.epochKnown = d.number()
	c.lastAttempt = d.number()
	for range d.count() {
		id := d.shard()
		c.finished.below[id] = d.number()
	}
}
