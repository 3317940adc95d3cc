// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"time"

	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// work is what the leader keeps of an attempt beside the core's state.
type work struct {
	key   attemptKey
	phase attemptPhase // the core's, when the leader last acted on it
	since time.Time    // when that phase was first seen
	due   time.Time    // its timer; zero if none is set
	// At the coordinator.
	votes    map[keyspace.ShardID]*shardv1.Vote
	inputs   map[keyspace.ShardID]*shardv1.Input
	released map[keyspace.ShardID]bool
	others   []keyspace.ShardID
	// proposed is when the leader last proposed the attempt's next step here, and
	// decision when, as a participant, it last proposed the coordinator's decision.
	proposed, decision time.Time
}

type timer struct {
	at  time.Time
	key attemptKey
}

func timerLess(a, b timer) bool {
	if !a.at.Equal(b.at) {
		return a.at.Before(b.at)
	}
	return a.key.compare(b.key) < 0
}

// workOf returns the work of an attempt, new if there is none. Every work has a
// timer, so that it goes away when the core knows the attempt no more.
func (l *Leader) workOf(key attemptKey) *work {
	w := l.works[key]
	if w == nil {
		w = &work{key: key, since: l.now}
		l.works[key] = w
		l.wake(w, l.cfg.ProposalTimeout)
	}
	return w
}

func (l *Leader) wake(w *work, after time.Duration) {
	if !w.due.IsZero() {
		l.timers.Delete(timer{at: w.due, key: w.key})
	}
	w.due = l.now.Add(after)
	l.timers.Set(timer{at: w.due, key: w.key})
}

// mayPropose says that what was last proposed at *last has not been proposed
// lately, and notes that it is now.
func (l *Leader) mayPropose(last *time.Time) bool {
	if !last.IsZero() && l.now.Sub(*last) < l.cfg.ProposalTimeout {
		return false
	}
	*last = l.now
	return true
}

// advance acts on an attempt whose state in the core may have changed.
func (l *Leader) advance(key attemptKey) {
	a := l.c.pending[key]
	if a == nil {
		l.tellRetry(key)
		l.forget(key)
		return
	}
	w := l.workOf(key)
	was := w.phase
	if was == a.phase {
		return
	}
	w.phase, w.since, w.proposed = a.phase, l.now, time.Time{}
	if was >= attemptDecided && a.phase <= attemptHolding && key.coordinator == l.c.cfg.Shard {
		return // the others have been told; the timer tells them again
	}
	l.act(w, a)
}

// tellRetry tells those that wait for it that an attempt was decided retry. It
// is said once: who misses it asks.
func (l *Leader) tellRetry(key attemptKey) {
	w := l.works[key]
	if w == nil || key.coordinator != l.c.cfg.Shard || w.phase != attemptVoted {
		return
	}
	for _, other := range w.others {
		if v := w.votes[other]; v == nil || v.Kind == kvv1OK {
			l.send(other, decisionMessage(key, false, stamp{}))
		}
	}
}

func (l *Leader) forget(key attemptKey) {
	if w := l.works[key]; w != nil {
		if !w.due.IsZero() {
			l.timers.Delete(timer{at: w.due, key: key})
		}
		delete(l.works, key)
	}
}

// repeat is called when an attempt's timer runs out.
func (l *Leader) repeat(w *work) {
	a := l.c.pending[w.key]
	if a == nil {
		l.forget(w.key)
		return
	}
	if w.phase != a.phase {
		l.advance(w.key)
		return
	}
	l.act(w, a)
}

// act sends what an attempt's phase calls for and sets the timer to repeat it.
func (l *Leader) act(w *work, a *attempt) {
	switch {
	case w.key.coordinator == l.c.cfg.Shard:
		l.wake(w, l.cfg.RetryInterval)
		l.actCoordinator(w, a)
	case a.phase == attemptVoted:
		l.wake(w, l.cfg.InquiryAfter)
		if l.now.Sub(w.since) >= l.cfg.InquiryAfter {
			l.send(w.key.coordinator, &shardv1.Message{Body: &shardv1.Message_Inquiry{Inquiry: &shardv1.Inquiry{
				Attempt: w.key.proto(), Shard: uint32(l.c.cfg.Shard),
			}}})
		}
		l.send(w.key.coordinator, voteMessage(w.key, a.vote, kvv1OK, nil, nil))
	case a.phase == attemptHolding:
		l.wake(w, l.cfg.RetryInterval)
		l.send(w.key.coordinator, &shardv1.Message{Body: &shardv1.Message_Input{Input: l.c.input(a)}})
	default:
		l.wake(w, l.cfg.ProposalTimeout)
	}
}

