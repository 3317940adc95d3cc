// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"encoding/binary"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/kolocate/kolocate/services/keyspace"
)

// encoder appends values to a buffer. Its output depends on nothing but them.
type encoder struct {
	buffer []byte
	err    error
}

func (e *encoder) number(n uint64) { e.buffer = binary.AppendUvarint(e.buffer, n) }

func (e *encoder) signed(n int64) { e.buffer = binary.AppendVarint(e.buffer, n) }

func (e *encoder) flag(b bool) {
	if b {
		e.number(1)
	} else {
		e.number(0)
	}
}

func (e *encoder) text(s string) {
	e.number(uint64(len(s)))
	e.buffer = append(e.buffer, s...)
}

func (e *encoder) message(m proto.Message) {
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil && e.err == nil {
		e.err = fmt.Errorf("encode a %T of the state: %w", m, err)
	}
	e.text(text(encoded))
}

// errShort says that a snapshot ends in the middle of a value.
var errShort = errors.New("it ends in the middle of a value")

// decoder reads what an encoder wrote. After the first error it reads zeroes.
type decoder struct {
	buffer []byte
	err    error
}

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
	d.buffer = nil
}

func (d *decoder) number() uint64 {
	n, size := binary.Uvarint(d.buffer)
	if size <= 0 {
		d.fail(errShort)
		return 0
	}
	d.buffer = d.buffer[size:]
	return n
}

func (d *decoder) signed() int64 {
	n, size := binary.Varint(d.buffer)
	if size <= 0 {
		d.fail(errShort)
		return 0
	}
	d.buffer = d.buffer[size:]
	return n
}

func (d *decoder) flag() bool { return d.number() == 1 }

// count reads the length of a list whose elements take at least a byte each.
func (d *decoder) count() int {
	n := d.number()
	if n > uint64(len(d.buffer)) {
		d.fail(errShort)
		return 0
	}
	return int(n) //nolint:gosec // at most the buffer's length
}

// text returns a copy, so that the state does not keep whole buffers.
func (d *decoder) text() string {
	n := d.count()
	s := string(d.buffer[:n])
	d.buffer = d.buffer[n:]
	return s
}

func (d *decoder) bytes() []byte {
	n := d.count()
	b := append([]byte(nil), d.buffer[:n]...)
	d.buffer = d.buffer[n:]
	return b
}

func (d *decoder) shard() keyspace.ShardID {
	n := d.number()
	if n > keyspace.MaxShards {
		d.fail(fmt.Errorf("it names shard %d", n))
	}
	return keyspace.ShardID(n) //nolint:gosec // checked above
}

func (d *decoder) slot() keyspace.Slot {
	n := d.number()
	if n >= keyspace.Slots {
		d.fail(fmt.Errorf("it names slot %d", n))
		return 0
	}
	return keyspace.Slot(n)
}

func (d *decoder) message(m proto.Message) {
	n := d.count()
	if err := proto.Unmarshal(d.buffer[:n], m); err != nil {
		d.fail(fmt.Errorf("a %T in it can't be read: %w", m, err))
		return
	}
	d.buffer = d.buffer[n:]
}
