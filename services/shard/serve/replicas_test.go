// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/kolocate/kolocate/api/client"
	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// leaderOf asks the health service of each replica who leads.
func leaderOf(t testing.TB, group []*process) int {
	t.Helper()
	for i, p := range group {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		r, err := healthv1.NewHealthClient(dialShard(t, p.config.address())).Check(ctx, &healthv1.HealthCheckRequest{Service: HealthLeader})
		cancel()
		if err == nil && r.GetStatus() == healthv1.HealthCheckResponse_SERVING {
			return i
		}
	}
	return -1
}

func TestLeaderStopsUnderLoad(t *testing.T) {
	oracle := newStandIn(t, 2)
	shards := startShards(t, oracle, 2, 3, nil)
	l := &ledger{client: dialSDK(t, oracle, func(c *client.Config) { c.Timeout = 60 * time.Second }), accounts: 30}
	stop := l.load(t, 6)
	await(t, "transfers over several shards", func() bool { return l.multi.Load() > 20 || t.Failed() })
	for round := range 2 {
		group := shards[round%2]
		at := -1
		await(t, "a leader", func() bool { at = leaderOf(t, group); return at >= 0 || t.Failed() })
		group[at].stop(t)
		before := l.multi.Load()
		await(t, "transfers go on without the leader", func() bool { return l.multi.Load() > before+20 || t.Failed() })
		group[at] = startProcess(t, group[at].config)
	}
	stop()
	l.check(t)
	t.Logf("%d commands, %d over several shards, %+v", l.commands.Load(), l.multi.Load(), l.client.Stats())
}

