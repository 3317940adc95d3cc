// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/services/edge/ir"
	"github.com/kolocate/kolocate/services/edge/translate"
	"github.com/kolocate/kolocate/services/keyspace"
)

// threeShards are shards of one replica, whose answers are the shards' names.
func threeShards(t testing.TB) [][]*replica {
	var shards [][]*replica
	for i := range 3 {
		shards = append(shards, []*replica{newReplica(t, fmt.Sprintf("shard-%d", i+1), true)})
	}
	return shards
}

// home is where the edge should route a key.
func home(e *ir.Edge, key string) string {
	vertex := keyspace.VertexOf(key)
	for _, override := range e.Kept() {
		if override.Vertex == vertex {
			return override.Shard.String()
		}
	}
	return e.Slots[keyspace.SlotOf(vertex)].String()
}

// keys are the hash-tag cases of the Redis Cluster specification, bytes that a
// header can't carry, and keys of random bytes.
func keys(seed uint64) []string {
	all := []string{
		"123456789", "{user1000}.following", "{user1000}.followers", "foo{}{bar}", "foo{{bar}}zap", "foo{bar}{zap}",
		"{", "}", "{}", "}{", "a{b", "a}b{c}", "{a}", "{ }", "100%", "%41", "a b", "tab\there", "café", "\x00", "\xff\xfe{\x01}",
		"comma,and;semicolon=", `quote"\back`, strings.Repeat("k", keyspace.MaxKeyBytes), "a=b&c", "~!@#$^*()",
	}
	random := rand.New(rand.NewPCG(seed, 1))
	for range 60 {
		key := make([]byte, 1+random.IntN(24))
		for i := range key {
			key[i] = byte(random.IntN(256))
			if random.IntN(8) == 0 {
				key[i] = "{}%"[random.IntN(3)]
			}
		}
		all = append(all, string(key))
	}
	return all
}

// encodeAll percent-encodes every byte, in lower case, as some clients do.
func encodeAll(key string) string {
	var out strings.Builder
	for i := range len(key) {
		fmt.Fprintf(&out, "%%%02x", key[i])
	}
	return out.String()
}

func (w *world) checkKeys(when string) {
	w.t.Helper()
	ctx := within(w.t)
	for _, key := range keys(7) {
		for _, header := range []string{translate.EncodeHeader(key), encodeAll(key)} {
			got, err := w.thin(ctx, header)
			if want := home(&w.ir, key); err != nil || got != want {
				w.t.Errorf("%s: key %q as %q went to %q (error %v), want %s", when, key, header, got, err, want)
			}
		}
	}
}

// DESIGN section 5: thin clients send x-kolocate-key alone.
func TestThinRequestsReachTheShardOfTheirKey(t *testing.T) {
	w := newWorld(t, threeShards(t)...)
	w.checkKeys("by slot")

	random := rand.New(rand.NewPCG(3, 3))
	w.update(func(e *ir.Edge) {
		seen := make(map[keyspace.Vertex]bool)
		for _, key := range keys(7) {
			if v := keyspace.VertexOf(key); !seen[v] && random.IntN(2) == 0 {
				seen[v] = true
				e.Overrides = append(e.Overrides, ir.Override{Vertex: v, Shard: keyspace.ShardID(1 + random.IntN(3))})
			}
		}
	})
	w.await(2)
	w.checkKeys("with overrides")

	w.update(func(e *ir.Edge) {
		for slot := range e.Slots {
			if random.IntN(50) == 0 {
				e.Slots[slot] = keyspace.ShardID(1 + random.IntN(3))
			}
		}
		e.Overrides = e.Overrides[:len(e.Overrides)/2]
	})
	w.await(3)
	w.checkKeys("with moved slots")

	w.update(func(e *ir.Edge) { e.Overrides = nil })
	w.await(4)
	w.checkKeys("with no override left")
}

