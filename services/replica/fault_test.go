// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kolocate/kolocate/services/replica/snapshot"
	"github.com/kolocate/kolocate/services/replica/wal"
)

// gate is a state machine that applies nothing until it is opened.
type gate struct {
	*history
	open chan struct{}
}

func (g *gate) Apply(entries []Entry) error {
	<-g.open
	return g.history.Apply(entries)
}

func TestQueuesAreBounded(t *testing.T) {
	state := &gate{history: newHistory(), open: make(chan struct{})}
	cfg := soleConfig(t, vfs.Default, t.TempDir(), state.history)
	cfg.StateMachine, cfg.MaxPendingProposals, cfg.MaxPendingBytes = state, 100, 50_000
	h := openSole(t, cfg)
	defer stop(t, h)
	state.waitLeader(t)
	accepted := 0
	var full ErrQueueFull
	for {
		err := h.Propose([]byte(strings.Repeat("x", 999)))
		if errors.As(err, &full) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		accepted++
		if accepted > 10_000 {
			t.Fatal("10,000 proposals were accepted while nothing is applied")
		}
		time.Sleep(100 * time.Microsecond)
	}
	if full.Bound != boundBytes && full.Bound != boundProposals {
		t.Errorf("the bound is named %q", full.Bound)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	ran := false
	if err := h.Read(ctx, func() { ran = true }); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a read that cannot be served in time gives %v", err)
	}
	close(state.open)
	state.wait(t, "all accepted proposals", func() bool { return len(state.applied) == accepted })
	if err := h.Run(func() {}); err != nil || ran {
		t.Errorf("error %v; a read that was given up ran: %v", err, ran)
	}
	for _, size := range []int{0, MaxProposalBytes + 1} {
		if err := h.Propose(make([]byte, size)); !errors.Is(err, ErrTooLarge) {
			t.Errorf("a proposal of %d bytes gives %v", size, err)
		}
	}
}

func TestStateMachineErrorIsFatal(t *testing.T) {
	state := newHistory()
	h := openSole(t, soleConfig(t, vfs.Default, t.TempDir(), state))
	state.waitLeader(t)
	failure := errors.New("an invariant is broken")
	state.mu.Lock()
	state.failWith = failure
	state.mu.Unlock()
	if err := h.ProposeWait(testContext(t), []byte("x")); !errors.Is(err, ErrLeadershipLost) {
		t.Errorf("a proposal that could not be applied gives %v", err)
	}
	<-h.Done()
	if !errors.Is(h.Err(), failure) {
		t.Errorf("the replica ended with %v", h.Err())
	}
	stop(t, h)
	state.wait(t, "the loss", func() bool { return !state.leaderships[len(state.leaderships)-1].Leader })
}

// TestLeadersDiskIsFull: the leader ends with an error that names the file, another takes over, and
// nothing acknowledged is lost.
func TestLeadersDiskIsFull(t *testing.T) {
	var full [4]atomic.Bool
	c := newCluster(t, 3, func(cfg *Config) {
		id := cfg.ID
		cfg.FS = errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if full[id].Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && strings.HasSuffix(op.Path, ".wal") {
				return syscall.ENOSPC
			}
			return nil
		}))
	})
	for i := range 20 {
		c.propose(fmt.Sprintf("before %d", i))
	}
	id, leader := c.leader()
	full[id].Store(true)
	if err := leader.ProposeWait(testContext(t), []byte("lost or not")); !errors.Is(err, ErrLeadershipLost) {
		t.Errorf("a proposal on a full disk gives %v", err)
	}
	<-leader.Done()
	if err := leader.Err(); !errors.Is(err, wal.ErrDiskFull) || !strings.Contains(err.Error(), ".wal") {
		t.Errorf("the leader ended with %v", err)
	}
	c.kill(id)
	c.propose("after")
	full[id].Store(false)
	c.open(id, nil)
	got := c.agree(21)
	if !slices.Contains(got, "before 19") || !slices.Contains(got, "after") {
		t.Errorf("acknowledged entries are lost: %v", got)
	}
}

// writeRounds fills a group of one so that it has two snapshots.
func writeRounds(t *testing.T, dir string) []string {
	t.Helper()
	state := newHistory()
	cfg := soleConfig(t, vfs.Default, dir, state)
	cfg.SnapshotEveryBytes = 10_000
	h := openSole(t, cfg)
	defer stop(t, h)
	state.waitLeader(t)
	var want []string
	snapshots, last := 0, uint64(0)
	for i := 0; snapshots < 3; i++ {
		want = append(want, fmt.Sprintf("entry %d", i))
		if err := h.ProposeWait(testContext(t), []byte(want[i])); err != nil {
			t.Fatal(err)
		}
		if s := h.Status().SnapshotIndex; s > last {
			snapshots, last = snapshots+1, s
		}
	}
	return want
}

func snapshotFiles(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "snapshots", "*.snapshot"))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(files)
	return files
}

