// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.etcd.io/raft/v3/raftpb"
)

// model is what a log should hold, kept in the plainest way.
type model struct {
	base    Mark
	newest  Mark
	entries []*raftpb.Entry
	state   *raftpb.HardState
}

func (m model) clone() model {
	m.entries = slices.Clone(m.entries)
	return m
}

func (m model) last() uint64 { return m.base.Index + uint64(len(m.entries)) }

// apply is what a batch does.
func (m model) apply(b Batch) model {
	m = m.clone()
	if b.Reset != nil {
		m.base, m.newest, m.entries = *b.Reset, *b.Reset, nil
	}
	if b.State != nil {
		m.state = b.State
	}
	for _, e := range b.Entries {
		m.entries = append(m.entries[:e.GetIndex()-m.base.Index-1], e)
	}
	if b.Mark != nil {
		m.entries = m.entries[m.newest.Index-m.base.Index:]
		m.base, m.newest = m.newest, *b.Mark
	}
	return m
}

// matches says how the contents differ from the model.
func (m model) matches(c *Contents) error {
	if got := c.Marks[0]; got.Index != m.base.Index || got.Term != m.base.Term {
		return fmt.Errorf("the log begins at %d, expected %d", got.Index, m.base.Index)
	}
	if got := c.Marks[len(c.Marks)-1]; got.Index != m.newest.Index {
		return fmt.Errorf("the newest snapshot is %d, expected %d", got.Index, m.newest.Index)
	}
	if m.state.GetTerm() != c.State.GetTerm() || m.state.GetVote() != c.State.GetVote() {
		return fmt.Errorf("the state is %v, expected %v", c.State, m.state)
	}
	if len(c.Entries) != len(m.entries) {
		return fmt.Errorf("%d entries, expected %d", len(c.Entries), len(m.entries))
	}
	for i, e := range c.Entries {
		want := m.entries[i]
		if e.GetIndex() != want.GetIndex() || e.GetTerm() != want.GetTerm() || !bytes.Equal(e.GetData(), want.GetData()) {
			return fmt.Errorf("entry %d is %v, expected %v", i, e, want)
		}
	}
	return nil
}

// randomBatch makes a batch that a Raft node could write.
func randomBatch(r *rand.Rand, m model) Batch {
	term := m.state.GetTerm()
	if r.IntN(4) == 0 {
		term++
	}
	var b Batch
	if term == 0 || r.IntN(3) == 0 || term != m.state.GetTerm() {
		term = max(term, 1)
		b.State = &raftpb.HardState{Term: new(term), Vote: new(uint64(r.IntN(3))), Commit: new(m.newest.Index)}
	}
	if r.IntN(12) == 0 {
		b.Reset = &Mark{Index: m.last() + uint64(r.IntN(5)) + 1, Term: term, ConfState: founding(), Reset: true}
		return b
	}
	next := m.last() + 1
	if back := m.last() - m.newest.Index; back > 0 && r.IntN(5) == 0 {
		next -= uint64(r.IntN(int(back)))
	}
	for range r.IntN(6) {
		data := make([]byte, r.IntN(3000))
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		b.Entries = append(b.Entries, &raftpb.Entry{Term: new(term), Index: new(next), Data: data})
		next++
	}
	if len(b.Entries) > 0 && r.IntN(6) == 0 {
		e := b.Entries[r.IntN(len(b.Entries))]
		b.Mark = &Mark{Index: e.GetIndex(), Term: e.GetTerm(), ConfState: founding()}
	}
	return b
}

func founding() *raftpb.ConfState {
	return &raftpb.ConfState{Voters: []uint64{1, 2, 3}, AutoLeave: new(false)}
}

func testOptions(fs vfs.FS) Options {
	return Options{FS: fs, Dir: "data/wal", Group: "store/shard-1", Replica: 1, Founding: founding(), SegmentBytes: 12_000}
}

// TestCrashAnywhere writes random batches and takes the power away before each file-system operation, with
// nothing, a part, or all of what was not synced left. The log must open and hold what was acknowledged
// and, all or not at all, what was being written.
func TestCrashAnywhere(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { crashAnywhere(t, seed) })
	}
}

func crashAnywhere(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	mem := vfs.NewCrashableMem()
	var acknowledged, attempted model
	acknowledged.state = &raftpb.HardState{}
	attempted = acknowledged
	open := false
	check := func(where string) {
		crash := vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 30, 70, 100}[r.IntN(4)], RNG: r}
		l, c, err := Open(testOptions(mem.CrashClone(crash)))
		if err != nil {
			t.Fatalf("open after a crash at %s with %d%% of the unsynced: %v", where, crash.UnsyncedDataPercent, err)
		}
		if err := acknowledged.matches(c); err != nil {
			if inFlight := attempted.matches(c); inFlight != nil {
				t.Fatalf("crash at %s: acknowledged: %v; in flight: %v", where, err, inFlight)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if open && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			check(fmt.Sprintf("operation %d on %s", op.Kind, op.Path))
		}
		return nil
	}))
	for range 3 {
		l, c, err := Open(testOptions(fs))
		if err != nil {
			t.Fatal(err)
		}
		if err := acknowledged.matches(c); err != nil {
			t.Fatal(err)
		}
		open = true
		for range 25 {
			b := randomBatch(r, acknowledged)
			attempted = acknowledged.apply(b)
			if err := l.Append(b); err != nil {
				t.Fatal(err)
			}
			acknowledged = attempted
			if err := l.Cut(l.Marks()[0].Index); err != nil {
				t.Fatal(err)
			}
			check("rest")
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