func TestStreamsReachTheNamedShard(t *testing.T) {
	w := newWorld(t, threeShards(t)...)
	for _, shard := range []string{"shard-1", "shard-2", "shard-3"} {
		ctx := metadata.AppendToOutgoingContext(within(t), translate.HeaderShard, shard)
		stream, err := kvv1.NewKVClient(w.client).Execute(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for tag := range uint64(3) {
			if err := stream.Send(&kvv1.ExecuteRequest{Requests: []*kvv1.Request{{Tag: tag}}}); err != nil {
				t.Fatal(err)
			}
			response, err := stream.Recv()
			if err != nil || response.GetReplies()[0].GetMessage() != shard {
				t.Fatalf("a stream for %s was answered by %v (error %v)", shard, response, err)
			}
			w.update(func(e *ir.Edge) {
				e.Overrides = append(e.Overrides, ir.Override{Vertex: keyspace.Vertex(fmt.Sprint(shard, tag)), Shard: 1})
			})
			w.await(w.ir.Epoch) // the stream outlives new placements
		}
	}
}

func TestOtherCalls(t *testing.T) {
	w := newWorld(t, threeShards(t)...)
	ctx := within(t)
	reply, err := oraclev1.NewPlacementClient(w.client).Get(ctx, &oraclev1.GetRequest{})
	if err != nil || reply.GetPlacement().GetEpoch() != 42 {
		t.Errorf("Placement.Get: got %v (error %v), want the oracle's answer", reply, err)
	}
	served := make(map[string]bool)
	for range 60 {
		one, err := kvv1.NewKVClient(w.client).Get(ctx, &kvv1.GetRequest{})
		if err != nil {
			t.Fatalf("a call without a key: %v", err)
		}
		served[string(one.GetValue())] = true
	}
	if len(served) != 3 {
		t.Errorf("calls without a key reached %v, want all shards", served)
	}
	// A client can't choose the route by the internal headers, nor do they reach a shard.
	spoofed := metadata.AppendToOutgoingContext(ctx, translate.HeaderKey, "a",
		"x-kolocate-vertex", "b", "x-kolocate-page", "127", "x-kolocate-slot", "16383")
	one, err := kvv1.NewKVClient(w.client).Get(spoofed, &kvv1.GetRequest{})
	if err != nil || string(one.GetValue()) != home(&w.ir, "a") || one.GetVersion() != 0 {
		t.Errorf("with forged headers: got %v (error %v), want %s and no internal header", one, err, home(&w.ir, "a"))
	}
}

func TestRefusalsSayWhatToDo(t *testing.T) {
	w := newWorld(t, threeShards(t)...)
	for _, c := range []struct {
		name    string
		headers []string
		code    codes.Code
		text    string
	}{
		{"unknown shard", []string{translate.HeaderShard, "shard-9"}, codes.Unavailable, "read the placement again"},
		{"no shard's name", []string{translate.HeaderShard, "oracle"}, codes.InvalidArgument, "a name such as shard-1"},
		{"bad encoding", []string{translate.HeaderKey, "50%"}, codes.InvalidArgument, "send % as %25"},
		{"empty key", []string{translate.HeaderKey, ""}, codes.InvalidArgument, "a key has 1 to 1024"},
		{"long key", []string{translate.HeaderKey, strings.Repeat("k", 1025)}, codes.InvalidArgument, "1025 bytes"},
		{"two keys", []string{translate.HeaderKey, "a", translate.HeaderKey, "b"}, codes.InvalidArgument, "send it once"},
	} {
		ctx := metadata.AppendToOutgoingContext(within(t), c.headers...)
		_, err := kvv1.NewKVClient(w.client).Get(ctx, &kvv1.GetRequest{})
		if status.Code(err) != c.code || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: got %v, want %v with %q", c.name, err, c.code, c.text)
		}
	}
}

// The health service's word decides who leads; calls that meet a change are
// repeated, so that their clients see none.
func TestLeadershipFollowsHealthChecks(t *testing.T) {
	a, b := newReplica(t, "a", true), newReplica(t, "b", false)
	w := newWorld(t, []*replica{a, b})
	ctx := within(t)
	leader, follower := a, b
	for turn := range 6 {
		if turn == 3 { // from here on the oracle's word is there too, and wrong at times
			w.update(func(e *ir.Edge) { e.Shards[0].Replicas[0].Leader = true })
			w.await(w.ir.Epoch)
		}
		for range 20 {
			got, err := w.thin(ctx, "k")
			if err != nil || got != leader.name {
				t.Fatalf("turn %d: served by %q (error %v), want %s", turn, got, err, leader.name)
			}
		}
		follower.setLeader(true)
		leader.setLeader(false)
		leader, follower = follower, leader
		w.untilLed(ctx, leader.name)
	}
}

