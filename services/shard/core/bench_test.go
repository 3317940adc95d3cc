// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/tidwall/btree"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// The benchmarks compare the core with the bare B-tree it keeps keys in, at the
// same operations in the same random order.
const benchKeys = 100_000

func benchNames() [][]byte {
	r := rand.New(rand.NewPCG(1, 2))
	names := make([][]byte, benchKeys)
	for i, n := range r.Perm(benchKeys) {
		names[i] = fmt.Appendf(nil, "user/%08d", n)
	}
	return names
}

func benchCore(b *testing.B) (*Core, [][]byte) {
	b.Helper()
	c := New(Config{Store: "bench", Shard: 1})
	if _, err := c.Apply(1, &shardv1.Entry{Body: &shardv1.Entry_Genesis{Genesis: &shardv1.Genesis{
		Store: "bench", Shard: 1, Slots: []*shardv1.SlotRange{{First: 0, Last: keyspace.Slots - 1}},
	}}}); err != nil {
		b.Fatal(err)
	}
	names := benchNames()
	for i, name := range names {
		if _, err := c.Apply(uint64(i+2), entryOf(putCommand(name, i, 0))); err != nil {
			b.Fatal(err)
		}
	}
	return c, names
}

var benchValue = make([]byte, 100)

func putCommand(key []byte, i int, client uint64) *kvv1.Command {
	cmd := &kvv1.Command{Keys: [][]byte{key}, ThenOps: []*kvv1.Op{{Kind: kvv1.OpKind_OP_KIND_PUT, Value: benchValue}}}
	if client > 0 {
		sequence := uint64(i + 1)
		cmd.Id = &kvv1.CommandId{Client: client, Sequence: sequence, AcknowledgedBelow: max(sequence, 64) - 63}
	}
	return cmd
}

func entryOf(commands ...*kvv1.Command) *shardv1.Entry {
	list := make([]*shardv1.Submitted, len(commands))
	for i, cmd := range commands {
		list[i] = &shardv1.Submitted{Origin: uint64(i + 1), Command: cmd}
	}
	return &shardv1.Entry{Body: &shardv1.Entry_Commands{Commands: &shardv1.Commands{Commands: list}}}
}

const benchBatch = 64

func benchApply(b *testing.B, command func(key []byte, i int) *kvv1.Command) {
	c, names := benchCore(b)
	entries := make([]*shardv1.Entry, 0, b.N/benchBatch+1)
	for i := 0; i < b.N; i += benchBatch {
		var commands []*kvv1.Command
		for j := i; j < min(i+benchBatch, b.N); j++ {
			commands = append(commands, command(names[(j*7919)%benchKeys], j))
		}
		entries = append(entries, entryOf(commands...))
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i, e := range entries {
		if _, err := c.Apply(uint64(benchKeys+2+i), e); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkApplyPut(b *testing.B) {
	benchApply(b, func(key []byte, i int) *kvv1.Command { return putCommand(key, i, 0) })
}

// BenchmarkApplyPutOnce is BenchmarkApplyPut with the records of exactly-once,
// by 50 clients in turn, each of which has 64 commands under way.
func BenchmarkApplyPutOnce(b *testing.B) {
	benchApply(b, func(key []byte, i int) *kvv1.Command { return putCommand(key, i/50, uint64(1+i%50)) })
}

func BenchmarkApplyGet(b *testing.B) {
	benchApply(b, func(key []byte, _ int) *kvv1.Command {
		return &kvv1.Command{Keys: [][]byte{key}, ThenOps: []*kvv1.Op{{Kind: kvv1.OpKind_OP_KIND_GET}}}
	})
}

func BenchmarkRead(b *testing.B) {
	c, names := benchCore(b)
	cmd := &kvv1.Command{ThenOps: []*kvv1.Op{{Kind: kvv1.OpKind_OP_KIND_GET}}}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		cmd.Keys = names[(i*7919)%benchKeys:][:1]
		if _, ok := c.Read(cmd); !ok {
			b.Fatal("the read must go through the log")
		}
	}
}

func bareTree(names [][]byte) *btree.Map[string, cell] {
	tree := &btree.Map[string, cell]{}
	for _, name := range names {
		tree.Set(text(name), cell{value: benchValue})
	}
	return tree
}

func BenchmarkBareTreePut(b *testing.B) {
	names := benchNames()
	tree := bareTree(names)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		tree.Set(text(names[(i*7919)%benchKeys]), cell{value: benchValue, version: uint64(i)})
	}
}

func BenchmarkBareTreeGet(b *testing.B) {
	names := benchNames()
	tree := bareTree(names)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		if _, found := tree.Get(text(names[(i*7919)%benchKeys])); !found {
			b.Fatal("key not found")
		}
	}
}
