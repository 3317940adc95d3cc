// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"fmt"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
)

// Txn builds one atomic command over declared keys: if all conditions hold, the
// operations given to Then run, else those given to Else. One goroutine builds it.
type Txn struct {
	client  *Client
	command *kvv1.Command
	index   map[string]uint32
	err     error
}

// Condition is one comparison of a Txn.
type Condition struct {
	key     []byte
	compare *kvv1.Compare
}

// Operation is one operation of a Txn.
type Operation struct {
	key []byte
	op  *kvv1.Op
}

// TxnResult is what a Txn did.
type TxnResult struct {
	// Succeeded: all conditions held, so the operations of Then ran.
	Succeeded bool
	// Results has one entry for each operation that ran, in order.
	Results []OperationResult
	// MultiShard: the command ran over several shards.
	MultiShard bool
}

// OperationResult is the result of one operation. Value is that of a get;
// Existed that of a delete; Number that of an increment; Entries those of a scan.
type OperationResult struct {
	Value   Value
	Existed bool
	Number  int64
	Entries []Entry
	// More: a scan was cut by its limit.
	More bool
}

// Txn starts a command that may touch these keys and no others.
func (c *Client) Txn(keys ...[]byte) *Txn {
	t := &Txn{client: c, command: &kvv1.Command{}, index: make(map[string]uint32, len(keys))}
	for _, key := range keys {
		if _, ok := t.index[string(key)]; !ok {
			t.index[string(key)] = uint32(len(t.command.Keys)) //nolint:gosec // commands of more than MaxCommandKeys are refused
			t.command.Keys = append(t.command.Keys, key)
		}
	}
	return t
}

// If adds conditions.
func (t *Txn) If(conditions ...Condition) *Txn {
	for _, c := range conditions {
		if at, ok := t.declared(c.key); ok {
			c.compare.Key = at
			t.command.Compares = append(t.command.Compares, c.compare)
		}
	}
	return t
}

// Then adds operations that run when all conditions hold, or when there are none.
func (t *Txn) Then(operations ...Operation) *Txn {
	t.command.ThenOps = t.add(t.command.ThenOps, operations)
	return t
}

// Else adds operations that run when a condition does not hold.
func (t *Txn) Else(operations ...Operation) *Txn {
	t.command.ElseOps = t.add(t.command.ElseOps, operations)
	return t
}

func (t *Txn) add(ops []*kvv1.Op, operations []Operation) []*kvv1.Op {
	for _, o := range operations {
		if at, ok := t.declared(o.key); ok {
			o.op.Key = at
			ops = append(ops, o.op)
		}
	}
	return ops
}

func (t *Txn) declared(key []byte) (uint32, bool) {
	at, ok := t.index[string(key)]
	if !ok && t.err == nil {
		t.err = &Error{Op: "txn", Kind: Invalid, Key: key, Cause: fmt.Errorf("key %.64q is not declared: give every key of the command to Txn", key)}
	}
	return at, ok
}

// Command returns the command that was built, or an error of kind Invalid that
// names the first undeclared key.
func (t *Txn) Command() (*kvv1.Command, error) {
	if t.err != nil {
		return nil, t.err
	}
	return t.command, nil
}

// Commit runs the command. Nothing is sent if a key was not declared.
func (t *Txn) Commit(ctx context.Context) (TxnResult, error) {
	if t.err != nil {
		return TxnResult{}, t.err
	}
	reply, err := t.client.Do(withOp(ctx, "txn"), t.command)
	if err != nil {
		return TxnResult{}, err
	}
	out := TxnResult{Succeeded: reply.GetResult().GetSucceeded(), MultiShard: reply.GetMultiShard()}
	for _, r := range reply.GetResult().GetOps() {
		out.Results = append(out.Results, OperationResult{
			Value: valueOf(r), Existed: r.GetFound(), Number: r.GetNumber(), Entries: entriesOf(r.GetEntries()), More: r.GetMore(),
		})
	}
	return out, nil
}

func condition(key []byte, kind kvv1.CompareKind, value []byte, version uint64) Condition {
	return Condition{key: key, compare: &kvv1.Compare{Kind: kind, Value: value, Version: version}}
}

// Exists holds when the key has a value.
func Exists(key []byte) Condition {
	return condition(key, kvv1.CompareKind_COMPARE_KIND_EXISTS, nil, 0)
}

// Absent holds when the key has no value.
func Absent(key []byte) Condition {
	return condition(key, kvv1.CompareKind_COMPARE_KIND_ABSENT, nil, 0)
}

// ValueEqual holds when the key has this value.
func ValueEqual(key, value []byte) Condition {
	return condition(key, kvv1.CompareKind_COMPARE_KIND_VALUE_EQUAL, value, 0)
}

// ValueNotEqual holds when the key has not this value.
func ValueNotEqual(key, value []byte) Condition {
	return condition(key, kvv1.CompareKind_COMPARE_KIND_VALUE_NOT_EQUAL, value, 0)
}

// ValueLess holds when the key's value is below this one in byte order.
func ValueLess(key, value []byte) Condition {
	return condition(key, kvv1.CompareKind_COMPARE_KIND_VALUE_LESS, value, 0)
}

// ValueGreater holds when the key's value is above this one in byte order.
func ValueGreater(key, value []byte) Condition {
	return condition(key, kvv1.CompareKind_COMPARE_KIND_VALUE_GREATER, value, 0)
}

// VersionEqual holds when the key was last written with this version.
func VersionEqual(key []byte, version uint64) Condition {
	return condition(key, kvv1.CompareKind_COMPARE_KIND_VERSION_EQUAL, nil, version)
}

// Get reads a key in a Txn.
func Get(key []byte) Operation {
	return Operation{key: key, op: &kvv1.Op{Kind: kvv1.OpKind_OP_KIND_GET}}
}

// Put writes a key in a Txn.
func Put(key, value []byte) Operation {
	return Operation{key: key, op: &kvv1.Op{Kind: kvv1.OpKind_OP_KIND_PUT, Value: value}}
}

// Delete removes a key in a Txn.
func Delete(key []byte) Operation {
	return Operation{key: key, op: &kvv1.Op{Kind: kvv1.OpKind_OP_KIND_DELETE}}
}

// Increment adds to the decimal integer in a key in a Txn.
func Increment(key []byte, delta int64) Operation {
	return Operation{key: key, op: &kvv1.Op{Kind: kvv1.OpKind_OP_KIND_INCREMENT, Delta: delta}}
}