func TestFollowersPassThinCallsOn(t *testing.T) {
	oracle := newStandIn(t, 1)
	group := startShards(t, oracle, 1, 3, nil)[0]
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for i, p := range group {
		kv := kvv1.NewKVClient(dialShard(t, p.config.address()))
		if r, err := kv.Increment(ctx, &kvv1.IncrementRequest{Key: key("a"), Delta: 1}); err != nil || r.GetValue() != int64(i+1) {
			t.Fatalf("increment at replica %d: %v, %v", i+1, r, err)
		}
		if r, err := kv.Get(ctx, &kvv1.GetRequest{Key: key("a")}); err != nil || string(r.GetValue()) != fmt.Sprint(i+1) {
			t.Fatalf("get at replica %d: %v, %v", i+1, r, err)
		}
	}
	leader := leaderOf(t, group)
	follower := group[(leader+1)%3]
	stream, err := kvv1.NewKVClient(dialShard(t, follower.config.address())).Execute(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	if status.Code(err) != codes.FailedPrecondition || strings.Join(stream.Trailer().Get("x-kolocate-leader"), "") != group[leader].config.address() {
		t.Fatalf("a stream to a follower: %v, trailer %v", err, stream.Trailer())
	}
}

func TestSlotsMoveAndScansSeeAll(t *testing.T) {
	oracle := newStandIn(t, 2)
	shards := startShards(t, oracle, 2, 1, nil)
	c := dialSDK(t, oracle, nil)
	slots := map[keyspace.Slot]bool{}
	for i := range 300 {
		k := key("item/%d", i)
		if _, err := c.Put(t.Context(), k, bytes.Repeat([]byte("x"), 2000)); err != nil {
			t.Fatal(err)
		}
		if v := keyspace.VertexOf(string(k)); oracle.shardOf(v) == 1 {
			slots[keyspace.SlotOf(v)] = true
		}
	}
	var moved []keyspace.Slot
	for slot := range slots {
		moved = append(moved, slot)
	}
	p := oracle.move(t, shards[0][0], 2, nil, moved)
	if p.GetKeysCopied() == 0 || p.GetPauseMicros() == 0 {
		t.Errorf("progress: %v", p)
	}
	n := 0
	for _, err := range c.Scan(t.Context(), client.ScanOptions{PageEntries: 70}) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 300 {
		t.Fatalf("the scan found %d keys, want 300", n)
	}
	r, err := shardv1.NewControlClient(dialShard(t, shards[1][0].config.address())).Status(t.Context(), &shardv1.StatusRequest{})
	if err != nil || !r.GetLeader() || r.GetKeys() != 300 {
		t.Fatalf("status: %v, %v", r, err)
	}
}

func TestTracesAndMetrics(t *testing.T) {
	oracle := newStandIn(t, 2)
	oracle.setRate(1)
	shards := startShards(t, oracle, 2, 1, nil)
	l := &ledger{client: dialSDK(t, oracle, nil), accounts: 10}
	stop := l.load(t, 2)
	await(t, "traces of edges", func() bool {
		oracle.mu.Lock()
		defer oracle.mu.Unlock()
		for _, r := range oracle.reports {
			if len(r.GetEdges()) > 0 && len(r.GetVertices()) > 0 && len(r.GetCommands()) > 0 {
				return true
			}
		}
		return t.Failed()
	})
	stop()
	response, err := http.Get("http://" + shards[0][0].metrics + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		`kolocate_commands_total{kind="txn",outcome="ok",shard="shard-1",store="test"}`, "kolocate_command_latency_seconds_bucket",
		"kolocate_multi_shard_commands_total", "kolocate_placement_epoch", "kolocate_handoff_active", "kolocate_handoff_bytes_total",
		"kolocate_handoff_pause_seconds_bucket", "kolocate_shard_keys", "kolocate_shard_bytes", "kolocate_queue_length{queue=", "kolocate_pending_commands",
	} {
		if !strings.Contains(strings.ReplaceAll(string(text), `queue="held",shard="shard-1",store="test"`, `queue=`), name) && !strings.Contains(string(text), name) {
			t.Errorf("metrics lack %s", name)
		}
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		r, err := http.Get("http://" + shards[0][0].metrics + path)
		if err != nil || r.StatusCode != http.StatusOK {
			t.Errorf("%s: %v, %v", path, r, err)
			continue
		}
		_ = r.Body.Close()
	}
}

func TestRunSaysWhatIsWrong(t *testing.T) {
	oracle := newStandIn(t, 1)
	base := startShardsConfig(t, oracle)
	base.Listener.Close()
	base.MetricsListener.Close()
	base.Listener, base.MetricsListener = nil, nil
	base.Listen, base.MetricsListen = "127.0.0.1:0", "127.0.0.1:0"
	taken := listenLoopback(t)
	defer taken.Close()

	inUse := base
	inUse.Listen = taken.Addr().String()
	noShard := base
	noShard.Shard = 0
	noOracle := base
	noOracle.Oracle = nil
	notPeer := base
	notPeer.Replica = 4
	for name, config := range map[string]Config{taken.Addr().String(): inUse, "shard id 0": noShard, "oracle": noOracle, "replica 4": notPeer} {
		if err := Run(t.Context(), config); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}

	first := startProcess(t, startShardsConfig(t, oracle))
	c := dialSDK(t, oracle, nil)
	if _, err := c.Put(t.Context(), key("a"), key("1")); err != nil {
		t.Fatal(err)
	}
	await(t, "the oracle hears of the genesis", func() bool {
		oracle.mu.Lock()
		defer oracle.mu.Unlock()
		return oracle.initial[1]
	})
	first.stop(t)
	otherStore := base
	otherStore.DataDir, otherStore.Store = first.config.DataDir, "other"
	if err := Run(t.Context(), otherStore); err == nil || !strings.Contains(err.Error(), `test/shard-1`) {
		t.Errorf("another store's data: %v", err)
	}
	corrupt := base
	corrupt.DataDir = first.config.DataDir
	flipLogBytes(t, corrupt.DataDir)
	if err := Run(t.Context(), corrupt); err == nil || !strings.Contains(err.Error(), corrupt.DataDir) {
		t.Errorf("a corrupt log: %v", err)
	} else {
		t.Log(err)
	}
	lost := base
	lost.DataDir = t.TempDir()
	lost.Advertise = "127.0.0.1:1"
	if err := Run(t.Context(), lost); err == nil || !strings.Contains(err.Error(), "its data is gone") {
		t.Errorf("lost data: %v", err)
	}
}

// flipLogBytes damages the middle of the largest file below a directory.
func flipLogBytes(t *testing.T, dir string) {
	t.Helper()
	var name string
	var size int64
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && !info.IsDir() && info.Size() > size && strings.Contains(path, "wal") {
			name, size = path, info.Size()
		}
		return err
	})
	if err != nil || name == "" {
		t.Fatalf("no log below %s: %v", dir, err)
	}
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	// The log may be preallocated: damage what was written.
	end := bytes.LastIndexFunc(data, func(r rune) bool { return r != 0 })
	for i := end / 2; i < end/2+8; i++ {
		data[i] ^= 0x5a
	}
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