func corrupt(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestCorruptSnapshotFallsBack(t *testing.T) {
	dir := t.TempDir()
	want := writeRounds(t, dir)
	files := snapshotFiles(t, dir)
	if len(files) != 2 {
		t.Fatalf("%d snapshots are kept, expected 2", len(files))
	}
	corrupt(t, files[1])
	state := newHistory()
	h := openSole(t, soleConfig(t, vfs.Default, dir, state))
	state.waitLeader(t)
	if got := state.get(); !slices.Equal(got, want) {
		t.Errorf("%d entries after falling back, expected %d", len(got), len(want))
	}
	stop(t, h)

	corrupt(t, files[0])
	_, err := Open(testContext(t), soleConfig(t, vfs.Default, dir, newHistory()))
	if !errors.Is(err, snapshot.ErrCorrupt) || !strings.Contains(err.Error(), files[0]) || !strings.Contains(err.Error(), files[1]) {
		t.Errorf("without an intact snapshot Open gives %v", err)
	}
}

func TestDirectoryIsUsedOnce(t *testing.T) {
	dir := t.TempDir()
	state := newHistory()
	cfg := soleConfig(t, vfs.Default, dir, state)
	cfg.Registerer = prometheus.NewRegistry()
	h := openSole(t, cfg)
	second := cfg
	second.Registerer = nil
	if _, err := Open(testContext(t), second); err == nil || !strings.Contains(err.Error(), "another process uses it") {
		t.Errorf("the directory was opened twice: %v", err)
	}
	stop(t, h)
	// With the same registry: the metrics were taken back.
	stop(t, openSole(t, cfg))
	other := cfg
	other.Group = "store/shard-2"
	if _, err := Open(testContext(t), other); !errors.Is(err, wal.ErrOtherGroup) {
		t.Errorf("the log of another group was opened: %v", err)
	}
	more := cfg
	more.Peers = map[uint64]string{1: "a:1", 2: "b:1", 3: "c:1"}
	if _, err := Open(testContext(t), more); err == nil || !strings.Contains(err.Error(), "members [1]") {
		t.Errorf("a group of one was opened as one of three: %v", err)
	}
}

func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	state := newHistory()
	cfg := soleConfig(t, vfs.Default, t.TempDir(), state)
	cfg.Registerer = registry
	h := openSole(t, cfg)
	defer stop(t, h)
	state.waitLeader(t)
	for range 5 {
		if err := h.ProposeWait(testContext(t), []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		m := f.GetMetric()[0]
		got[f.GetName()] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	for name, least := range map[string]float64{
		"kolocate_raft_proposals_total": 5, "kolocate_raft_commit_latency_seconds": 5, "kolocate_raft_fsync_latency_seconds": 5,
		"kolocate_raft_wal_bytes": 1, "kolocate_raft_applied_index": 6, "kolocate_raft_leader": 1, "kolocate_raft_term": 1,
		"kolocate_raft_snapshot_bytes": 0, "kolocate_raft_queue_length": 0,
	} {
		if v, ok := got[name]; !ok || v < least {
			t.Errorf("%s is %v, expected at least %v", name, v, least)
		}
	}
}

// TestStopUnderLoad stops a replica while many propose, read and snapshot: everyone gets an answer.
func TestStopUnderLoad(t *testing.T) {
	for range 5 {
		state := newHistory()
		cfg := soleConfig(t, vfs.Default, t.TempDir(), state)
		cfg.SnapshotEveryBytes = 5_000
		h := openSole(t, cfg)
		state.waitLeader(t)
		var wg sync.WaitGroup
		var count atomic.Int64
		for range 16 {
			wg.Go(func() {
				for h.ProposeWait(t.Context(), []byte("x")) == nil && h.Read(t.Context(), func() {}) == nil && h.Run(func() {}) == nil {
					count.Add(1)
				}
			})
		}
		for count.Load() < 500 {
			time.Sleep(time.Millisecond)
		}
		stop(t, h)
		wg.Wait()
	}
}

// TestSnapshotSurvivesPowerLoss takes the power away at any time of a group of one on a disk that forgets
// what was not synced.
func TestSnapshotSurvivesPowerLoss(t *testing.T) {
	mem := vfs.NewCrashableMem()
	for round := range 10 {
		state := newHistory()
		cfg := soleConfig(t, mem, "data", state)
		cfg.SnapshotEveryBytes = 3_000
		h := openSole(t, cfg)
		state.waitLeader(t)
		if got := len(state.get()); got != 40*round {
			t.Fatalf("round %d begins with %d entries, expected %d", round, got, 40*round)
		}
		for i := range 40 {
			if err := h.ProposeWait(testContext(t), fmt.Appendf(nil, "round %d entry %d", round, i)); err != nil {
				t.Fatal(err)
			}
		}
		after := mem.CrashClone(vfs.CrashCloneCfg{})
		kill(t, h)
		mem = after
	}
}
