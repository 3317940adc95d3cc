// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"time"

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
	// BurstBytes is what a rate-limited copy may send at once. Default 256 KiB.
	BurstBytes int
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
type Leader struct{}

// NewLeader returns the leader of c, which takes up what c's state leaves undone.
func NewLeader(c *Core, cfg LeaderConfig, now time.Time) *Leader { return &Leader{} }

// Applied takes the effects of one Apply. It must be called after each Apply,
// before the next. Replies are not its business: the caller answers them.
func (l *Leader) Applied(effects []Effect, now time.Time) {}

// Receive takes a message of another shard.
func (l *Leader) Receive(from keyspace.ShardID, m *shardv1.Message, now time.Time) {}

// Tick repeats what is due. Call it every 10 to 20 ms.
func (l *Leader) Tick(now time.Time) {}

// Submit proposes a multi-shard command that this shard coordinates. The answer
// is an EffectReply with the same origin. It returns a reply at once, and
// proposes nothing, if too many are under way.
func (l *Leader) Submit(origin uint64, cmd *kvv1.Command, claims []*shardv1.Claim) *kvv1.Reply {
	return nil
}

// StartMove starts a handoff of which this shard is the source, or joins the one
// under way with the same id. Its progress is had from Progress.
func (l *Leader) StartMove(req *shardv1.MoveRequest, now time.Time) error { return nil }

// AbortMove takes a handoff back if it has not passed its point of no return. It
// returns at once; Progress tells the outcome.
func (l *Leader) AbortMove(id uint64, now time.Time) error { return nil }

// Progress returns the state of a handoff of which this shard is the source, or
// nil if it knows none of that id.
func (l *Leader) Progress(id uint64) *shardv1.MoveProgress { return nil }

// Moves returns the progress of all handoffs of which this shard is the source
// and which are not forgotten, ascending by id.
func (l *Leader) Moves() []*shardv1.MoveProgress { return nil }

// Housekeep proposes an entry that advances log time, forgets handoffs that the
// oracle has finished with, and goes on with background deletion. The caller
// calls it every second or so.
func (l *Leader) Housekeep(epochKnownEverywhere keyspace.Epoch, forgetHandoffs []uint64) {}

// Output returns, and forgets, the entries to propose and the messages to send,
// in order. The caller sets nothing in the entries but their time: they carry
// the time given to the call that made them. A proposal that is refused may be
// dropped: the leader makes it again when its time comes.
func (l *Leader) Output() (propose []*shardv1.Entry, send []Outgoing) { return nil, nil }
