// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// move drives a handoff of which this shard is the source.
type move struct {
	handoff *shardv1.Handoff
	o       *outgoing // nil until the log holds the handoff
	copy    *handoffCopy

	offered   bool
	offerSent time.Time
	begun     time.Time // when the leader last proposed each step
	seal      time.Time
	done      time.Time
	revoke    time.Time

	sealedAt  time.Time
	pause     time.Duration
	final     *shardv1.HandoffFinal
	finalSent time.Time

	aborting  bool
	aborted   bool // the destination has its tombstone
	abortSent time.Time
	message   string
}

func (l *Leader) newMove(o *outgoing) *move {
	m := &move{handoff: o.handoff}
	l.adopt(m, o)
	if o.phase == outgoingSealed {
		m.sealedAt = l.now
	}
	return m
}

// adopt ties a move to the handoff in the log and, unless the log refused it,
// starts its copy.
func (l *Leader) adopt(m *move, o *outgoing) {
	m.o = o
	if !o.active() {
		return
	}
	rate := uint64(0)
	if m.copy != nil {
		rate = m.copy.rate
	}
	m.copy = newHandoffCopy(l.c, o, l.cfg, l.now)
	m.copy.rate = rate
}

// StartMove starts a handoff of which this shard is the source, or joins the one
// under way with the same id. Its progress is had from Progress.
func (l *Leader) StartMove(req *shardv1.MoveRequest, now time.Time) error {
	l.now = now
	h := req.GetHandoff()
	id := h.GetId()
	if id == 0 {
		return errors.New("start a move: the handoff has no id; let the oracle give it one")
	}
	if l.c.endedHandoff(id) {
		return fmt.Errorf("start handoff %d at %v: it has ended and is forgotten", id, l.c.cfg.Shard)
	}
	if m := l.moves[id]; m != nil {
		m.copy.rate = req.RateBytesPerSecond
		return nil
	}
	if l.c.outgoing[id] != nil {
		return nil
	}
	if reason := l.c.refuseOutgoing(h, newArea(h)); reason != "" {
		return errors.New(reason)
	}
	m := &move{handoff: h, copy: &handoffCopy{rate: req.RateBytesPerSecond}}
	l.moves[id] = m
	l.drive(m)
	return nil
}

// AbortMove takes a handoff back if it has not passed its point of no return. It
// returns at once; Progress tells the outcome.
func (l *Leader) AbortMove(id uint64, now time.Time) error {
	l.now = now
	m := l.moves[id]
	if m == nil || m.o != nil && !m.o.active() {
		return fmt.Errorf("abort handoff %d at %v: no such handoff is under way there", id, l.c.cfg.Shard)
	}
	m.aborting = true
	l.drive(m)
	return nil
}

// Progress returns the state of a handoff of which this shard is the source, or
// nil if it knows none of that id.
func (l *Leader) Progress(id uint64) *shardv1.MoveProgress {
	o, m := l.c.outgoing[id], l.moves[id]
	if o == nil && m == nil {
		return nil
	}
	p := &shardv1.MoveProgress{Id: id, Phase: shardv1.HandoffPhase_HANDOFF_PHASE_COPYING}
	if m != nil {
		p.KeysCopied, p.BytesCopied = m.copy.keysSent, m.copy.bytesSent
		p.Message = m.message
	}
	if o == nil {
		p.Message = "waiting for the log to take it"
		return p
	}
	switch o.phase {
	case outgoingSealed:
		p.Phase = shardv1.HandoffPhase_HANDOFF_PHASE_SEALED
	case outgoingDone:
		p.Phase = shardv1.HandoffPhase_HANDOFF_PHASE_DONE
		if m != nil {
			p.PauseMicros = uint64(max(m.pause, 0).Microseconds()) //nolint:gosec // not negative
		}
	case outgoingRevoked:
		p.Phase = shardv1.HandoffPhase_HANDOFF_PHASE_ABORTED
		if o.reason != "" {
			p.Message = o.reason
		}
	}
	return p
}

// Moves returns the progress of all handoffs of which this shard is the source
// and which are not forgotten, ascending by id.
func (l *Leader) Moves() []*shardv1.MoveProgress {
	var list []*shardv1.MoveProgress
	for _, id := range slices.Sorted(maps.Keys(l.c.outgoing)) {
		list = append(list, l.Progress(id))
	}
	return list
}

// handoffStep follows a handoff's steps in the log.
func (l *Leader) handoffStep(e *HandoffEvent) {
	o := l.c.outgoing[e.ID]
	if o == nil {
		return
	}
	m := l.moves[e.ID]
	switch {
	case m == nil && e.Step == HandoffBegun:
		m = l.newMove(o)
		l.moves[e.ID] = m
	case m == nil:
		return
	case m.o == nil:
		l.adopt(m, o)
	}
	if e.Step == HandoffSealed {
		m.sealedAt = l.now
	}
	l.drive(m)
}

