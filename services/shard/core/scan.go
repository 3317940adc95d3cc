// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"slices"
	"strings"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

func scanLimit(op *kvv1.Op) int {
	if op.Limit == 0 {
		return keyspace.DefaultScanEntries
	}
	return int(op.Limit)
}

func scanStart(op *kvv1.Op, key string) string {
	if op.FromFirst {
		return ""
	}
	return key
}

func inRange(key, start, end string) bool {
	return key >= start && (end == "" || key < end)
}

func keyValue(key string, value []byte, version uint64) *kvv1.KeyValue {
	return &kvv1.KeyValue{Key: raw(key), Value: value, Version: version}
}

// scanVertex reads a range of the key's vertex, the command's own writes included.
func (x *execution) scanVertex(key string, op *kvv1.Op, out *kvv1.OpResult) refusal {
	v := keyspace.VertexOf(key)
	start, end, limit := scanStart(op, key), text(op.End), scanLimit(op)
	own := x.writesIn(v, start, end)
	take := func(key string, value []byte, version uint64) bool {
		if len(out.Entries) == limit || x.scanned+len(key)+len(value) > maxScanBytes && x.scanned > 0 {
			out.More = true
			return false
		}
		x.scanned += len(key) + len(value)
		out.Entries = append(out.Entries, keyValue(key, value, version))
		return true
	}
	// next merges the command's writes, ascending, into the base, ascending.
	next := func(key string, value []byte, version uint64) bool {
		for len(own) > 0 && own[0].key < key {
			w := own[0]
			own = own[1:]
			if w.found && !take(w.key, w.value, w.version) {
				return false
			}
		}
		if len(own) > 0 && own[0].key == key {
			return true // comes when the next greater key does, or at the end
		}
		return take(key, value, version)
	}
	if entries, isLent := x.lentEntries(v); isLent {
		if x.lent.cut {
			return refusal(fmt.Sprintf("scan of vertex %q in a command over several shards: it reads more than %d bytes; give a lower limit or a nearer end", v, maxScanBytes))
		}
		for _, e := range entries {
			if inRange(text(e.Key), start, end) && !next(text(e.Key), e.Value, e.Version) {
				return ""
			}
		}
	} else {
		more := true
		x.keys.ascendVertex(v, start, func(key string, c cell) bool {
			more = (end == "" || key < end) && next(key, c.value, c.version)
			return more
		})
		if out.More {
			return ""
		}
	}
	for _, w := range own {
		if w.found && !take(w.key, w.value, w.version) {
			break
		}
	}
	return ""
}

func (x *execution) lentEntries(v keyspace.Vertex) ([]*kvv1.KeyValue, bool) {
	if x.lent == nil {
		return nil, false
	}
	entries, ok := x.lent.scanned[v]
	return entries, ok
}

// writesIn returns the command's writes in a range of a vertex, ascending by key.
func (x *execution) writesIn(v keyspace.Vertex, start, end string) []write {
	var list []write
	for _, w := range x.writes {
		if inRange(w.key, start, end) && keyspace.VertexOf(w.key) == v {
			list = append(list, w)
		}
	}
	slices.SortFunc(list, func(a, b write) int { return strings.Compare(a.key, b.key) })
	return list
}

// scanForLending returns what the vertex scans of a command, over those of its
// keys that are named by mine, may read here. A scan that follows deletes of the
// same command passes over at most as many entries as it declares keys, so that
// many more are lent. cut says that the entries together passed maxBytes.
func (k *keys) scanForLending(cmd *kvv1.Command, mine []uint32, maxBytes int) (entries []*kvv1.KeyValue, cut bool) {
	size := 0
	seen := map[string]struct{}{}
	for _, ops := range [2][]*kvv1.Op{cmd.ThenOps, cmd.ElseOps} {
		for _, op := range ops {
			if op.Kind != kvv1.OpKind_OP_KIND_SCAN_VERTEX || !slices.Contains(mine, op.Key) {
				continue
			}
			key := text(cmd.Keys[op.Key])
			left := scanLimit(op) + len(cmd.Keys) + 1
			k.ascendVertex(keyspace.VertexOf(key), scanStart(op, key), func(key string, c cell) bool {
				if left == 0 || !inRange(key, "", text(op.End)) {
					return false
				}
				left--
				if _, dup := seen[key]; dup {
					return true
				}
				if size += len(key) + len(c.value); size > maxBytes {
					cut = true
					return false
				}
				seen[key] = struct{}{}
				entries = append(entries, keyValue(key, c.value, c.version))
				return true
			})
		}
	}
	return entries, cut
}

// scanRange reads keys in [start, end) that owned accepts, at most limit entries
// and about maxBytes, and says whether there are more.
func (k *keys) scanRange(start, end string, limit, maxBytes int, owned func(key string) bool) (entries []*kvv1.KeyValue, more bool) {
	size := 0
	k.cells.Ascend(start, func(key string, c cell) bool {
		if end != "" && key >= end {
			return false
		}
		if owned != nil && !owned(key) {
			return true
		}
		if len(entries) == limit || size > 0 && size+len(key)+len(c.value) > maxBytes {
			more = true
			return false
		}
		size += len(key) + len(c.value)
		entries = append(entries, keyValue(key, c.value, c.version))
		return true
	})
	return entries, more
}

// part is what one shard read of a range.
type part struct {
	entries []*kvv1.KeyValue
	more    bool
}

// mergeParts merges what the shards read of a range. A shard that had more may
// hold keys just beyond its last one, so nothing beyond that is known in full.
func mergeParts(parts []part, limit int) *kvv1.Result {
	var all []*kvv1.KeyValue
	bounded, bound := false, ""
	for _, p := range parts {
		all = append(all, p.entries...)
		if !p.more {
			continue
		}
		last := ""
		if n := len(p.entries); n > 0 {
			last = text(p.entries[n-1].Key)
		}
		if !bounded || last < bound {
			bounded, bound = true, last
		}
	}
	slices.SortFunc(all, func(a, b *kvv1.KeyValue) int { return strings.Compare(text(a.Key), text(b.Key)) })
	result := newResult(1)
	result.Succeeded = true
	out := result.Ops[0]
	out.More = bounded
	for _, e := range all {
		if bounded && text(e.Key) > bound || len(out.Entries) == limit {
			out.More = true
			break
		}
		out.Entries = append(out.Entries, e)
	}
	return result
}

func sortEntries(entries []*kvv1.KeyValue) {
	slices.SortFunc(entries, func(a, b *kvv1.KeyValue) int { return strings.Compare(text(a.Key), text(b.Key)) })
}
