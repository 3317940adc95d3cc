// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/grpc"
)

// history is a state machine that remembers what was applied, in order.
type history struct {
	mu      sync.Mutex
	applied []string
	last    uint64
	// leaderships are those announced, beside what was applied.
	leaderships []Leadership
	restores    int
	// failWith, if set, is returned by the next Apply.
	failWith error
	changed  chan struct{}
}

func newHistory() *history { return &history{changed: make(chan struct{})} }

// notify wakes those who wait for a change. The lock is held.
func (h *history) notify() {
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *history) Apply(entries []Entry) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failWith != nil {
		return h.failWith
	}
	for _, e := range entries {
		if e.Index <= h.last || len(e.Data) == 0 {
			return fmt.Errorf("entry %d with %d bytes came after %d", e.Index, len(e.Data), h.last)
		}
		h.last = e.Index
		h.applied = append(h.applied, string(e.Data))
	}
	h.notify()
	return nil
}

type historySnapshot struct {
	applied []string
	last    uint64
}

func (h *history) Snapshot() (SnapshotWriter, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return &historySnapshot{applied: h.applied[:len(h.applied):len(h.applied)], last: h.last}, nil
}

func (s *historySnapshot) WriteTo(w io.Writer) (int64, error) {
	b := binary.AppendUvarint(nil, s.last)
	b = binary.AppendUvarint(b, uint64(len(s.applied)))
	for _, a := range s.applied {
		b = binary.AppendUvarint(b, uint64(len(a)))
		b = append(b, a...)
	}
	n, err := w.Write(b)
	return int64(n), err
}

func (s *historySnapshot) Close() {}

func (h *history) Restore(r io.Reader) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	next := func() uint64 {
		v, n := binary.Uvarint(b)
		b = b[n:]
		return v
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = next()
	h.applied = make([]string, next())
	for i := range h.applied {
		n := next()
		h.applied[i] = string(b[:n])
		b = b[n:]
	}
	h.restores++
	h.notify()
	return nil
}

func (h *history) onLeadership(l Leadership) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leaderships = append(h.leaderships, l)
	h.notify()
}

// get returns a copy of what was applied.
func (h *history) get() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]string(nil), h.applied...)
}

// wait waits until ok holds, which is called with the lock held.
func (h *history) wait(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		h.mu.Lock()
		done, changed := ok(), h.changed
		h.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("waited too long for %s", what)
		}
	}
}

func (h *history) waitLeader(t testing.TB) {
	t.Helper()
	h.wait(t, "leadership", func() bool { n := len(h.leaderships); return n > 0 && h.leaderships[n-1].Leader })
}

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func testLogger(t testing.TB) *slog.Logger {
	t.Helper()
	if os.Getenv("KOLOCATE_TEST_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// member is one replica of a test, with the server that its peers call.
type member struct {
	*Host
	state  *history
	server *grpc.Server
}

// soleConfig is the configuration of a group of one.
func soleConfig(t testing.TB, fs vfs.FS, dir string, state *history) Config {
	t.Helper()
	return Config{
		Group: "store/shard-1", ID: 1, Peers: map[uint64]string{1: "127.0.0.1:0"}, FS: fs, Dir: dir,
		TickInterval: 10 * time.Millisecond, ElectionTimeout: 100 * time.Millisecond,
		StateMachine: state, OnLeadership: state.onLeadership, Seed: 1, Logger: testLogger(t),
	}
}

func openSole(t testing.TB, cfg Config) *Host {
	t.Helper()
	h, err := Open(testContext(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func stop(t testing.TB, h *Host) {
	t.Helper()
	if err := h.Stop(testContext(t)); err != nil {
		t.Fatal(err)
	}
}

// kill stops a replica without grace.
func kill(t testing.TB, h *Host) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := h.Stop(ctx); err != nil {
		t.Fatal(err)
	}
}

// cluster is a group of several replicas on loopback.
type cluster struct {
	t       testing.TB
	peers   map[uint64]string
	members map[uint64]*member
	dirs    map[uint64]string
	adjust  func(*Config)
}

// newCluster starts n replicas.
func newCluster(t testing.TB, n uint64, adjust func(*Config)) *cluster {
	t.Helper()
	c := &cluster{t: t, peers: map[uint64]string{}, members: map[uint64]*member{}, dirs: map[uint64]string{}, adjust: adjust}
	listeners := map[uint64]net.Listener{}
	for id := uint64(1); id <= n; id++ {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners[id], c.peers[id], c.dirs[id] = l, l.Addr().String(), t.TempDir()
	}
	for id := uint64(1); id <= n; id++ {
		c.open(id, listeners[id])
	}
	t.Cleanup(func() {
		for _, m := range c.members {
			kill(t, m.Host)
			m.server.Stop()
		}
	})
	return c
}

// open starts a replica; the listener is made anew on the old address if it is nil.
func (c *cluster) open(id uint64, l net.Listener) *member {
	c.t.Helper()
	if l == nil {
		var err error
		if l, err = net.Listen("tcp", c.peers[id]); err != nil {
			c.t.Fatal(err)
		}
	}
	state := newHistory()
	cfg := Config{
		Group: "store/shard-1", ID: id, Peers: c.peers, Dir: c.dirs[id],
		TickInterval: 10 * time.Millisecond, ElectionTimeout: 150 * time.Millisecond,
		StateMachine: state, OnLeadership: state.onLeadership, Seed: id, Logger: testLogger(c.t),
	}
	if c.adjust != nil {
		c.adjust(&cfg)
	}
	h, err := Open(testContext(c.t), cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	m := &member{Host: h, state: state, server: grpc.NewServer(ServerOptions()...)}
	h.RegisterOn(m.server)
	go func() { _ = m.server.Serve(l) }()
	c.members[id] = m
	return m
}

// kill stops a replica without grace.
func (c *cluster) kill(id uint64) {
	c.t.Helper()
	m := c.members[id]
	delete(c.members, id)
	kill(c.t, m.Host)
	m.server.Stop()
}

// leader waits for a leader and returns it.
func (c *cluster) leader() (uint64, *member) {
	c.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		for id, m := range c.members {
			if m.Status().Leader {
				return id, m
			}
		}
		time.Sleep(time.Millisecond)
	}
	c.t.Fatal("no leader was elected")
	return 0, nil
}

// propose proposes until it is applied at a leader.
func (c *cluster) propose(data string) {
	c.t.Helper()
	ctx := testContext(c.t)
	for {
		_, m := c.leader()
		err := m.ProposeWait(ctx, []byte(data))
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			c.t.Fatal(err)
		}
	}
}