// drive does what a handoff's state calls for. It may be called at any time.
func (l *Leader) drive(m *move) {
	if m.o == nil {
		if o := l.c.outgoing[m.handoff.Id]; o != nil {
			l.adopt(m, o)
		} else {
			if l.mayPropose(&m.begun) {
				l.proposeEntry(&shardv1.Entry{Body: &shardv1.Entry_HandoffBegin{HandoffBegin: &shardv1.HandoffBegin{Handoff: m.handoff}}})
			}
			return
		}
	}
	switch {
	case l.c.outgoing[m.handoff.Id] != m.o: // forgotten
		m.copy.stop(l.c)
		delete(l.moves, m.handoff.Id)
	case m.o.phase == outgoingDone:
		m.copy.stop(l.c)
	case m.o.phase == outgoingRevoked:
		m.copy.stop(l.c)
		l.driveAbort(m)
	case m.aborting:
		l.driveAbort(m)
	case !m.offered:
		l.repeatMessage(&m.offerSent, m, &shardv1.Message{Body: &shardv1.Message_HandoffOffer{HandoffOffer: &shardv1.HandoffOffer{
			Handoff: m.handoff, Attempt: l.cfg.Term,
		}}})
	default:
		l.driveCopy(m)
	}
}

// repeatMessage sends a message to the destination if it is due again.
func (l *Leader) repeatMessage(last *time.Time, m *move, message *shardv1.Message) {
	if !last.IsZero() && l.now.Sub(*last) < l.cfg.RetryInterval {
		return
	}
	*last = l.now
	l.send(keyspace.ShardID(m.handoff.To), message)
}

// driveCopy sends chunks, seals when little is left and ends with the final.
func (l *Leader) driveCopy(m *move) {
	if m.final == nil {
		l.sendChunks(m)
	}
	for _, chunk := range m.copy.due(l.now, l.cfg.RetryInterval) {
		l.sendChunk(m, chunk)
	}
	if m.o.phase == outgoingCopying {
		if m.copy.caughtUp() && l.mayPropose(&m.seal) {
			l.proposeEntry(&shardv1.Entry{Body: &shardv1.Entry_HandoffSeal{HandoffSeal: &shardv1.HandoffSeal{Id: m.handoff.Id}}})
		}
		return
	}
	if !m.o.drained {
		m.message = "waiting for commands on its vertices to end"
		return
	}
	if m.final == nil {
		if !m.copy.exhausted() {
			return
		}
		m.message = ""
		m.final = m.copy.finalDelta(m.handoff)
	}
	l.repeatMessage(&m.finalSent, m, &shardv1.Message{Body: &shardv1.Message_HandoffFinal{HandoffFinal: m.final}})
}

func (l *Leader) sendChunks(m *move) {
	for {
		chunk := m.copy.next(l.now)
		if chunk == nil {
			return
		}
		l.sendChunk(m, chunk)
	}
}

func (l *Leader) sendChunk(m *move, chunk *shardv1.HandoffChunk) {
	l.send(keyspace.ShardID(m.handoff.To), &shardv1.Message{Body: &shardv1.Message_HandoffChunk{HandoffChunk: chunk}})
}

// driveAbort takes a handoff back. Where a commit is possible, that is, once a
// seal may be in the log, the destination must first promise never to commit.
func (l *Leader) driveAbort(m *move) {
	if !m.aborted && m.o.reason == "" {
		l.repeatMessage(&m.abortSent, m, &shardv1.Message{Body: &shardv1.Message_HandoffAbort{HandoffAbort: &shardv1.HandoffAbort{Id: m.handoff.Id}}})
	}
	if !m.o.active() {
		return
	}
	m.message = "aborting: waiting for the destination's promise"
	unsealed := m.o.phase == outgoingCopying && m.seal.IsZero()
	if (unsealed || m.aborted) && l.mayPropose(&m.revoke) {
		l.proposeEntry(&shardv1.Entry{Body: &shardv1.Entry_HandoffRevoke{HandoffRevoke: &shardv1.HandoffRevoke{Id: m.handoff.Id}}})
	}
}

func (l *Leader) onChunkAck(from keyspace.ShardID, ack *shardv1.HandoffChunkAck) {
	if o := l.c.outgoing[ack.GetId()]; o != nil && o.phase == outgoingRevoked || l.c.endedHandoff(ack.GetId()) {
		l.send(from, &shardv1.Message{Body: &shardv1.Message_HandoffAbort{HandoffAbort: &shardv1.HandoffAbort{Id: ack.Id}}})
		return
	}
	m := l.moves[ack.GetId()]
	if m == nil || m.o == nil || ack.Attempt != l.cfg.Term {
		return
	}
	if ack.Refused != "" {
		m.message, m.aborting = ack.Refused, true
	} else {
		m.offered = true
		m.copy.acknowledge(ack.Next)
	}
	l.drive(m)
}

func (l *Leader) onCommitted(id uint64) {
	m := l.moves[id]
	if m == nil || m.o == nil || m.o.phase != outgoingSealed {
		return
	}
	if m.pause == 0 {
		m.pause = l.now.Sub(m.sealedAt)
	}
	m.aborting = false
	if l.mayPropose(&m.done) {
		l.proposeEntry(&shardv1.Entry{Body: &shardv1.Entry_HandoffDone{HandoffDone: &shardv1.HandoffDone{Id: id}}})
	}
}

func (l *Leader) onAborted(a *shardv1.HandoffAborted) {
	m := l.moves[a.GetId()]
	if m == nil || m.o == nil {
		return
	}
	if a.Committed {
		m.message = "too late to abort: the destination has committed"
		l.onCommitted(a.Id)
		return
	}
	m.aborted, m.aborting = true, true
	l.drive(m)
}
