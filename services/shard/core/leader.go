// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tidwall/btree"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// LeaderConfig holds the leader's times and sizes. A field left at 0 takes its
// default.
type LeaderConfig struct {
	// Term is the Raft term of this leadership, from 1. It numbers the attempts
	// of handoffs, so no two leaders of a shard may have the same one.
	Term uint64
	// RetryInterval is how long an unanswered message waits to be sent again. Default 100 ms.
	RetryInterval time.Duration
	// ProposalTimeout is how long the leader waits for its own proposal to be
	// applied before it makes it again. Default 1 s.
	ProposalTimeout time.Duration
	// VoteTimeout is how long the coordinator waits for votes before it decides
	// retry. Default 2 s.
	VoteTimeout time.Duration
	// InquiryAfter is how long a participant waits for a decision before it asks
	// for one. Default 300 ms.
	InquiryAfter time.Duration
	// MaxSubmitted bounds multi-shard commands handed to Submit and not yet in
	// the log. Default 4,096.
	MaxSubmitted int
	// ChunkBytes bounds a handoff chunk. Default 256 KiB.
	ChunkBytes int
	// ChunkWindow bounds the unacknowledged chunks of a handoff. Default 16.
	ChunkWindow int
	// SealKeys and SealBytes say how small the remainder must be to seal;
	// MaxRounds says after how many rounds to seal anyway. Defaults 64, 64 KiB, 5.
	SealKeys, SealBytes, MaxRounds int
}

func (c LeaderConfig) withDefaults() LeaderConfig {
	setDefault(&c.Term, 1)
	setDefault(&c.RetryInterval, 100*time.Millisecond)
	setDefault(&c.ProposalTimeout, time.Second)
	setDefault(&c.VoteTimeout, 2*time.Second)
	setDefault(&c.InquiryAfter, 300*time.Millisecond)
	setDefault(&c.MaxSubmitted, 4096)
	setDefault(&c.ChunkBytes, 256<<10)
	setDefault(&c.ChunkWindow, 16)
	setDefault(&c.SealKeys, 64)
	setDefault(&c.SealBytes, 64<<10)
	setDefault(&c.MaxRounds, 5)
	return c
}

// Outgoing is a message to another shard's leader.
type Outgoing struct {
	To      keyspace.ShardID
	Message *shardv1.Message
}

// Leader is what the leader of a shard does beside the log: it collects votes
// and inputs, repeats unanswered messages and drives handoffs. It is volatile
// and deterministic: a new leader builds it anew from the core. It is called by
// the goroutine that drives the core, and by no other.
type Leader struct {
	c   *Core
	cfg LeaderConfig
	now time.Time

	works     map[attemptKey]*work
	timers    *btree.BTreeG[timer]
	submitted map[uint64]time.Time
	order     []uint64 // origins as submitted; some may be gone
	finish    []*shardv1.Attempt

	moves    map[uint64]*move
	stages   map[uint64]*stage
	lastTidy time.Time

	propose []*shardv1.Entry
	sends   []Outgoing
}

// NewLeader returns the leader of c, which takes up what c's state leaves undone.
func NewLeader(c *Core, cfg LeaderConfig, now time.Time) *Leader {
	l := &Leader{
		c: c, cfg: cfg.withDefaults(), now: now, lastTidy: now,
		works:     map[attemptKey]*work{},
		timers:    btree.NewBTreeGOptions(timerLess, btree.Options{NoLocks: true}),
		submitted: map[uint64]time.Time{},
		moves:     map[uint64]*move{},
		stages:    map[uint64]*stage{},
	}
	c.trackers = nil
	for _, a := range c.pendingSorted() {
		l.advance(a.key)
	}
	for _, o := range c.sources {
		l.moves[o.handoff.Id] = l.newMove(o)
		l.drive(l.moves[o.handoff.Id])
	}
	return l
}

// Close lets go of what the leader watches in the core. Call it when leadership
// is lost; the leader must not be used afterwards.
func (l *Leader) Close() { l.c.trackers = nil }

// Applied takes the effects of one Apply. It must be called after each Apply,
// before the next. Replies are not its business: the caller answers them.
func (l *Leader) Applied(effects []Effect, now time.Time) {
	l.now = now
	for i := range effects {
		e := &effects[i]
		switch e.Kind {
		case EffectReply:
			delete(l.submitted, e.Origin)
		case EffectSend:
			l.send(e.To, e.Message)
		case effectMPO:
			if e.mpo.coordinator == l.c.cfg.Shard {
				delete(l.submitted, e.Origin)
			}
			l.advance(e.mpo)
		case EffectHandoff:
			l.handoffStep(e.Handoff)
		}
	}
}