func (l *Leader) actCoordinator(w *work, a *attempt) {
	others := a.others()
	w.others = others
	switch a.phase {
	case attemptVoted:
		if !l.decideIfDue(w, a) {
			l.sendPropose(w, a, others)
		}
	case attemptDecided, attemptDelivered, attemptHolding:
		l.proposeInputs(w, a)
		decision := decisionMessage(w.key, true, a.order)
		for _, other := range others {
			if w.inputs[other] == nil && a.inputs == nil {
				l.send(other, decision)
			}
		}
	case attemptExecuted:
		for _, r := range a.returns {
			if !w.released[r.to] {
				l.send(r.to, &shardv1.Message{Body: &shardv1.Message_Return{Return: r.message}})
			}
		}
		l.finishIfReleased(w, a)
	}
}

func (l *Leader) sendPropose(w *work, a *attempt, others []keyspace.ShardID) {
	m := &shardv1.Message{Body: &shardv1.Message_Propose{Propose: &shardv1.Propose{
		Attempt: w.key.proto(), Command: a.command, Claims: a.claims, FinishedBelow: l.c.finishedBelow(),
	}}}
	for _, other := range others {
		if w.votes[other] == nil {
			l.send(other, m)
		}
	}
}

// finishedBelow returns the mark below which all attempts coordinated here have
// ended everywhere or were decided retry.
func (c *Core) finishedBelow() uint64 {
	if oldest, _, some := c.coordinated.Min(); some {
		return oldest
	}
	return c.lastAttempt + 1
}

func decisionMessage(key attemptKey, ok bool, at stamp) *shardv1.Message {
	return &shardv1.Message{Body: &shardv1.Message_Decision{Decision: &shardv1.Decision{Attempt: key.proto(), Ok: ok, Timestamp: at.proto()}}}
}

// decideIfDue proposes the decision if all votes are there, one of them is not
// OK, or the time for votes is over. It says whether the decision is under way.
func (l *Leader) decideIfDue(w *work, a *attempt) bool {
	others := a.others()
	d := &shardv1.Decide{Reason: kvv1Retry}
	at, all, refused := a.vote, true, false
	for _, other := range others {
		v := w.votes[other]
		if v == nil {
			all = false
			continue
		}
		if s := stampOf(v.Timestamp); at.compare(s) < 0 {
			at = s
		}
		if v.Kind != kvv1OK {
			refused = true
			addReason(d, v)
		}
	}
	late := l.now.Sub(w.since) >= l.cfg.VoteTimeout
	if !all && !refused && !late {
		return false
	}
	if !l.mayPropose(&w.proposed) {
		return true
	}
	ok := all && !refused
	d.Decision = &shardv1.Decision{Attempt: w.key.proto(), Ok: ok, Timestamp: at.proto()}
	l.proposeEntry(&shardv1.Entry{Body: &shardv1.Entry_Decide{Decide: d}})
	return true
}

// addReason gathers why an attempt is to be tried again. That it has run already
// is the best of reasons.
func addReason(d *shardv1.Decide, v *shardv1.Vote) {
	d.Hints = append(d.Hints, v.Hints...)
	switch {
	case d.Reason == shardv1.VoteKind_VOTE_KIND_DONE:
	case v.Kind == shardv1.VoteKind_VOTE_KIND_DONE:
		d.Reason, d.Result = v.Kind, v.Result
	case v.Kind == shardv1.VoteKind_VOTE_KIND_IN_PROGRESS:
		d.Reason = v.Kind
	}
}

func (l *Leader) proposeInputs(w *work, a *attempt) {
	if a.inputs != nil || len(a.claims) == 1 {
		return
	}
	inputs := make([]*shardv1.Input, 0, len(a.claims)-1)
	for _, other := range a.others() {
		if w.inputs[other] == nil {
			return
		}
		inputs = append(inputs, w.inputs[other])
	}
	if l.mayPropose(&w.proposed) {
		l.proposeEntry(&shardv1.Entry{Body: &shardv1.Entry_Inputs{Inputs: &shardv1.Inputs{Attempt: w.key.proto(), Inputs: boundInputs(inputs)}}})
	}
}

func (l *Leader) finishIfReleased(w *work, a *attempt) {
	for _, r := range a.returns {
		if !w.released[r.to] {
			return
		}
	}
	if l.mayPropose(&w.proposed) {
		l.finish = append(l.finish, w.key.proto())
	}
}

// flushFinish proposes to forget the attempts released since the last tick, in
// one entry.
func (l *Leader) flushFinish() {
	if len(l.finish) > 0 {
		l.proposeEntry(&shardv1.Entry{Body: &shardv1.Entry_Finish{Finish: &shardv1.Finish{Attempts: l.finish}}})
		l.finish = nil
	}
}

