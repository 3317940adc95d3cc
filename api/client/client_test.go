// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

func TestOperations(t *testing.T) {
	c := newFakeStore(t, 3).dial(t, nil)
	ctx := within(t, 10*time.Second)
	key := []byte("user/1")
	if v, err := c.Get(ctx, key); err != nil || v.Found {
		t.Fatalf("get of an absent key: %+v, %v", v, err)
	}
	if _, err := c.Put(ctx, key, []byte("7")); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Increment(ctx, key, 5); err != nil || n != 12 {
		t.Fatalf("increment: %d, %v", n, err)
	}
	if swapped, met, err := c.CompareAndSwap(ctx, key, []byte("x"), []byte("y")); err != nil || swapped || string(met.Data) != "12" {
		t.Fatalf("failing swap: %v %+v %v", swapped, met, err)
	}
	if swapped, _, err := c.CompareAndSwap(ctx, key, []byte("12"), []byte("z")); err != nil || !swapped {
		t.Fatalf("swap: %v %v", swapped, err)
	}
	if _, err := c.Increment(ctx, key, 1); !errors.Is(err, Refused) {
		t.Fatalf("increment of a text: %v, want a refusal", err)
	}
	r, err := c.Txn(key, []byte("user/2")).If(ValueEqual(key, []byte("z"))).
		Then(Put([]byte("user/2"), []byte("w")), Get([]byte("user/2")), Delete(key)).Else(Get(key)).Commit(ctx)
	if err != nil || !r.Succeeded || len(r.Results) != 3 || string(r.Results[1].Value.Data) != "w" || !r.Results[2].Existed {
		t.Fatalf("txn: %+v, %v", r, err)
	}
	if existed, err := c.Delete(ctx, key); err != nil || existed {
		t.Fatalf("delete of a deleted key: %v %v", existed, err)
	}
}

func TestInvalidIsNotSent(t *testing.T) {
	f := newFakeStore(t, 1)
	c := f.dial(t, nil)
	ctx := within(t, 5*time.Second)
	_, undeclared := c.Txn([]byte("a")).Then(Put([]byte("forgotten"), nil)).Commit(ctx)
	_, long := c.Get(ctx, make([]byte, keyspace.MaxKeyBytes+1))
	_, empty := c.Get(ctx, nil)
	_, large := c.Put(ctx, []byte("a"), make([]byte, keyspace.MaxValueBytes+1))
	_, none := c.Do(ctx, &kvv1.Command{Keys: [][]byte{[]byte("a")}})
	for name, err := range map[string]error{"undeclared": undeclared, "long": long, "empty": empty, "large": large, "none": none} {
		if !errors.Is(err, Invalid) {
			t.Errorf("%s: %v, want kind Invalid", name, err)
		}
	}
	var e *Error
	if !errors.As(undeclared, &e) || string(e.Key) != "forgotten" || !strings.Contains(e.Error(), "forgotten") {
		t.Errorf("the error does not name the undeclared key: %v", undeclared)
	}
	var key *keyspace.KeyError
	if !errors.As(long, &key) || key.Bytes != keyspace.MaxKeyBytes+1 {
		t.Errorf("%v does not wrap the key error", long)
	}
	if f.requests != 0 {
		t.Errorf("%d requests were sent", f.requests)
	}
}

