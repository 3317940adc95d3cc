// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package local

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/kolocate/kolocate/api/client"
	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
)

const patience = 90 * time.Second

// programs returns the real programs, as make test names them.
func programs(t *testing.T) (kolocate, partitioner, envoy string) {
	t.Helper()
	kolocate, partitioner, envoy = os.Getenv("KOLOCATE_PROGRAM"), os.Getenv("KOLOCATE_PARTITIONER"), os.Getenv("KOLOCATE_ENVOY")
	if kolocate == "" || partitioner == "" || envoy == "" {
		t.Fatal(`KOLOCATE_PROGRAM, KOLOCATE_PARTITIONER and KOLOCATE_ENVOY are not all set; run make test, or eval "$(hack/env.sh program partitioner envoy)" first`)
	}
	return kolocate, partitioner, envoy
}

func startStore(t *testing.T, shards, replicas int, oracleFlags ...string) *Store {
	t.Helper()
	kolocate, partitioner, envoy := programs(t)
	s, err := Start(t.Context(), Config{
		Dir: t.TempDir(), Store: "s", Shards: shards, Replicas: replicas, Kolocate: kolocate, Partitioner: partitioner, Envoy: envoy,
		EnvoyThreads: 1, OracleFlags: oracleFlags,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// pair is a counter in each of two vertices that are always incremented at once.
type pair struct{ a, b string }

func pairs(n int) []pair {
	all := make([]pair, n)
	for i := range all {
		all[i] = pair{fmt.Sprintf("{left-%d}counter", i), fmt.Sprintf("{right-%d}counter", i)}
	}
	return all
}

// TestBothWaysInThroughARebalance runs SDK streams and thin requests, which
// bring only x-kolocate-key, through the real Envoy at real shards, before,
// during and after real handoffs. Neither sees an error; every increment counts
// exactly once; and the pairs end up together.
func TestBothWaysInThroughARebalance(t *testing.T) {
	s := startStore(t, 3, 1, "--minimum-commands", "100")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	store, err := client.Dial(ctx, client.Config{Target: s.Address})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	conn, err := grpc.NewClient(s.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	w := &bothWays{t: t, store: store, thin: kvv1.NewKVClient(conn), pairs: pairs(60)}
	load, endLoad := context.WithCancel(ctx)
	var group sync.WaitGroup
	for worker := range 4 {
		group.Go(func() { w.streams(load, worker) })
		group.Go(func() { w.thinRequests(load, worker) })
	}
	moved := w.rebalance(ctx, s)
	endLoad()
	group.Wait()
	if moved == 0 {
		t.Error("the rebalance moved nothing, so it shows nothing")
	}
	w.check(ctx)
	together := 0
	for _, p := range w.pairs {
		if store.ShardOf([]byte(p.a)) == store.ShardOf([]byte(p.b)) {
			together++
		}
	}
	if together < len(w.pairs)*9/10 {
		t.Errorf("%d of %d pairs are together after the rebalance, want at least nine tenths", together, len(w.pairs))
	}
}

type bothWays struct {
	t     *testing.T
	store *client.Client
	thin  kvv1.KVClient
	pairs []pair
	// increments of each pair that were acknowledged.
	done [60]atomic.Int64
	// puts of each thin worker's key that were acknowledged.
	thinDone [4]atomic.Int64
}

func (w *bothWays) streams(ctx context.Context, worker int) {
	for i := worker; ctx.Err() == nil; i++ {
		p := w.pairs[i%len(w.pairs)]
		a, b := []byte(p.a), []byte(p.b)
		// What was begun is finished, so that its outcome is known.
		_, err := w.store.Txn(a, b).Then(client.Increment(a, 1), client.Increment(b, 1)).Commit(context.WithoutCancel(ctx))
		if err != nil {
			w.t.Errorf("stream: %v", err)
			return
		}
		w.done[i%len(w.pairs)].Add(1)
	}
}

// thinRequests uses keys of vertices that are moved, named by the header alone.
func (w *bothWays) thinRequests(ctx context.Context, worker int) {
	for i := int64(1); ctx.Err() == nil; i++ {
		key := fmt.Sprintf("{left-%d}thin", worker)
		call, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(context.WithoutCancel(ctx), "x-kolocate-key", key), 10*time.Second)
		_, err := w.thin.Put(call, &kvv1.PutRequest{Key: []byte(key), Value: fmt.Append(nil, i)})
		var got *kvv1.GetResponse
		if err == nil {
			got, err = w.thin.Get(call, &kvv1.GetRequest{Key: []byte(key)})
		}
		cancel()
		if err != nil || string(got.GetValue()) != fmt.Sprint(i) {
			w.t.Errorf("thin request %d for %s: read %q, %v", i, key, got.GetValue(), err)
			return
		}
		w.thinDone[worker].Store(i)
	}
}

func (w *bothWays) rebalance(ctx context.Context, s *Store) (moved uint64) {
	_, err := s.AdminClient().CreateRebalance(ctx, &oraclev1.CreateRebalanceRequest{Name: "together", TraceSeconds: 3, Approval: "Automatic"})
	if err != nil {
		w.t.Fatal(err)
	}
	for {
		r, err := s.AdminClient().GetRebalance(ctx, &oraclev1.GetRebalanceRequest{Name: "together"})
		if err != nil {
			w.t.Fatal(err)
		}
		switch r.GetPhase() {
		case oraclev1.Phase_PHASE_SUCCEEDED:
			return r.GetMovedVertices()
		case oraclev1.Phase_PHASE_FAILED, oraclev1.Phase_PHASE_REVERTED, oraclev1.Phase_PHASE_STOPPED:
			w.t.Fatalf("the rebalance ended as %v", r)
		}
		select {
		case err := <-s.Failed():
			w.t.Fatal(err)
		case <-ctx.Done():
			w.t.Fatalf("the rebalance did not end: %v", r)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (w *bothWays) check(ctx context.Context) {
	for i, p := range w.pairs {
		for _, key := range []string{p.a, p.b} {
			value, err := w.store.Get(ctx, []byte(key))
			want := w.done[i].Load()
			if err != nil || (want > 0 && string(value.Data) != fmt.Sprint(want)) {
				w.t.Errorf("%s is %q (%v), want %d acknowledged increments", key, value.Data, err, want)
			}
		}
	}
	for worker := range w.thinDone {
		if w.thinDone[worker].Load() == 0 {
			w.t.Errorf("thin worker %d made no request", worker)
		}
	}
}

// TestFailuresAreExplained: a wrong program is named before anything starts,
// and a part that can't start is named with its own words.
func TestFailuresAreExplained(t *testing.T) {
	kolocate, partitioner, envoy := programs(t)
	good := Config{Dir: t.TempDir(), Store: "s", Shards: 1, Replicas: 1, Kolocate: kolocate, Partitioner: partitioner, Envoy: envoy}
	for want, change := range map[string]func(*Config){
		"Envoy is no program":       func(c *Config) { c.Envoy = "/nowhere/envoy" },
		"expected 1 or 3":           func(c *Config) { c.Replicas = 2 },
		"--shards 0: expected 1 to": func(c *Config) { c.Shards = 0 },
		"the end of its log": func(c *Config) {
			c.OracleFlags = []string{"--preconfiguration", "slowest", "--election-timeout", "0s1"}
		},
	} {
		config := good
		change(&config)
		if _, err := Start(t.Context(), config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}
