// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kolocate/kolocate/api/client"
	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// keepInFlight runs b.N commands with so many under way.
func keepInFlight(b *testing.B, c *client.Client, inFlight int, command func(i int) *kvv1.Command) {
	b.Helper()
	slots := make(chan struct{}, inFlight)
	var failed sync.Once
	b.ResetTimer()
	began, before := time.Now(), processorTime(b)
	for i := range b.N {
		slots <- struct{}{}
		c.DoAsync(context.Background(), command(i), func(_ *kvv1.Reply, err error) {
			if err != nil {
				failed.Do(func() { b.Error(err) })
			}
			<-slots
		})
	}
	for range inFlight {
		slots <- struct{}{}
	}
	b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "commands/s")
	// Of clients and shards together: what it would be with the processors to itself.
	b.ReportMetric(float64((processorTime(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/command")
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func putCmd(k []byte, value []byte) *kvv1.Command {
	return &kvv1.Command{Keys: [][]byte{k}, ThenOps: []*kvv1.Op{{Kind: kvv1.OpKind_OP_KIND_PUT, Value: value}}}
}

func BenchmarkPuts(b *testing.B) {
	oracle := newStandIn(b, 1)
	startShards(b, oracle, 1, 1, nil)
	c := dialSDK(b, oracle, nil)
	value := make([]byte, 100)
	keepInFlight(b, c, 2000, func(i int) *kvv1.Command { return putCmd(key("user/%d", i%100000), value) })
}

func BenchmarkGets(b *testing.B) {
	oracle := newStandIn(b, 1)
	startShards(b, oracle, 1, 1, nil)
	c := dialSDK(b, oracle, nil)
	for i := range 1000 {
		if _, err := c.Put(b.Context(), key("user/%d", i), make([]byte, 100)); err != nil {
			b.Fatal(err)
		}
	}
	keepInFlight(b, c, 2000, func(i int) *kvv1.Command {
		return &kvv1.Command{Keys: [][]byte{key("user/%d", i%1000)}, ThenOps: []*kvv1.Op{{Kind: kvv1.OpKind_OP_KIND_GET}}}
	})
}

// Two keys in two of four shards, written together.
func BenchmarkMultiShardWrites(b *testing.B) {
	oracle := newStandIn(b, 4)
	startShards(b, oracle, 4, 1, nil)
	c := dialSDK(b, oracle, nil)
	byShard := map[keyspace.ShardID][][]byte{}
	for i := range 4000 {
		shard := oracle.shardOf(keyspace.Vertex(key("user/%d", i)))
		byShard[shard] = append(byShard[shard], key("user/%d", i))
	}
	keepInFlight(b, c, 200, func(i int) *kvv1.Command {
		from, to := keyspace.ShardID(i%4+1), keyspace.ShardID((i+1+i/4%3)%4+1)
		return &kvv1.Command{
			Keys:    [][]byte{byShard[from][i*7%900], byShard[to][i*11%900]},
			ThenOps: []*kvv1.Op{{Key: 0, Kind: kvv1.OpKind_OP_KIND_INCREMENT, Delta: -1}, {Key: 1, Kind: kvv1.OpKind_OP_KIND_INCREMENT, Delta: 1}},
		}
	})
}

// A post of the social network: 44 keys written together, over four shards.
func BenchmarkPosts(b *testing.B) {
	oracle := newStandIn(b, 4)
	startShards(b, oracle, 4, 1, nil)
	c := dialSDK(b, oracle, nil)
	value := make([]byte, 120)
	keepInFlight(b, c, 32, func(i int) *kvv1.Command {
		cmd := &kvv1.Command{}
		for k := range 44 {
			cmd.Keys = append(cmd.Keys, key("{u%d}t/%d", (i*7919+k*104729)%4000, i%10))
			cmd.ThenOps = append(cmd.ThenOps, &kvv1.Op{Key: uint32(k), Kind: kvv1.OpKind_OP_KIND_PUT, Value: value})
		}
		return cmd
	})
}
