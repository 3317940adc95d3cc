// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"context"
	"fmt"
	"iter"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// Entry is one key that a scan found.
type Entry struct {
	Key, Value []byte
	Version    uint64
}

func entriesOf(entries []*kvv1.KeyValue) []Entry {
	if len(entries) == 0 {
		return nil
	}
	out := make([]Entry, len(entries))
	for i, e := range entries {
		out[i] = Entry{Key: e.GetKey(), Value: e.GetValue(), Version: e.GetVersion()}
	}
	return out
}

// ScanOptions bound a scan.
type ScanOptions struct {
	// Start is the first key, End the first that is not read any more; empty:
	// from the first, to the last.
	Start, End []byte
	// PageEntries is the number of keys read at a time, up to
	// keyspace.MaxScanEntries; 0: keyspace.DefaultScanEntries. Each page is
	// atomic; the pages together are not.
	PageEntries int
}

// Scan reads keys in byte order over all shards. The sequence ends after the
// first error, which stands beside an empty Entry. ctx bounds the whole scan;
// without a deadline Config.Timeout bounds each page.
func (c *Client) Scan(ctx context.Context, options ScanOptions) iter.Seq2[Entry, error] {
	op := &kvv1.Op{Kind: kvv1.OpKind_OP_KIND_SCAN_RANGE, End: options.End}
	return c.pages(withOp(ctx, "scan"), op, options.Start, options.PageEntries)
}

// ScanVertex reads keys of one vertex in byte order, as Scan does. Start and
// End, where they are given, must lie in the vertex.
func (c *Client) ScanVertex(ctx context.Context, vertex keyspace.Vertex, options ScanOptions) iter.Seq2[Entry, error] {
	for _, bound := range [][]byte{options.Start, options.End} {
		if len(bound) > 0 && keyspace.VertexOf(string(bound)) != vertex {
			err := &Error{Op: "scan vertex", Kind: Invalid, Key: bound, Cause: fmt.Errorf("key %.64q lies in vertex %.64q, expected one of vertex %.64q", bound, keyspace.VertexOf(string(bound)), vertex)}
			return func(yield func(Entry, error) bool) { yield(Entry{}, err) }
		}
	}
	op := &kvv1.Op{Kind: kvv1.OpKind_OP_KIND_SCAN_VERTEX, End: options.End}
	start := options.Start
	if len(start) == 0 {
		op.FromFirst = true
		start = keyOf(vertex)
	}
	return c.pages(withOp(ctx, "scan vertex"), op, start, options.PageEntries)
}

// keyOf returns a key that lies in the vertex.
func keyOf(v keyspace.Vertex) []byte {
	if keyspace.VertexOf(string(v)) == v {
		return []byte(v)
	}
	return []byte("{" + string(v) + "}")
}

func (c *Client) pages(ctx context.Context, op *kvv1.Op, start []byte, limit int) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		if limit < 0 || limit > keyspace.MaxScanEntries {
			yield(Entry{}, &Error{Op: "scan", Kind: Invalid, Key: start, Cause: fmt.Errorf("a page of %d entries was asked for, expected 0 to %d", limit, keyspace.MaxScanEntries)})
			return
		}
		from := cursor{key: start, fromFirst: op.GetFromFirst()}
		for {
			reply, err := c.Do(ctx, single(from.page(op, limit), from.key))
			if err != nil {
				yield(Entry{}, err)
				return
			}
			r := firstOp(reply.GetResult())
			entries := entriesOf(r.GetEntries())
			for _, e := range entries {
				if from.passed && bytes.Equal(e.Key, from.key) {
					continue
				}
				if !yield(e, nil) {
					return
				}
			}
			if !r.GetMore() || len(entries) == 0 {
				return
			}
			from = behind(entries[len(entries)-1].Key, op.GetKind())
		}
	}
}

// cursor says where the next page begins.
type cursor struct {
	key []byte
	// fromFirst: at the first key of the vertex. passed: key itself was read already.
	fromFirst, passed bool
}

// behind returns the cursor after a key. The next key in byte order is the key
// with a zero byte behind it; where that is too long for a key, or lies in
// another vertex, the page begins with the key itself once more.
func behind(last []byte, kind kvv1.OpKind) cursor {
	next := append(bytes.Clone(last), 0)
	vertexScan := kind == kvv1.OpKind_OP_KIND_SCAN_VERTEX
	if len(next) > keyspace.MaxKeyBytes || vertexScan && keyspace.VertexOf(string(next)) != keyspace.VertexOf(string(last)) {
		return cursor{key: last, passed: true}
	}
	return cursor{key: next}
}

func (f cursor) page(op *kvv1.Op, limit int) *kvv1.Op {
	if f.passed && limit == 1 {
		limit = 2 // the key read already, and one more
	}
	return &kvv1.Op{Kind: op.GetKind(), End: op.GetEnd(), Limit: uint32(limit), FromFirst: f.fromFirst}
}
