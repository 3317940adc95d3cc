// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kolocate/kolocate/api/client"
	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// ledger is a load of transfers between accounts, single increments and reads,
// whose sums tell whether anything was lost or ran twice.
type ledger struct {
	client   *client.Client
	accounts int
	counted  atomic.Int64
	multi    atomic.Int64
	commands atomic.Int64
}

func (l *ledger) account(i int) []byte { return key("{account/%d}", i%l.accounts) }

func (l *ledger) run(ctx context.Context, t testing.TB, worker int) {
	for i := 0; ctx.Err() == nil; i++ {
		a, b := l.account(worker*7+i*3), l.account(worker*5+i*11+1)
		if bytes.Equal(a, b) {
			continue
		}
		switch i % 4 {
		case 0:
			if _, err := l.client.Increment(context.Background(), key("%s/count", a), 1); err != nil {
				t.Errorf("increment: %v", err)
				return
			}
			l.counted.Add(1)
		case 1:
			r, err := l.client.Txn(a, b).Then(client.Get(a), client.Get(b)).Commit(context.Background())
			if err != nil || len(r.Results) != 2 {
				t.Errorf("read: %v", err)
				return
			}
		default:
			r, err := l.client.Txn(a, b).Then(client.Increment(a, -1), client.Increment(b, 1)).Commit(context.Background())
			if err != nil {
				t.Errorf("transfer: %v", err)
				return
			}
			if r.MultiShard {
				l.multi.Add(1)
			}
		}
		l.commands.Add(1)
	}
}

func (l *ledger) check(t testing.TB) {
	t.Helper()
	sum, counted := int64(0), int64(0)
	var keys [][]byte
	for i := range l.accounts {
		n, err := l.client.Increment(context.Background(), key("%s/count", l.account(i)), 0)
		if err != nil {
			t.Fatal(err)
		}
		counted += n
		keys = append(keys, l.account(i))
	}
	txn := l.client.Txn(keys...)
	for _, k := range keys {
		txn.Then(client.Get(k))
	}
	r, err := txn.Commit(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range r.Results {
		if one.Value.Found {
			n, err := strconv.ParseInt(string(one.Value.Data), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			sum += n
		}
	}
	if sum != 0 {
		t.Errorf("the accounts hold %d together, want 0", sum)
	}
	if counted != l.counted.Load() {
		t.Errorf("the counters hold %d, %d increments were acknowledged", counted, l.counted.Load())
	}
}

func (l *ledger) load(t testing.TB, workers int) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	for w := range workers {
		wait.Go(func() { l.run(ctx, t, w) })
	}
	return func() { cancel(); wait.Wait() }
}

func TestTransfersOverShardsDuringHandoffs(t *testing.T) {
	oracle := newStandIn(t, 3)
	shards := startShards(t, oracle, 3, 1, nil)
	l := &ledger{client: dialSDK(t, oracle, nil), accounts: 60}
	stop := l.load(t, 8)
	await(t, "some transfers over several shards", func() bool { return l.multi.Load() > 50 || t.Failed() })
	for round := range 6 {
		from, to := keyspace.ShardID(round%3+1), keyspace.ShardID((round+1+round/3)%3+1)
		var vertices []keyspace.Vertex
		for i := range l.accounts {
			if v := keyspace.Vertex(fmt.Sprintf("account/%d", i)); oracle.shardOf(v) == from && len(vertices) < 8 {
				vertices = append(vertices, v)
			}
		}
		p := oracle.move(t, shards[from-1][0], to, vertices, nil)
		t.Logf("moved %d vertices from %v to %v: %d bytes, pause %d us", len(vertices), from, to, p.GetBytesCopied(), p.GetPauseMicros())
		before := l.commands.Load()
		await(t, "commands go on", func() bool { return l.commands.Load() > before+100 || t.Failed() })
	}
	stop()
	l.check(t)
	t.Logf("%d commands, %d over several shards, %+v", l.commands.Load(), l.multi.Load(), l.client.Stats())
}

func TestThinCallsToAnyShard(t *testing.T) {
	oracle := newStandIn(t, 3)
	shards := startShards(t, oracle, 3, 1, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var kv []kvv1.KVClient
	for _, group := range shards {
		kv = append(kv, kvv1.NewKVClient(dialShard(t, group[0].config.address())))
	}
	var keys [][]byte
	for i := range 30 {
		keys = append(keys, key("k%d", i))
		if _, err := kv[i%3].Put(ctx, &kvv1.PutRequest{Key: keys[i], Value: key("0")}); err != nil {
			t.Fatalf("put at shard %d: %v", i%3+1, err)
		}
		for s := range kv {
			if r, err := kv[s].Increment(ctx, &kvv1.IncrementRequest{Key: keys[i], Delta: 1}); err != nil || r.GetValue() != int64(s+1) {
				t.Fatalf("increment %s at shard %d: %v, %v", keys[i], s+1, r, err)
			}
		}
	}
	for s := range kv {
		m := &kvv1.TxnRequest{Keys: keys}
		for _, k := range keys {
			m.ThenOps = append(m.ThenOps, &kvv1.TxnOp{Kind: kvv1.OpKind_OP_KIND_INCREMENT, Key: k, Delta: 1})
		}
		r, err := kv[s].Txn(ctx, m)
		if err != nil || len(r.GetResults()) != len(keys) || r.GetResults()[0].GetNumber() != int64(4+s) {
			t.Fatalf("txn at shard %d: %v, %v", s+1, r, err)
		}
		scan, err := kv[s].Scan(ctx, &kvv1.ScanRequest{Start: key("k"), Limit: 20})
		if err != nil || len(scan.GetEntries()) != 20 || !scan.GetMore() {
			t.Fatalf("scan at shard %d: %d entries, %v", s+1, len(scan.GetEntries()), err)
		}
	}
}

func TestThinCallsDuringHandoffs(t *testing.T) {
	oracle := newStandIn(t, 2)
	shards := startShards(t, oracle, 2, 1, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var counts [10]atomic.Int64
	var wait sync.WaitGroup
	for w := range 6 {
		kv := kvv1.NewKVClient(dialShard(t, shards[w%2][0].config.address()))
		wait.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				if _, err := kv.Increment(context.Background(), &kvv1.IncrementRequest{Key: key("k%d", i%10), Delta: 1}); err != nil {
					t.Errorf("increment: %v", err)
					return
				}
				counts[i%10].Add(1)
			}
		})
	}
	await(t, "increments", func() bool { return counts[9].Load() > 5 || t.Failed() })
	for round := range 6 {
		for from := range 2 {
			var vertices []keyspace.Vertex
			for i := range 10 {
				if v := keyspace.Vertex(fmt.Sprintf("k%d", i)); oracle.shardOf(v) == keyspace.ShardID(from+1) && (i+round)%3 == 0 {
					vertices = append(vertices, v)
				}
			}
			if len(vertices) > 0 {
				oracle.move(t, shards[from][0], keyspace.ShardID(2-from), vertices, nil)
			}
		}
	}
	cancel()
	wait.Wait()
	kv := kvv1.NewKVClient(dialShard(t, shards[0][0].config.address()))
	for i := range counts {
		r, err := kv.Increment(t.Context(), &kvv1.IncrementRequest{Key: key("k%d", i)})
		if err != nil || r.GetValue() != counts[i].Load() {
			t.Errorf("k%d holds %v, %d increments were acknowledged (%v)", i, r, counts[i].Load(), err)
		}
	}
}
