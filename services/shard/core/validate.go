// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// CommandError says why no shard will ever run a command. It wraps
// *keyspace.KeyError or *keyspace.ValueError where one of those is the cause.
type CommandError struct {
	// Problem says what is wrong and what was expected.
	Problem string
	cause   error
}

func (e *CommandError) Error() string { return "check a command: " + e.Problem }

// Unwrap returns the limit that was broken, if it is one of package keyspace.
func (e *CommandError) Unwrap() error { return e.cause }

func malformed(format string, args ...any) error {
	return &CommandError{Problem: fmt.Sprintf(format, args...)}
}

func overLimit(what string, number int, cause error) error {
	return &CommandError{Problem: fmt.Sprintf("%s %d: %v", what, number, cause), cause: cause}
}

// Validate returns a *CommandError for a command that no shard will ever run: it
// is malformed or over a limit. Serve and the SDK call it before they send or
// propose anything; the core calls it again, and answers REJECTED.
func Validate(cmd *kvv1.Command) error {
	if cmd == nil || len(cmd.Keys) == 0 {
		return malformed("it declares no key; declare every key that a compare or an op names")
	}
	if len(cmd.Keys) > keyspace.MaxCommandKeys {
		return malformed("it declares %d keys, at most %d are allowed; split it", len(cmd.Keys), keyspace.MaxCommandKeys)
	}
	if cmd.Id != nil && (cmd.Id.Client == 0 || cmd.Id.Sequence == 0) {
		return malformed("its id has client %d and sequence %d; both count from 1", cmd.Id.Client, cmd.Id.Sequence)
	}
	ranged := isRangeScan(cmd)
	size := 0
	for i, key := range cmd.Keys {
		size += len(key)
		if ranged && len(key) == 0 {
			continue
		}
		if err := keyspace.CheckKey(key); err != nil {
			return overLimit("key", i, err)
		}
	}
	for i, compare := range cmd.Compares {
		if err := checkCompare(i, compare, len(cmd.Keys)); err != nil {
			return err
		}
		size += len(compare.Value)
	}
	for _, ops := range [2][]*kvv1.Op{cmd.ThenOps, cmd.ElseOps} {
		for i, op := range ops {
			if err := checkOp(i, op, len(cmd.Keys)); err != nil {
				return err
			}
			if op.Kind == kvv1.OpKind_OP_KIND_SCAN_RANGE && !ranged {
				return malformed("op %d scans all shards; such a scan must be the only op, with one key and no compare", i)
			}
			size += len(op.Value)
		}
	}
	if len(cmd.ThenOps)+len(cmd.ElseOps) == 0 {
		return malformed("it has no op; give at least one")
	}
	if size > keyspace.MaxCommandBytes {
		return malformed("its keys and values are %d bytes, at most %d are allowed; split it", size, keyspace.MaxCommandBytes)
	}
	return nil
}

func checkCompare(i int, compare *kvv1.Compare, keys int) error {
	if compare == nil || int64(compare.Key) >= int64(keys) {
		return malformed("compare %d names key %d, but %d are declared; declare the key", i, compare.GetKey(), keys)
	}
	if compare.Kind <= kvv1.CompareKind_COMPARE_KIND_UNSPECIFIED || compare.Kind > kvv1.CompareKind_COMPARE_KIND_VERSION_EQUAL {
		return malformed("compare %d has the unknown kind %d", i, compare.Kind)
	}
	if err := keyspace.CheckValue(compare.Value); err != nil {
		return overLimit("compare", i, err)
	}
	return nil
}

func checkOp(i int, op *kvv1.Op, keys int) error {
	if op == nil || int64(op.Key) >= int64(keys) {
		return malformed("op %d names key %d, but %d are declared; declare the key", i, op.GetKey(), keys)
	}
	if op.Kind <= kvv1.OpKind_OP_KIND_UNSPECIFIED || op.Kind > kvv1.OpKind_OP_KIND_SCAN_RANGE {
		return malformed("op %d has the unknown kind %d", i, op.Kind)
	}
	if op.Limit > keyspace.MaxScanEntries {
		return malformed("op %d has a scan limit of %d, at most %d is allowed", i, op.Limit, keyspace.MaxScanEntries)
	}
	if len(op.End) > keyspace.MaxKeyBytes+1 {
		return malformed("op %d has a scan end of %d bytes, longer than any key", i, len(op.End))
	}
	if err := keyspace.CheckValue(op.Value); err != nil {
		return overLimit("op", i, err)
	}
	return nil
}

// isRangeScan says that a command is a scan over all shards. Validate makes sure
// that such a scan is a command's only op.
func isRangeScan(cmd *kvv1.Command) bool {
	return len(cmd.ThenOps) == 1 && cmd.ThenOps[0].GetKind() == kvv1.OpKind_OP_KIND_SCAN_RANGE &&
		len(cmd.Keys) == 1 && len(cmd.Compares) == 0 && len(cmd.ElseOps) == 0
}

// PureRead says that a command can't write, whichever branch runs.
func PureRead(cmd *kvv1.Command) bool {
	return readsOnly(cmd.GetThenOps()) && readsOnly(cmd.GetElseOps())
}

func readsOnly(ops []*kvv1.Op) bool {
	for _, op := range ops {
		switch op.Kind {
		case kvv1.OpKind_OP_KIND_PUT, kvv1.OpKind_OP_KIND_DELETE, kvv1.OpKind_OP_KIND_INCREMENT:
			return false
		}
	}
	return true
}

// Vertices returns the distinct vertices of a command's keys, in the order of
// their first key. A scan over all shards has none.
func Vertices(cmd *kvv1.Command) []keyspace.Vertex {
	if isRangeScan(cmd) {
		return nil
	}
	return appendVertices(nil, cmd.GetKeys(), nil)
}

// fewVertices is the number of vertices up to which a linear search for
// duplicates beats a map.
const fewVertices = 16

// appendVertices appends the distinct vertices of keys, or of those that indexes
// names if it is not nil, to the empty vertices.
func appendVertices(vertices []keyspace.Vertex, keys [][]byte, indexes []uint32) []keyspace.Vertex {
	n := len(keys)
	if indexes != nil {
		n = len(indexes)
	}
	var seen map[keyspace.Vertex]struct{}
	for i := range n {
		at := i
		if indexes != nil {
			at = int(indexes[i])
		}
		v := keyspace.VertexOf(text(keys[at]))
		if n > fewVertices {
			if seen == nil {
				seen = make(map[keyspace.Vertex]struct{}, n)
			}
			if _, dup := seen[v]; dup {
				continue
			}
			seen[v] = struct{}{}
		} else if hasVertex(vertices, v) {
			continue
		}
		vertices = append(vertices, v)
	}
	return vertices
}

func hasVertex(vertices []keyspace.Vertex, v keyspace.Vertex) bool {
	for _, w := range vertices {
		if w == v {
			return true
		}
	}
	return false
}
