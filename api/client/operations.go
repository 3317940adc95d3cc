// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// Value is what a key holds.
type Value struct {
	// Found is false when the key is absent; the other fields are then zero.
	Found bool
	Data  []byte
	// Version grows with each write of the key, over handoffs too.
	Version uint64
}

func single(op *kvv1.Op, key []byte) *kvv1.Command {
	return &kvv1.Command{Keys: [][]byte{key}, ThenOps: []*kvv1.Op{op}}
}

func (c *Client) one(ctx context.Context, op string, command *kvv1.Command) (*kvv1.Result, error) {
	reply, err := c.Do(withOp(ctx, op), command)
	if err != nil {
		return nil, err
	}
	return reply.GetResult(), nil
}

func firstOp(r *kvv1.Result) *kvv1.OpResult {
	if ops := r.GetOps(); len(ops) > 0 {
		return ops[0]
	}
	return nil
}

// Get reads a key.
func (c *Client) Get(ctx context.Context, key []byte) (Value, error) {
	r, err := c.one(ctx, "get", single(&kvv1.Op{Kind: kvv1.OpKind_OP_KIND_GET}, key))
	return valueOf(firstOp(r)), err
}

func valueOf(r *kvv1.OpResult) Value {
	return Value{Found: r.GetFound(), Data: r.GetValue(), Version: r.GetVersion()}
}

// Put writes a key and returns its new version.
func (c *Client) Put(ctx context.Context, key, value []byte) (version uint64, err error) {
	r, err := c.one(ctx, "put", single(&kvv1.Op{Kind: kvv1.OpKind_OP_KIND_PUT, Value: value}, key))
	return firstOp(r).GetVersion(), err
}

// Delete removes a key and says whether it was there.
func (c *Client) Delete(ctx context.Context, key []byte) (existed bool, err error) {
	r, err := c.one(ctx, "delete", single(&kvv1.Op{Kind: kvv1.OpKind_OP_KIND_DELETE}, key))
	return firstOp(r).GetFound(), err
}

// Increment adds delta to the decimal integer in a key, an absent key counting
// as 0, and returns the sum. A value that is no integer, or a sum that does not
// fit 64 bits, is an error of kind Refused.
func (c *Client) Increment(ctx context.Context, key []byte, delta int64) (int64, error) {
	r, err := c.one(ctx, "increment", single(&kvv1.Op{Kind: kvv1.OpKind_OP_KIND_INCREMENT, Delta: delta}, key))
	return firstOp(r).GetNumber(), err
}

// CompareAndSwap writes value if the key holds expected, or, with a nil
// expected, if the key is absent. When it did not swap it returns what it met.
func (c *Client) CompareAndSwap(ctx context.Context, key, expected, value []byte) (swapped bool, current Value, err error) {
	compare := &kvv1.Compare{Kind: kvv1.CompareKind_COMPARE_KIND_VALUE_EQUAL, Value: expected}
	if expected == nil {
		compare = &kvv1.Compare{Kind: kvv1.CompareKind_COMPARE_KIND_ABSENT}
	}
	r, err := c.one(ctx, "compare and swap", &kvv1.Command{
		Keys:     [][]byte{key},
		Compares: []*kvv1.Compare{compare},
		ThenOps:  []*kvv1.Op{{Kind: kvv1.OpKind_OP_KIND_PUT, Value: value}},
		ElseOps:  []*kvv1.Op{{Kind: kvv1.OpKind_OP_KIND_GET}},
	})
	switch {
	case err != nil:
		return false, Value{}, err
	case r.GetSucceeded():
		return true, Value{Found: true, Data: value, Version: firstOp(r).GetVersion()}, nil
	default:
		return false, valueOf(firstOp(r)), nil
	}
}

// checkCommand finds what no shard would run, before anything is sent.
func checkCommand(command *kvv1.Command) error {
	keys := command.GetKeys()
	if len(keys) == 0 || len(keys) > keyspace.MaxCommandKeys {
		return fmt.Errorf("the command declares %d keys, expected 1 to %d", len(keys), keyspace.MaxCommandKeys)
	}
	if len(command.GetThenOps())+len(command.GetElseOps()) == 0 {
		return errors.New("the command has no operation: give at least one")
	}
	size := 0
	ranged := len(command.GetThenOps()) == 1 && command.GetThenOps()[0].GetKind() == kvv1.OpKind_OP_KIND_SCAN_RANGE
	for _, key := range keys {
		size += len(key)
		if err := keyspace.CheckKey(key); err != nil && (!ranged || len(key) > 0) {
			return fmt.Errorf("key %.64q: %w", key, err)
		}
	}
	for _, compare := range command.GetCompares() {
		size += len(compare.GetValue())
		if err := checkOperand(keys, compare.GetKey(), compare.GetValue()); err != nil {
			return err
		}
	}
	for _, ops := range [2][]*kvv1.Op{command.GetThenOps(), command.GetElseOps()} {
		for _, op := range ops {
			size += len(op.GetValue())
			if err := checkOperand(keys, op.GetKey(), op.GetValue()); err != nil {
				return err
			}
		}
	}
	if size > keyspace.MaxCommandBytes {
		return fmt.Errorf("the command has %d bytes of keys and values, at most %d are allowed: split it", size, keyspace.MaxCommandBytes)
	}
	return nil
}

func checkOperand(keys [][]byte, key uint32, value []byte) error {
	if int64(key) >= int64(len(keys)) {
		return fmt.Errorf("an operation names key number %d, but only %d are declared", key, len(keys))
	}
	if err := keyspace.CheckValue(value); err != nil {
		return fmt.Errorf("key %.64q: %w", keys[key], err)
	}
	return nil
}
