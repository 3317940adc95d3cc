// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package graph

import (
	"errors"
	"fmt"
	"hash/crc32"

	"google.golang.org/protobuf/proto"

	planv1 "github.com/kolocate/kolocate/api/proto/plan/v1"
)

// Version of the formats of graph and plan that this program reads and writes.
const Version = 1

// ChunkBytes is the size in which snapshots and plans go over the wire, well
// below gRPC's usual bound of 4 MiB a message.
const ChunkBytes = 1 << 20

// MaxBytes bounds a snapshot or plan as a whole.
const MaxBytes = 1 << 30

// Named errors of reading a snapshot or a plan.
var (
	// ErrTorn says that data is incomplete or damaged.
	ErrTorn = errors.New("data is torn")
	// ErrVersion says that a newer program wrote it.
	ErrVersion = errors.New("unknown version")
	// ErrOtherStore says that it belongs to another store.
	ErrOtherStore = errors.New("belongs to another store")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Chunk is a part of an encoded snapshot or plan. Checksum is the CRC-32C of
// the whole and stands in the last chunk only.
type Chunk struct {
	Data     []byte
	Checksum uint32
	Last     bool
}

// Split cuts encoded data into chunks of at most size bytes (ChunkBytes if size
// is 0); there is always a last one. The chunks share data's memory.
func Split(data []byte, size int) []Chunk {
	if size <= 0 {
		size = ChunkBytes
	}
	sum := crc32.Checksum(data, castagnoli)
	var chunks []Chunk
	for len(data) > size {
		chunks = append(chunks, Chunk{Data: data[:size]})
		data = data[size:]
	}
	return append(chunks, Chunk{Data: data, Checksum: sum, Last: true})
}

// Joiner puts chunks together again. The zero value is ready. One goroutine owns it.
type Joiner struct {
	data []byte
	done bool
}

// Add takes the next chunk. After the last one it checks the whole and returns
// an error that is ErrTorn if the checksum does not fit, or if a chunk follows.
func (j *Joiner) Add(c Chunk) error {
	if j.done {
		return fmt.Errorf("join chunks: one follows the last: %w; fetch it again", ErrTorn)
	}
	if len(j.data)+len(c.Data) > MaxBytes {
		return fmt.Errorf("join chunks: more than %d bytes, which no snapshot or plan has", MaxBytes)
	}
	j.data = append(j.data, c.Data...)
	if !c.Last {
		return nil
	}
	j.done = true
	if sum := crc32.Checksum(j.data, castagnoli); sum != c.Checksum {
		return fmt.Errorf("join chunks: checksum of %d bytes is %08x, expected %08x: %w; fetch it again", len(j.data), sum, c.Checksum, ErrTorn)
	}
	return nil
}

// Bytes returns the whole. It returns an error that is ErrTorn before the last chunk.
func (j *Joiner) Bytes() ([]byte, error) {
	if !j.done {
		return nil, fmt.Errorf("join chunks: it ends after %d bytes without a last chunk: %w; fetch it again", len(j.data), ErrTorn)
	}
	return j.data, nil
}

// Encode returns the encoded snapshot; the same snapshot gives the same bytes.
func Encode(g *planv1.Graph) ([]byte, error) {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(g)
	if err != nil {
		return nil, fmt.Errorf("encode graph of store %q: %w", g.GetStore(), err)
	}
	return data, nil
}

// Decode reads what Encode wrote. store is the store it must belong to; empty
// takes any. Its errors are ErrTorn, ErrVersion or ErrOtherStore.
func Decode(data []byte, store string) (*planv1.Graph, error) {
	g := &planv1.Graph{}
	if err := proto.Unmarshal(data, g); err != nil {
		return nil, fmt.Errorf("decode graph of %d bytes: %w: %w", len(data), ErrTorn, err)
	}
	if err := check("graph", g.GetVersion(), g.GetStore(), store); err != nil {
		return nil, err
	}
	return g, nil
}

// EncodePlan is Encode for a plan.
func EncodePlan(p *planv1.Plan) ([]byte, error) {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encode plan of store %q: %w", p.GetStore(), err)
	}
	return data, nil
}

// DecodePlan is Decode for a plan.
func DecodePlan(data []byte, store string) (*planv1.Plan, error) {
	p := &planv1.Plan{}
	if err := proto.Unmarshal(data, p); err != nil {
		return nil, fmt.Errorf("decode plan of %d bytes: %w: %w", len(data), ErrTorn, err)
	}
	if err := check("plan", p.GetVersion(), p.GetStore(), store); err != nil {
		return nil, err
	}
	return p, nil
}

func check(what string, version uint32, store, expected string) error {
	switch {
	case version == 0:
		return fmt.Errorf("decode %s: it carries no version: %w; it is no %s, or was cut off", what, ErrTorn, what)
	case version > Version:
		return fmt.Errorf("decode %s: version %d, this program reads up to %d: %w; use the release that wrote it", what, version, Version, ErrVersion)
	case expected != "" && store != expected:
		return fmt.Errorf("decode %s: of store %q, expected %q: %w", what, store, expected, ErrOtherStore)
	}
	return nil
}