// Receive takes a message of another shard.
func (l *Leader) Receive(from keyspace.ShardID, m *shardv1.Message, now time.Time) {
	l.now = now
	switch body := m.GetBody().(type) {
	case *shardv1.Message_Propose:
		l.onPropose(body.Propose)
	case *shardv1.Message_Vote:
		l.onVote(body.Vote)
	case *shardv1.Message_Decision:
		l.onDecision(body.Decision)
	case *shardv1.Message_Inquiry:
		l.onInquiry(from, body.Inquiry)
	case *shardv1.Message_Input:
		l.onInput(body.Input)
	case *shardv1.Message_Return:
		l.onReturn(body.Return)
	case *shardv1.Message_ReturnAck:
		l.onReturnAck(body.ReturnAck)
	case *shardv1.Message_HandoffOffer:
		l.onOffer(body.HandoffOffer)
	case *shardv1.Message_HandoffChunk:
		l.onChunk(body.HandoffChunk)
	case *shardv1.Message_HandoffChunkAck:
		l.onChunkAck(from, body.HandoffChunkAck)
	case *shardv1.Message_HandoffFinal:
		l.onFinal(body.HandoffFinal)
	case *shardv1.Message_HandoffCommitted:
		l.onCommitted(body.HandoffCommitted.GetId())
	case *shardv1.Message_HandoffAbort:
		l.onAbort(from, body.HandoffAbort.GetId())
	case *shardv1.Message_HandoffAborted:
		l.onAborted(body.HandoffAborted)
	}
}

// Tick repeats what is due. Call it every 10 to 20 ms.
func (l *Leader) Tick(now time.Time) {
	l.now = now
	for {
		t, some := l.timers.Min()
		if !some || t.at.After(now) {
			break
		}
		l.timers.Delete(t)
		if w := l.works[t.key]; w != nil && w.due.Equal(t.at) {
			w.due = time.Time{}
			l.repeat(w)
		}
	}
	l.expireSubmitted()
	l.flushFinish()
	for _, id := range slices.Sorted(maps.Keys(l.moves)) {
		l.drive(l.moves[id])
	}
	l.pokeSources()
	if len(l.c.sweeps) > 0 && now.Sub(l.lastTidy) >= l.cfg.RetryInterval/10 {
		l.lastTidy = now
		l.proposeEntry(&shardv1.Entry{Body: &shardv1.Entry_Housekeeping{Housekeeping: &shardv1.Housekeeping{}}})
	}
}

// Submit proposes a multi-shard command that this shard coordinates. The answer
// is an EffectReply with the same origin. It returns a reply at once, and
// proposes nothing, if too many are under way.
func (l *Leader) Submit(origin uint64, cmd *kvv1.Command, claims []*shardv1.Claim) *kvv1.Reply {
	if len(l.submitted) >= l.cfg.MaxSubmitted {
		return retry(fmt.Sprintf("%v has %d multi-shard commands on their way to its log, its bound MaxSubmitted", l.c.cfg.Shard, len(l.submitted)))
	}
	l.submitted[origin] = l.now
	l.order = append(l.order, origin)
	l.proposeEntry(&shardv1.Entry{Body: &shardv1.Entry_Begin{Begin: &shardv1.Begin{Origin: origin, Propose: &shardv1.Propose{
		Attempt: &shardv1.Attempt{Coordinator: uint32(l.c.cfg.Shard)}, Command: cmd, Claims: claims,
	}}}})
	return nil
}

// expireSubmitted stops counting proposals that were lost on their way.
func (l *Leader) expireSubmitted() {
	for len(l.order) > 0 {
		origin := l.order[0]
		at, waits := l.submitted[origin]
		if waits && l.now.Sub(at) < 4*l.cfg.ProposalTimeout {
			return
		}
		delete(l.submitted, origin)
		l.order = l.order[1:]
	}
}

// Housekeep proposes an entry that advances log time, forgets handoffs that the
// oracle has finished with, and goes on with background deletion. The caller
// calls it every second or so.
func (l *Leader) Housekeep(epochKnownEverywhere keyspace.Epoch, forgetHandoffs []uint64) {
	l.proposeEntry(&shardv1.Entry{Body: &shardv1.Entry_Housekeeping{Housekeeping: &shardv1.Housekeeping{
		EpochKnownEverywhere: uint64(epochKnownEverywhere), ForgetHandoffs: forgetHandoffs,
	}}})
}

// Output returns, and forgets, the entries to propose and the messages to send,
// in order. The entries carry the time given to the call that made them. A
// proposal that is refused may be dropped: the leader makes it again when its
// time comes, except those of Submit and Housekeep.
func (l *Leader) Output() (propose []*shardv1.Entry, send []Outgoing) {
	propose, send = l.propose, l.sends
	l.propose, l.sends = nil, nil
	return propose, send
}

func (l *Leader) proposeEntry(e *shardv1.Entry) {
	e.TimeMillis = l.now.UnixMilli()
	l.propose = append(l.propose, e)
}

func (l *Leader) send(to keyspace.ShardID, m *shardv1.Message) {
	l.sends = append(l.sends, Outgoing{To: to, Message: m})
}