// untilLed waits for the health checks. The old leader's refusals are repeated
// by Envoy until its checks fail; a moment without any leader is told to clients.
func (w *world) untilLed(ctx context.Context, name string) {
	w.t.Helper()
	for {
		got, err := w.thin(ctx, "k")
		if err == nil && got == name {
			return
		}
		if ctx.Err() != nil || (err != nil && status.Code(err) != codes.Unavailable) {
			w.t.Fatalf("waiting for %s to be served: got %q, error %v", name, got, err)
		}
	}
}

// A loop of clients sees no error while placements change.
func TestUpdatesUnderLoadAreInvisible(t *testing.T) {
	w := newWorld(t, threeShards(t)...)
	ctx, stop := context.WithCancel(within(t))
	defer stop()
	const clients, placements = 4, 20
	results := make(chan error, clients)
	calls := make(chan int, clients)
	for client := range clients {
		go func() {
			n := 0
			defer func() { calls <- n }()
			for ; ctx.Err() == nil; n++ {
				if _, err := w.thin(context.WithoutCancel(ctx), fmt.Sprintf("user/%d", (client+n*clients)%500)); err != nil {
					results <- fmt.Errorf("client %d, call %d: %w", client, n, err)
					return
				}
			}
			results <- nil
		}()
	}
	random := rand.New(rand.NewPCG(11, 1))
	for range placements {
		w.update(func(e *ir.Edge) {
			e.Overrides = slices.Clone(e.Overrides)
			for range 10 {
				v := keyspace.Vertex(fmt.Sprintf("user/%d", random.IntN(500)))
				e.Overrides = slices.DeleteFunc(e.Overrides, func(o ir.Override) bool { return o.Vertex == v })
				e.Overrides = append(e.Overrides, ir.Override{Vertex: v, Shard: keyspace.ShardID(1 + random.IntN(3))})
			}
			e.Slots[random.IntN(keyspace.Slots)] = keyspace.ShardID(1 + random.IntN(3))
		})
		w.await(w.ir.Epoch)
	}
	stop()
	total := 0
	for range clients {
		if err := <-results; err != nil {
			t.Error(err)
		}
		total += <-calls
	}
	t.Logf("%d calls over %d placements", total, placements)
	for user := range 500 {
		key := fmt.Sprintf("user/%d", user)
		if got, err := w.thin(within(t), key); err != nil || got != home(&w.ir, key) {
			t.Errorf("after all: %s went to %q (error %v), want %s", key, got, err, home(&w.ir, key))
		}
	}
}

// The bound of the table loads within seconds even on a loaded machine.
func TestLargestOverrideTable(t *testing.T) {
	w := newWorld(t, threeShards(t)...)
	start := time.Now()
	w.update(func(e *ir.Edge) {
		for i := range largestTable {
			e.Overrides = append(e.Overrides, ir.Override{
				Vertex: keyspace.Vertex(fmt.Sprintf("user/%d", i)), Shard: keyspace.ShardID(1 + i%3),
			})
		}
	})
	published := time.Since(start)
	w.await(2)
	all := time.Since(start)
	start = time.Now()
	w.update(func(e *ir.Edge) { e.Overrides[0].Shard = 3 })
	w.await(3)
	t.Logf("%d overrides: published in %v, acknowledged in %v; one more change in %v", largestTable, published, all, time.Since(start))
	for i := range 50 {
		key := fmt.Sprintf("user/%d", i*largestTable/50)
		if got, err := w.thin(within(t), key); err != nil || got != home(&w.ir, key) {
			t.Errorf("%s went to %q (error %v), want %s", key, got, err, home(&w.ir, key))
		}
	}
}
