// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"testing"
	"time"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// pair is two shards of which the first owns all slots, with a network that
// loses nothing and a clock that goes on by a millisecond a round.
type pair struct {
	t       testing.TB
	now     time.Time
	cores   [2]*Core
	leaders [2]*Leader
	index   [2]uint64
	mail    []packet
	replies func(origin uint64, r *kvv1.Reply)
	longest int // keys changed by one entry at the destination, at most
}

func newPair(t testing.TB, keys, valueBytes int) *pair {
	t.Helper()
	p := &pair{t: t, now: time.UnixMilli(1000)}
	for i := range p.cores {
		id := keyspace.ShardID(i + 1)
		p.cores[i] = New(Config{Store: "test", Shard: id})
		p.leaders[i] = NewLeader(p.cores[i], LeaderConfig{Term: 1}, p.now)
		g := &shardv1.Genesis{Store: "test", Shard: uint32(id)}
		if i == 0 {
			g.Slots = []*shardv1.SlotRange{{First: 0, Last: keyspace.Slots - 1}}
		}
		p.apply(i, &shardv1.Entry{Body: &shardv1.Entry_Genesis{Genesis: g}})
	}
	for i := range keys {
		p.put(i, valueBytes)
	}
	return p
}

func (p *pair) put(i, valueBytes int) {
	cmd := putCommand(fmt.Appendf(nil, "key/%07d", i), i, 0)
	cmd.ThenOps[0].Value = make([]byte, valueBytes)
	p.apply(0, entryOf(cmd))
}

func (p *pair) apply(i int, e *shardv1.Entry) {
	p.index[i]++
	before := p.cores[i].keys.cells.Len()
	effects, err := p.cores[i].Apply(p.index[i], e)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, commit := e.Body.(*shardv1.Entry_HandoffCommit); commit {
		p.longest = max(p.longest, p.cores[i].keys.cells.Len()-before)
	}
	for _, e := range effects {
		if e.Kind == EffectReply && p.replies != nil {
			p.replies(e.Origin, e.Reply)
		}
	}
	p.leaders[i].Applied(effects, p.now)
	p.drain(i)
}

func (p *pair) drain(i int) {
	propose, send := p.leaders[i].Output()
	for _, out := range send {
		p.mail = append(p.mail, packet{from: keyspace.ShardID(i + 1), to: out.To, message: out.Message})
	}
	for _, e := range propose {
		p.apply(i, e)
	}
}

func (p *pair) round() {
	p.now = p.now.Add(time.Millisecond)
	mail := p.mail
	p.mail = nil
	for _, m := range mail {
		p.leaders[m.to-1].Receive(m.from, m.message, p.now)
		p.drain(int(m.to - 1))
	}
	for i := range p.leaders {
		p.leaders[i].Tick(p.now)
		p.drain(i)
	}
}

// allSlots is a handoff of everything.
func allSlots() *shardv1.Handoff {
	h := &shardv1.Handoff{Id: 1, From: 1, To: 2}
	for slot := range uint32(keyspace.Slots) {
		h.Slots = append(h.Slots, slot)
	}
	return h
}

func (p *pair) move(rate uint64, between func(round int)) (rounds int, progress *shardv1.MoveProgress) {
	if err := p.leaders[0].StartMove(&shardv1.MoveRequest{Handoff: allSlots(), RateBytesPerSecond: rate}, p.now); err != nil {
		p.t.Fatal(err)
	}
	p.drain(0)
	for rounds = 1; rounds < 100_000; rounds++ {
		p.round()
		progress = p.leaders[0].Progress(1)
		if progress.Phase >= shardv1.HandoffPhase_HANDOFF_PHASE_DONE {
			return rounds, progress
		}
		if between != nil && progress.Phase == shardv1.HandoffPhase_HANDOFF_PHASE_COPYING {
			between(rounds)
		}
	}
	p.t.Fatalf("the handoff does not end: %v", progress)
	return 0, nil
}

// The commit costs what changed last, not what was moved, and writes go on
// until the seal.
func TestLargeHandoffHasShortPause(t *testing.T) {
	p := newPair(t, 20_000, 100)
	_, progress := p.move(0, func(round int) { p.put(round%30_000, 100) })
	if progress.Phase != shardv1.HandoffPhase_HANDOFF_PHASE_DONE || progress.KeysCopied < 20_000 {
		t.Fatalf("progress: %v", progress)
	}
	if progress.PauseMicros > 5000 || p.longest > 64 {
		t.Errorf("the pause was %d µs, and the commit brought %d keys", progress.PauseMicros, p.longest)
	}
	want := p.cores[1].keys.cells.Len()
	for p.cores[0].keys.cells.Len() > 0 {
		p.round()
	}
	if want < 20_000 || p.cores[1].Stats().Slots != keyspace.Slots || p.cores[0].Stats().Slots != 0 {
		t.Errorf("%d keys arrived", want)
	}
	for i := range p.cores {
		if err := p.cores[i].CheckInvariants(); err != nil {
			t.Error(err)
		}
	}
}

// A copy keeps to its rate: a second's worth of bytes takes a second.
func TestHandoffRate(t *testing.T) {
	p := newPair(t, 1000, 10_000)
	rounds, progress := p.move(5_000_000, nil)
	seconds := float64(rounds) / 1000
	rate := float64(progress.BytesCopied) / seconds
	if rate > 5_800_000 || rate < 3_500_000 {
		t.Errorf("%d bytes in %.2f s are %.0f bytes/s, the limit was 5,000,000", progress.BytesCopied, seconds, rate)
	}
}

// An abort of a sealed handoff waits for the destination; a move can't start twice.
func TestStartMoveErrors(t *testing.T) {
	p := newPair(t, 1, 1)
	for name, h := range map[string]*shardv1.Handoff{
		"no id":       {From: 1, To: 2, Slots: []uint32{1}},
		"not ours":    {Id: 3, From: 2, To: 1, Slots: []uint32{1}},
		"to itself":   {Id: 4, From: 1, To: 1, Slots: []uint32{1}},
		"nothing":     {Id: 5, From: 1, To: 2},
		"to no shard": {Id: 6, From: 1, To: 99, Slots: []uint32{1}},
	} {
		if err := p.leaders[0].StartMove(&shardv1.MoveRequest{Handoff: h}, p.now); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	p.move(0, nil)
	if err := p.leaders[0].AbortMove(1, p.now); err == nil {
		t.Error("a handoff that is done was aborted")
	}
	if err := p.leaders[0].StartMove(&shardv1.MoveRequest{Handoff: &shardv1.Handoff{Id: 9, From: 1, To: 2, Slots: []uint32{1}}}, p.now); err == nil {
		t.Error("a slot that is gone was moved again")
	}
	p.leaders[0].Housekeep(7, []uint64{1})
	p.drain(0)
	if owned, hint, _ := p.cores[0].Owns("x"); owned || hint != keyspace.NoShard {
		t.Errorf("a forgotten handoff still points to %v", hint)
	}
}

func BenchmarkHandoff(b *testing.B) {
	for range b.N {
		b.StopTimer()
		p := newPair(b, 20_000, 100)
		b.StartTimer()
		p.move(0, nil)
	}
	b.ReportMetric(20_000, "keys/op")
}
