// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// EffectKind says which fields of an Effect are set.
type EffectKind uint8

// The kinds of effects. Each names the fields it sets.
const (
	// EffectReply answers a command: Origin, Reply. Every replica emits it; the
	// process that chose the origin answers its client, the others drop it.
	EffectReply EffectKind = iota + 1
	// EffectSend is a message to another shard's leader: To, Message. Only the
	// Leader acts on it; a follower drops it.
	EffectSend
	// EffectExecuted reports a command that ran, for tracing: Executed. It is
	// built only while SetTracing is on.
	EffectExecuted
	// EffectHandoff reports a step of a handoff: Handoff.
	EffectHandoff
	// effectMPO tells the Leader that a multi-shard command went a step on.
	effectMPO
)

// Effect is one consequence of an applied entry. It is a struct and not an
// interface, so that the hot path does not allocate one for each reply. Its
// messages may be shared with the state: nobody may change them.
type Effect struct {
	Kind     EffectKind
	Origin   uint64
	Reply    *kvv1.Reply
	To       keyspace.ShardID
	Message  *shardv1.Message
	Executed *Executed
	Handoff  *HandoffEvent

	mpo attemptKey
}

// Executed describes a command that ran at this shard, for tracing. Every
// involved shard reports its own part of a multi-shard command; exactly one of
// them, the coordinator, has Coordinator set and names all vertices.
type Executed struct {
	Vertices    []keyspace.Vertex
	MultiShard  bool
	Coordinator bool
	ReadOnly    bool
	// BytesWritten counts keys and values written at this shard.
	BytesWritten int
}

// HandoffStep is what happened to a handoff at this shard.
type HandoffStep uint8

// The steps of a handoff, in order, at the source (S) and the destination (D).
const (
	// HandoffBegun (S): the log holds the handoff; copying starts.
	HandoffBegun HandoffStep = iota + 1
	// HandoffRefused (S, D): the shard can't take part; Reason says why.
	HandoffRefused
	// HandoffSealed (S): new commands on the vertices are answered MOVED.
	HandoffSealed
	// HandoffDrained (S): nothing queued, held or pending touches the vertices.
	HandoffDrained
	// HandoffStaged (D): an offer or a chunk is in the log.
	HandoffStaged
	// HandoffCommitted (D): the shard owns the vertices; commands parked for
	// them may be proposed.
	HandoffCommitted
	// HandoffDone (S): the destination owns the vertices, and this log says so.
	HandoffDone
	// HandoffRevoked (S): aborted; the vertices are owned and served again.
	HandoffRevoked
	// HandoffTombstoned (D): aborted; the vertices will not come by this handoff.
	HandoffTombstoned
)

var handoffStepNames = [...]string{
	"none", "begun", "refused", "sealed", "drained", "staged", "committed", "done", "revoked", "tombstoned",
}

// String returns the step's name.
func (s HandoffStep) String() string { return handoffStepNames[s] }

// HandoffEvent reports a step of a handoff.
type HandoffEvent struct {
	ID      uint64
	Step    HandoffStep
	Handoff *shardv1.Handoff
	Reason  string
}

func replyEffect(origin uint64, reply *kvv1.Reply) Effect {
	return Effect{Kind: EffectReply, Origin: origin, Reply: reply}
}

func sendEffect(to keyspace.ShardID, m *shardv1.Message) Effect {
	return Effect{Kind: EffectSend, To: to, Message: m}
}
