// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"time"

	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// stage is what the leader of a destination keeps of a handoff beside the log.
type stage struct {
	attempt uint64
	// next is the number of the chunk to propose next; chunks from the core's
	// number on are proposed and not yet applied.
	next uint64
	at   time.Time // of the last proposal of a chunk
	// heard is when the source was last heard of, or last poked.
	heard time.Time
	// When each of these was last proposed.
	offer, commit, tombstone time.Time
}

func (l *Leader) stageOf(id uint64) *stage {
	s := l.stages[id]
	if s == nil {
		s = &stage{}
		l.stages[id] = s
	}
	s.heard = l.now
	return s
}

// pokeSources tells the source of a handoff that has been silent for long how
// far it is here. A source that has given up the handoff answers with an abort,
// so nothing stays staged for ever because one message was lost.
func (l *Leader) pokeSources() {
	for _, in := range l.c.stagings {
		s := l.stages[in.handoff.Id]
		if s == nil {
			l.stageOf(in.handoff.Id)
		} else if l.now.Sub(s.heard) >= 2*l.cfg.ProposalTimeout {
			s.heard = l.now
			l.send(keyspace.ShardID(in.handoff.From), chunkAckMessage(in.handoff.Id, in.attempt, in.next, ""))
		}
	}
}

// answerEnded answers a message about a handoff that has come to its end here.
func (l *Leader) answerEnded(to keyspace.ShardID, id uint64) bool {
	in := l.c.incoming[id]
	if in == nil {
		return l.c.endedHandoff(id)
	}
	switch in.phase {
	case incomingCommitted:
		l.send(to, committedMessage(id))
	case incomingTombstoned:
		l.send(to, abortedMessage(id, false))
	default:
		return false
	}
	delete(l.stages, id)
	return true
}

func (l *Leader) onOffer(offer *shardv1.HandoffOffer) {
	h := offer.GetHandoff()
	from := keyspace.ShardID(h.GetFrom())
	if h.GetId() == 0 || l.answerEnded(from, h.Id) {
		return
	}
	in := l.c.incoming[h.Id]
	if in != nil && in.attempt >= offer.Attempt {
		if in.attempt == offer.Attempt {
			l.send(from, chunkAckMessage(h.Id, in.attempt, in.next, ""))
		}
		return
	}
	if in == nil && l.c.busyHere(h.Id, newArea(h)) {
		return
	}
	if l.mayPropose(&l.stageOf(h.Id).offer) {
		l.proposeEntry(&shardv1.Entry{Body: &shardv1.Entry_HandoffStage{HandoffStage: &shardv1.HandoffStage{Offer: offer}}})
	}
}

func (l *Leader) onChunk(chunk *shardv1.HandoffChunk) {
	in := l.c.incoming[chunk.GetId()]
	if in == nil || in.phase != incomingStaging || in.attempt != chunk.Attempt {
		return
	}
	if chunk.Number < in.next {
		l.send(keyspace.ShardID(in.handoff.From), chunkAckMessage(chunk.Id, in.attempt, in.next, ""))
		return
	}
	s := l.stageOf(chunk.Id)
	if s.attempt != in.attempt || s.next < in.next || l.now.Sub(s.at) >= l.cfg.ProposalTimeout {
		s.attempt, s.next = in.attempt, in.next
	}
	if chunk.Number != s.next || l.c.sweeping(in.area) || chunk.Checksum != chunkChecksum(chunk) {
		return
	}
	s.next++
	s.at = l.now
	l.proposeEntry(&shardv1.Entry{Body: &shardv1.Entry_HandoffStage{HandoffStage: &shardv1.HandoffStage{Chunk: chunk}}})
}

func (l *Leader) onFinal(f *shardv1.HandoffFinal) {
	if l.answerEnded(keyspace.ShardID(f.GetHandoff().GetFrom()), f.GetId()) {
		return
	}
	in := l.c.incoming[f.Id]
	if in == nil || in.attempt != f.Attempt || in.next != f.Chunks || l.c.sweeping(in.area) {
		return
	}
	if l.mayPropose(&l.stageOf(f.Id).commit) {
		l.proposeEntry(&shardv1.Entry{Body: &shardv1.Entry_HandoffCommit{HandoffCommit: f}})
	}
}

func (l *Leader) onAbort(from keyspace.ShardID, id uint64) {
	in := l.c.incoming[id]
	if in != nil && in.phase != incomingStaging {
		l.send(from, abortedMessage(id, in.phase == incomingCommitted))
		return
	}
	if id == 0 || l.c.endedHandoff(id) {
		return
	}
	if l.mayPropose(&l.stageOf(id).tombstone) {
		l.proposeEntry(&shardv1.Entry{Body: &shardv1.Entry_HandoffTombstone{HandoffTombstone: &shardv1.HandoffTombstone{Id: id}}})
	}
}