func (l *Leader) onPropose(p *shardv1.Propose) {
	key := attemptKeyOf(p.GetAttempt())
	if key.coordinator == l.c.cfg.Shard || key.number == 0 || l.c.finished.has(key) {
		return
	}
	if a := l.c.pending[key]; a != nil {
		if a.phase == attemptVoted {
			l.send(key.coordinator, voteMessage(key, a.vote, kvv1OK, nil, nil))
		}
		return
	}
	if l.mayPropose(&l.workOf(key).proposed) {
		l.proposeEntry(&shardv1.Entry{Body: &shardv1.Entry_Begin{Begin: &shardv1.Begin{Propose: p}}})
	}
}

// ownAttempt returns an attempt that this shard coordinates, if it is pending.
func (l *Leader) ownAttempt(at *shardv1.Attempt) *attempt {
	key := attemptKeyOf(at)
	if key.coordinator != l.c.cfg.Shard {
		return nil
	}
	return l.c.pending[key]
}

func (l *Leader) onVote(v *shardv1.Vote) {
	a := l.ownAttempt(v.GetAttempt())
	from := keyspace.ShardID(v.GetShard())
	if a == nil {
		if v.GetKind() == kvv1OK {
			l.answerUnknown(from, attemptKeyOf(v.GetAttempt()))
		}
		return
	}
	if a.phase != attemptVoted || !a.claims1(from) {
		return
	}
	w := l.workOf(a.key)
	if w.votes == nil {
		w.votes = map[keyspace.ShardID]*shardv1.Vote{}
	}
	w.votes[from] = v
	l.decideIfDue(w, a)
}

func (l *Leader) onDecision(d *shardv1.Decision) {
	key := attemptKeyOf(d.GetAttempt())
	if key.coordinator == l.c.cfg.Shard || key.number == 0 || l.c.finished.has(key) {
		return
	}
	a := l.c.pending[key]
	if a != nil && a.phase != attemptVoted || a == nil && d.Ok {
		return
	}
	if l.mayPropose(&l.workOf(key).decision) {
		l.proposeEntry(&shardv1.Entry{Body: &shardv1.Entry_Decide{Decide: &shardv1.Decide{Decision: d}}})
	}
}

func (l *Leader) onInquiry(from keyspace.ShardID, q *shardv1.Inquiry) {
	key := attemptKeyOf(q.GetAttempt())
	if key.coordinator != l.c.cfg.Shard {
		return
	}
	switch a := l.c.pending[key]; {
	case a == nil:
		l.answerUnknown(from, key)
	case a.phase != attemptVoted:
		l.send(from, decisionMessage(key, true, a.order))
	}
}

// answerUnknown tells a participant that an attempt which this shard began and
// no longer knows was decided retry. It must be one of the log's: a leader that
// lags behind knows nothing of later ones.
func (l *Leader) answerUnknown(to keyspace.ShardID, key attemptKey) {
	if key.coordinator == l.c.cfg.Shard && key.number <= l.c.lastAttempt {
		l.send(to, decisionMessage(key, false, stamp{}))
	}
}

func (l *Leader) onInput(in *shardv1.Input) {
	a := l.ownAttempt(in.GetAttempt())
	from := keyspace.ShardID(in.GetShard())
	if a == nil || a.phase == attemptVoted || !a.claims1(from) {
		return
	}
	w := l.workOf(a.key)
	if a.phase == attemptExecuted {
		for _, r := range a.returns {
			if r.to == from && !w.released[from] {
				l.send(from, &shardv1.Message{Body: &shardv1.Message_Return{Return: r.message}})
			}
		}
		return
	}
	if w.inputs == nil {
		w.inputs = map[keyspace.ShardID]*shardv1.Input{}
	}
	w.inputs[from] = in
	l.proposeInputs(w, a)
}

func (l *Leader) onReturn(r *shardv1.Return) {
	key := attemptKeyOf(r.GetAttempt())
	a := l.c.pending[key]
	if a == nil {
		if l.c.finished.has(key) {
			l.send(key.coordinator, returnAckMessage(key, l.c.cfg.Shard))
		}
		return
	}
	if a.phase == attemptHolding && l.mayPropose(&l.workOf(key).proposed) {
		l.proposeEntry(&shardv1.Entry{Body: &shardv1.Entry_Return{Return: r}})
	}
}

func (l *Leader) onReturnAck(ack *shardv1.ReturnAck) {
	a := l.ownAttempt(ack.GetAttempt())
	if a == nil || a.phase != attemptExecuted {
		return
	}
	w := l.workOf(a.key)
	if w.released == nil {
		w.released = map[keyspace.ShardID]bool{}
	}
	w.released[keyspace.ShardID(ack.GetShard())] = true
	l.finishIfReleased(w, a)
}
