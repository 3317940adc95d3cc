// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kolocate/kolocate/api/client"
	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

func TestOneShardServesTheSDK(t *testing.T) {
	oracle := newStandIn(t, 1)
	startShards(t, oracle, 1, 1, nil)
	c := dialSDK(t, oracle, nil)
	ctx := t.Context()
	if _, err := c.Put(ctx, key("a"), key("1")); err != nil {
		t.Fatal(err)
	}
	if v, err := c.Get(ctx, key("a")); err != nil || string(v.Data) != "1" || v.Version == 0 {
		t.Fatalf("%+v, %v", v, err)
	}
	if n, err := c.Increment(ctx, key("a"), 41); err != nil || n != 42 {
		t.Fatalf("%d, %v", n, err)
	}
	if swapped, met, err := c.CompareAndSwap(ctx, key("a"), key("1"), key("2")); err != nil || swapped || string(met.Data) != "42" {
		t.Fatalf("%v %+v %v", swapped, met, err)
	}
	r, err := c.Txn(key("a"), key("{v}1"), key("{v}2")).If(client.ValueEqual(key("a"), key("42"))).
		Then(client.Put(key("{v}1"), key("x")), client.Put(key("{v}2"), key("y")), client.Delete(key("a"))).Commit(ctx)
	if err != nil || !r.Succeeded || r.MultiShard {
		t.Fatalf("%+v %v", r, err)
	}
	var found []string
	for e, err := range c.ScanVertex(ctx, "v", client.ScanOptions{PageEntries: 1}) {
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, string(e.Key)+"="+string(e.Value))
	}
	if strings.Join(found, " ") != "{v}1=x {v}2=y" {
		t.Fatalf("scan of a vertex: %q", found)
	}
	n := 0
	for _, err := range c.Scan(ctx, client.ScanOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 2 {
		t.Fatalf("scan found %d keys", n)
	}
	if _, err := c.Put(ctx, key("t"), key("text")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Increment(ctx, key("t"), 1); !errors.Is(err, client.Refused) {
		t.Fatalf("increment of a text: %v", err)
	}
}

func TestUnaryCalls(t *testing.T) {
	oracle := newStandIn(t, 1)
	p := startShards(t, oracle, 1, 1, nil)[0][0]
	kv := kvv1.NewKVClient(dialShard(t, p.config.address()))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := kv.Put(ctx, &kvv1.PutRequest{Key: key("a"), Value: key("5")}); err != nil {
		t.Fatal(err)
	}
	if r, err := kv.Increment(ctx, &kvv1.IncrementRequest{Key: key("a"), Delta: 2}); err != nil || r.GetValue() != 7 {
		t.Fatal(r, err)
	}
	if r, err := kv.Get(ctx, &kvv1.GetRequest{Key: key("a")}); err != nil || string(r.GetValue()) != "7" {
		t.Fatal(r, err)
	}
	if r, err := kv.CompareAndSwap(ctx, &kvv1.CompareAndSwapRequest{Key: key("b"), ExpectAbsent: true, Value: key("z")}); err != nil || !r.GetSwapped() {
		t.Fatal(r, err)
	}
	if r, err := kv.Scan(ctx, &kvv1.ScanRequest{Start: key("a"), Limit: 1}); err != nil || len(r.GetEntries()) != 1 || !r.GetMore() {
		t.Fatal(r, err)
	}
	if r, err := kv.Scan(ctx, &kvv1.ScanRequest{WithinVertex: key("b")}); err != nil || len(r.GetEntries()) != 1 || r.GetMore() {
		t.Fatal(r, err)
	}
	if r, err := kv.Txn(ctx, &kvv1.TxnRequest{
		Keys: [][]byte{key("a"), key("b")}, Compares: []*kvv1.TxnCompare{{Key: key("b"), Kind: kvv1.CompareKind_COMPARE_KIND_EXISTS}},
		ThenOps: []*kvv1.TxnOp{{Kind: kvv1.OpKind_OP_KIND_DELETE, Key: key("b")}, {Kind: kvv1.OpKind_OP_KIND_GET, Key: key("a")}},
	}); err != nil || !r.GetSucceeded() || string(r.GetResults()[1].GetValue()) != "7" {
		t.Fatal(r, err)
	}
	if r, err := kv.Delete(ctx, &kvv1.DeleteRequest{Key: key("b")}); err != nil || r.GetExisted() {
		t.Fatal(r, err)
	}
	_, undeclared := kv.Txn(ctx, &kvv1.TxnRequest{Keys: [][]byte{key("a")}, ThenOps: []*kvv1.TxnOp{{Kind: kvv1.OpKind_OP_KIND_DELETE, Key: key("forgotten")}}})
	_, long := kv.Get(ctx, &kvv1.GetRequest{Key: make([]byte, keyspace.MaxKeyBytes+1)})
	_, large := kv.Put(ctx, &kvv1.PutRequest{Key: key("a"), Value: make([]byte, keyspace.MaxValueBytes+1)})
	for name, err := range map[string]error{"forgotten": undeclared, "1025": long, "1048577": large} {
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := kv.Put(ctx, &kvv1.PutRequest{Key: key("t"), Value: key("text")}); err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Increment(ctx, &kvv1.IncrementRequest{Key: key("t")}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("increment of a text: %v", err)
	}
}

func TestRestartKeepsWhatWasAcknowledged(t *testing.T) {
	oracle := newStandIn(t, 1)
	p := startShards(t, oracle, 1, 1, nil)[0][0]
	c := dialSDK(t, oracle, nil)
	const workers, each = 8, 100
	count := func() {
		var wait sync.WaitGroup
		for w := range workers {
			wait.Go(func() {
				for range each {
					if _, err := c.Increment(t.Context(), key("k%d", w%3), 1); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wait.Wait()
	}
	count()
	p.stop(t)
	p = startProcess(t, p.config)
	count()
	p.stop(t)
	startProcess(t, p.config)
	sum := int64(0)
	for i := range 3 {
		n, err := c.Increment(t.Context(), key("k%d", i), 0)
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	if sum != 2*workers*each {
		t.Fatalf("the counters hold %d, want %d", sum, 2*workers*each)
	}
}
