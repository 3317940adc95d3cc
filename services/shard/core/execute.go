// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"bytes"
	"fmt"
	"math"
	"strconv"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// maxScanBytes bounds what the scans of one command return together.
const maxScanBytes = keyspace.MaxCommandBytes

// keyState is what a key holds, or that it is absent.
type keyState struct {
	found   bool
	value   []byte
	version uint64
}

// write is a key's new state.
type write struct {
	key string
	keyState
}

// lent is what the other shards of a multi-shard command lend to it.
type lent struct {
	states map[string]keyState
	// scanned holds entries of lent vertices that the command's scans read.
	scanned map[keyspace.Vertex][]*kvv1.KeyValue
	// cut says that some source could not lend all that the scans ask for.
	cut bool
	// refused says why some source lent nothing.
	refused string
}

// execution runs one command on the shard's keys and on what others lent. It
// changes nothing: the writes are applied by whoever began it, so a refused
// command leaves no trace.
type execution struct {
	keys *keys
	lent *lent
	cmd  *kvv1.Command
	// version is given to all keys that the command writes.
	version uint64
	writes  []write
	few     [2]write // holds writes while there are few
	// written finds writes by key once there are many of them.
	written map[string]int
	scanned int // bytes returned by scans so far
}

// refusal ends a command by the state it met.
type refusal string

// run returns the command's result.
func (x *execution) run() *kvv1.Result {
	if x.lent != nil && x.lent.refused != "" {
		return &kvv1.Result{Refused: x.lent.refused}
	}
	ops := x.cmd.ThenOps
	succeeded := true
	for _, compare := range x.cmd.Compares {
		if !holds(compare, x.get(text(x.cmd.Keys[compare.Key]))) {
			succeeded = false
			ops = x.cmd.ElseOps
			break
		}
	}
	result := newResult(len(ops))
	result.Succeeded = succeeded
	for i, op := range ops {
		if why := x.runOp(op, result.Ops[i]); why != "" {
			x.writes = nil
			return &kvv1.Result{Refused: fmt.Sprintf("op %d: %s", i, why)}
		}
	}
	return result
}

// single saves the allocations of a result with one op.
type single struct {
	result kvv1.Result
	op     kvv1.OpResult
	ops    [1]*kvv1.OpResult
}

func newResult(ops int) *kvv1.Result {
	if ops == 1 {
		s := &single{}
		s.ops[0] = &s.op
		s.result.Ops = s.ops[:]
		return &s.result
	}
	list := make([]kvv1.OpResult, ops)
	result := &kvv1.Result{Ops: make([]*kvv1.OpResult, ops)}
	for i := range list {
		result.Ops[i] = &list[i]
	}
	return result
}

func (x *execution) runOp(op *kvv1.Op, out *kvv1.OpResult) refusal {
	key := text(x.cmd.Keys[op.Key])
	switch op.Kind {
	case kvv1.OpKind_OP_KIND_GET:
		state := x.get(key)
		out.Found, out.Value, out.Version = state.found, state.value, 0
		if state.found {
			out.Version = state.version
		}
	case kvv1.OpKind_OP_KIND_PUT:
		x.put(key, keyState{found: true, value: op.Value, version: x.version})
		out.Version = x.version
	case kvv1.OpKind_OP_KIND_DELETE:
		out.Found = x.get(key).found
		if out.Found {
			out.Version = x.version
			x.put(key, keyState{version: x.version})
		}
	case kvv1.OpKind_OP_KIND_INCREMENT:
		return x.increment(key, op.Delta, out)
	case kvv1.OpKind_OP_KIND_SCAN_VERTEX:
		return x.scanVertex(key, op, out)
	}
	return ""
}

func (x *execution) increment(key string, delta int64, out *kvv1.OpResult) refusal {
	number := int64(0)
	if state := x.get(key); state.found {
		parsed, err := strconv.ParseInt(text(state.value), 10, 64)
		if err != nil {
			return refusal(fmt.Sprintf("increment of key %q: its value is no decimal integer of 64 bits; write one first", key))
		}
		number = parsed
	}
	if delta > 0 && number > math.MaxInt64-delta || delta < 0 && number < math.MinInt64-delta {
		return refusal(fmt.Sprintf("increment of key %q: %d plus %d is outside 64 bits", key, number, delta))
	}
	number += delta
	x.put(key, keyState{found: true, value: strconv.AppendInt(nil, number, 10), version: x.version})
	out.Found, out.Number, out.Version = true, number, x.version
	return ""
}

// get returns a key's state as the command sees it: its own writes come first.
func (x *execution) get(key string) keyState {
	if i := x.find(key); i >= 0 {
		return x.writes[i].keyState
	}
	if x.lent != nil {
		if state, ok := x.lent.states[key]; ok {
			return state
		}
	}
	c, found := x.keys.get(key)
	return keyState{found: found, value: c.value, version: c.version}
}

// fewWrites is the number of writes up to which a linear search beats a map.
const fewWrites = 8

func (x *execution) find(key string) int {
	if x.written != nil {
		if i, ok := x.written[key]; ok {
			return i
		}
		return -1
	}
	for i := range x.writes {
		if x.writes[i].key == key {
			return i
		}
	}
	return -1
}

func (x *execution) put(key string, state keyState) {
	if i := x.find(key); i >= 0 {
		x.writes[i].keyState = state
		return
	}
	x.writes = append(x.writes, write{key: key, keyState: state})
	if x.written != nil {
		x.written[key] = len(x.writes) - 1
	} else if len(x.writes) > fewWrites {
		x.written = make(map[string]int, 2*len(x.writes))
		for i := range x.writes {
			x.written[x.writes[i].key] = i
		}
	}
}

func holds(compare *kvv1.Compare, state keyState) bool {
	switch compare.Kind {
	case kvv1.CompareKind_COMPARE_KIND_EXISTS:
		return state.found
	case kvv1.CompareKind_COMPARE_KIND_ABSENT:
		return !state.found
	case kvv1.CompareKind_COMPARE_KIND_VALUE_EQUAL:
		return state.found && bytes.Equal(state.value, compare.Value)
	case kvv1.CompareKind_COMPARE_KIND_VALUE_NOT_EQUAL:
		return !state.found || !bytes.Equal(state.value, compare.Value)
	case kvv1.CompareKind_COMPARE_KIND_VALUE_LESS:
		return state.found && bytes.Compare(state.value, compare.Value) < 0
	case kvv1.CompareKind_COMPARE_KIND_VALUE_GREATER:
		return state.found && bytes.Compare(state.value, compare.Value) > 0
	case kvv1.CompareKind_COMPARE_KIND_VERSION_EQUAL:
		// An absent key has version 0.
		return !state.found && compare.Version == 0 || state.found && state.version == compare.Version
	}
	return false
}