func TestRedirectsFollowHintsAndPlacement(t *testing.T) {
	f := newFakeStore(t, 3)
	c := f.dial(t, nil)
	ctx := within(t, 10*time.Second)
	from := c.ShardOf([]byte("v"))
	to := from%3 + 1
	f.move(t, "v", to, false)
	if _, err := c.Put(ctx, []byte("v"), []byte("1")); err != nil {
		t.Fatal(err)
	}
	if got := c.Stats().Redirects; got != 1 {
		t.Fatalf("%d redirects, want 1", got)
	}
	if _, err := c.Get(ctx, []byte("v")); err != nil || c.ShardOf([]byte("v")) != to || c.Stats().Redirects != 1 {
		t.Fatalf("the hint was not kept: %v, %+v", err, c.Stats())
	}
	f.move(t, "w", f.placement.ShardOf("w")%3+1, true)
	for c.Epoch() < f.placement.Epoch() {
		if ctx.Err() != nil {
			t.Fatal("the new epoch did not come")
		}
		if _, err := c.Get(ctx, []byte("v")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Get(ctx, []byte("w")); err != nil || c.Stats().Redirects != 1 {
		t.Fatalf("the placement was not followed: %v, %+v", err, c.Stats())
	}
}

func TestCommandGoesWhereMostVerticesAre(t *testing.T) {
	l := newLocations(10)
	p, err := keyspace.EvenPlacement(3)
	if err != nil {
		t.Fatal(err)
	}
	l.adopt(p)
	l.hints = map[keyspace.Vertex]keyspace.ShardID{"a": 3, "b": 3, "c": 2, "d": 2, "e": 1}
	for want, vertices := range map[keyspace.ShardID][]keyspace.Vertex{
		3: {"a", "b", "c", "e"}, 2: {"a", "b", "c", "d", "e"}, 1: {"a", "c", "e"},
	} {
		if got := l.choose(vertices); got != want {
			t.Errorf("choose(%v) = %v, want %v", vertices, got, want)
		}
	}
}

func TestRetriesKeepTheID(t *testing.T) {
	f := newFakeStore(t, 2)
	outcomes := []kvv1.Outcome{kvv1.Outcome_OUTCOME_RETRY, kvv1.Outcome_OUTCOME_UNKNOWN, kvv1.Outcome_OUTCOME_RETRY}
	var seen []*kvv1.CommandId
	f.meddle = func(_ keyspace.ShardID, _ int, cmd *kvv1.Command) (*kvv1.Reply, error) {
		seen = append(seen, cmd.GetId())
		if len(seen) <= len(outcomes) {
			return &kvv1.Reply{Outcome: outcomes[len(seen)-1], Message: "not now"}, nil
		}
		return nil, nil
	}
	c := f.dial(t, nil)
	if _, err := c.Put(within(t, 10*time.Second), []byte("a"), []byte("1")); err != nil {
		t.Fatal(err)
	}
	if len(seen) != 4 || c.Stats().Retries != 3 {
		t.Fatalf("%d sendings, %d retries", len(seen), c.Stats().Retries)
	}
	for _, id := range seen {
		if id.GetClient() == 0 || id.GetSequence() != 1 || id.GetClient() != seen[0].GetClient() {
			t.Fatalf("ids differ: %v", seen)
		}
	}
}

// Streams break at random, before and after commands ran: each increment counts once.
func TestExactlyOnceOverBrokenStreams(t *testing.T) {
	f := newFakeStore(t, 2)
	f.meddle = func(_ keyspace.ShardID, n int, _ *kvv1.Command) (*kvv1.Reply, error) {
		if n%97 == 0 {
			return nil, status.Error(codes.Unavailable, "gone")
		}
		return nil, nil
	}
	f.loseReply = func(n int) bool { return n%61 == 0 }
	c := f.dial(t, func(config *Config) { config.MaxBackoff = 5 * time.Millisecond })
	const workers, each = 8, 50
	var wait sync.WaitGroup
	for w := range workers {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for i := range each {
				if _, err := c.Increment(within(t, 20*time.Second), fmt.Appendf(nil, "k%d", (w+i)%5), 1); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	wait.Wait()
	sum := int64(0)
	for i := range 5 {
		n, err := c.Increment(within(t, 10*time.Second), fmt.Appendf(nil, "k%d", i), 0)
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	if sum != workers*each {
		t.Fatalf("the counters hold %d, want %d", sum, workers*each)
	}
	if c.Stats().Reconnects == 0 {
		t.Fatal("no stream broke")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, n := range f.executed {
		if n != 1 {
			t.Errorf("command %v ran %d times", id, n)
		}
	}
	if f.lowest[c.id] < workers*each-workers {
		t.Errorf("acknowledged below %d, want about %d", f.lowest[c.id], workers*each)
	}
}

func TestReconnectsToARestartedStore(t *testing.T) {
	f := newFakeStore(t, 1)
	c := f.dial(t, nil)
	if _, err := c.Put(within(t, 5*time.Second), []byte("a"), []byte("1")); err != nil {
		t.Fatal(err)
	}
	f.server.Stop()
	p := c.Start(within(t, 20*time.Second), single(&kvv1.Op{Kind: kvv1.OpKind_OP_KIND_GET}, []byte("a")))
	f.start(t, f.address)
	reply, err := p.Wait(within(t, 20*time.Second))
	if err != nil || string(firstOp(reply.GetResult()).GetValue()) != "1" {
		t.Fatalf("%v, %v", reply, err)
	}
}

func TestDeadlines(t *testing.T) {
	f := newFakeStore(t, 1)
	c := f.dial(t, func(config *Config) { config.MaxInFlight = 3 })
	silent := make(chan struct{})
	f.meddle = func(_ keyspace.ShardID, _ int, cmd *kvv1.Command) (*kvv1.Reply, error) {
		if string(cmd.GetKeys()[0]) == "silent" {
			close(silent)
			silent = make(chan struct{})
			return &kvv1.Reply{Outcome: kvv1.Outcome_OUTCOME_UNKNOWN, Message: "no answer in time"}, nil
		}
		return &kvv1.Reply{Outcome: kvv1.Outcome_OUTCOME_RETRY, Message: "no leader"}, nil
	}
	_, err := c.Get(within(t, 50*time.Millisecond), []byte("retry"))
	if !errors.Is(err, DeadlineExceeded) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("never run: %v", err)
	}
	_, err = c.Put(within(t, 50*time.Millisecond), []byte("silent"), nil)
	if !errors.Is(err, Unknown) || errors.Is(err, DeadlineExceeded) {
		t.Errorf("may have run: %v", err)
	}
	// Nobody waits for these: the sweep must end them, and the fourth waits for a place.
	var ended atomic.Int32
	done := make(chan error, 4)
	ctx := within(t, 100*time.Millisecond)
	for range 4 {
		c.DoAsync(ctx, single(&kvv1.Op{Kind: kvv1.OpKind_OP_KIND_GET}, []byte("async")), func(_ *kvv1.Reply, err error) {
			ended.Add(1)
			done <- err
		})
	}
	for range 4 {
		select {
		case err := <-done:
			if !errors.Is(err, DeadlineExceeded) {
				t.Error(err)
			}
		case <-time.After(5 * time.Second):
			t.Fatalf("only %d of 4 commands ended", ended.Load())
		}
	}
	cancelled, cancel := context.WithCancel(t.Context())
	p := c.Start(cancelled, single(&kvv1.Op{Kind: kvv1.OpKind_OP_KIND_GET}, []byte("async")))
	cancel()
	if _, err := p.Wait(t.Context()); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestDialFails(t *testing.T) {
	if _, err := Dial(t.Context(), Config{}); !errors.Is(err, Invalid) {
		t.Errorf("no target: %v", err)
	}
	_, err := Dial(within(t, 200*time.Millisecond), Config{Target: "127.0.0.1:1"})
	if !errors.Is(err, Unavailable) || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("nobody listens: %v", err)
	}
}

func TestCloseEndsWhatIsInFlight(t *testing.T) {
	f := newFakeStore(t, 1)
	c := f.dial(t, nil)
	f.meddle = func(keyspace.ShardID, int, *kvv1.Command) (*kvv1.Reply, error) {
		return &kvv1.Reply{Outcome: kvv1.Outcome_OUTCOME_RETRY}, nil
	}
	p := c.Start(within(t, 10*time.Second), single(&kvv1.Op{Kind: kvv1.OpKind_OP_KIND_GET}, []byte("a")))
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(t.Context()); !errors.Is(err, Closed) {
		t.Errorf("in flight: %v", err)
	}
	if _, err := c.Get(t.Context(), []byte("a")); !errors.Is(err, Closed) {
		t.Errorf("after: %v", err)
	}
}

func TestScans(t *testing.T) {
	f := newFakeStore(t, 2)
	c := f.dial(t, nil)
	longest := "{v}" + strings.Repeat("z", keyspace.MaxKeyBytes-3)
	want := []string{"v", "{v}a", "{v}b", "{v}c", longest}
	for _, key := range append(want, "other", "{w}") {
		f.data[key] = "x"
	}
	slices.Sort(want)
	for page := range 7 {
		var got []string
		for e, err := range c.ScanVertex(within(t, 5*time.Second), "v", ScanOptions{PageEntries: page}) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, string(e.Key))
		}
		if !slices.Equal(got, want) {
			t.Fatalf("pages of %d: vertex scan found %.20q", page, got)
		}
		n := 0
		for _, err := range c.Scan(within(t, 5*time.Second), ScanOptions{PageEntries: page, Start: []byte("p")}) {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		if n != len(want)+1 {
			t.Fatalf("pages of %d: scan found %d keys", page, n)
		}
	}
	for _, err := range c.ScanVertex(t.Context(), "v", ScanOptions{Start: []byte("elsewhere")}) {
		if !errors.Is(err, Invalid) {
			t.Errorf("start in another vertex: %v", err)
		}
	}
}
