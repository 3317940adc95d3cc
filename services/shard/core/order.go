// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// begin logs that a multi-shard command has been proposed (DESIGN 3.4, steps 1
// and 2).
func (c *Core) begin(e *shardv1.Begin) {
	p := e.GetPropose()
	if p.GetAttempt().GetNumber() == 0 {
		c.coordinate(e.Origin, p)
		return
	}
	c.participate(p)
}

// coordinate begins an attempt of which this shard is the coordinator. It gives
// the attempt its number, so that (coordinator, number) is unique for ever.
func (c *Core) coordinate(origin uint64, p *shardv1.Propose) {
	if r := c.refuseBegin(p); r != nil {
		r.MultiShard = true
		c.reply(origin, r)
		return
	}
	c.lastAttempt++
	a := newAttempt(attemptKey{coordinator: c.cfg.Shard, number: c.lastAttempt}, p, c.cfg.Shard)
	a.origin = origin
	c.coordinated.Set(a.key.number, struct{}{})
	c.openAttempt(a)
}

// refuseBegin answers a command that this shard won't coordinate now.
func (c *Core) refuseBegin(p *shardv1.Propose) *kvv1.Reply {
	if err := Validate(p.GetCommand()); err != nil {
		return rejected(err.Error())
	}
	if problem := checkClaims(p, c.cfg.Shard); problem != "" {
		return rejected("check the claims of a multi-shard command: " + problem)
	}
	if !PureRead(p.Command) {
		if r := c.known(p.Command); r != nil {
			return r
		}
	}
	if len(c.pending) >= c.cfg.MaxPending {
		return retry(fmt.Sprintf("%v has %d multi-shard commands under way, its bound MaxPending", c.cfg.Shard, len(c.pending)))
	}
	if oldest, _, some := c.coordinated.Min(); some && c.lastAttempt-oldest >= c.cfg.MaxAttemptWindow {
		return retry(fmt.Sprintf("%v waits for a shard to end its attempt %d; it is %d attempts on, its bound MaxAttemptWindow", c.cfg.Shard, oldest, c.lastAttempt-oldest))
	}
	kind, hints, _ := c.judge(newAttempt(attemptKey{}, p, c.cfg.Shard))
	switch {
	case kind == kvv1Retry && len(hints) > 0:
		return &kvv1.Reply{Outcome: kvv1.Outcome_OUTCOME_MOVED, Hints: hints, Message: fmt.Sprintf("not all that is claimed of %v is there", c.cfg.Shard)}
	case kind != kvv1OK:
		return retry(fmt.Sprintf("%v does not serve all that is claimed of it at the moment", c.cfg.Shard))
	}
	return nil
}

const (
	kvv1OK    = shardv1.VoteKind_VOTE_KIND_OK
	kvv1Retry = shardv1.VoteKind_VOTE_KIND_RETRY
)

// openAttempt gives an attempt this shard's vote.
func (c *Core) openAttempt(a *attempt) {
	c.clock++
	a.vote = stamp{clock: c.clock, shard: c.cfg.Shard}
	a.order, a.phase = a.vote, attemptVoted
	c.pending[a.key] = a
	c.undelivered.Set(a)
	if !PureRead(a.command) {
		c.enterProgress(a.command)
	}
	c.emitAttempt(a)
}

func (c *Core) emitAttempt(a *attempt) {
	c.emit(Effect{Kind: effectMPO, Origin: a.origin, mpo: a.key})
}

// participate begins an attempt that another shard coordinates, and votes.
func (c *Core) participate(p *shardv1.Propose) {
	key := attemptKeyOf(p.Attempt)
	if key.coordinator == c.cfg.Shard || !isShard(uint32(key.coordinator)) {
		return
	}
	c.raiseFinished(key.coordinator, p.FinishedBelow)
	if c.finished.has(key) {
		return
	}
	if a := c.pending[key]; a != nil {
		c.emitAttempt(a)
		return
	}
	if Validate(p.GetCommand()) != nil || checkClaims(p, key.coordinator) != "" {
		c.clock++
		c.sendVote(key, kvv1Retry, nil, nil)
		return
	}
	a := newAttempt(key, p, c.cfg.Shard)
	if kind, hints, result := c.judge(a); kind != kvv1OK {
		c.clock++
		c.sendVote(key, kind, hints, result)
		return
	}
	c.openAttempt(a)
}

// raiseFinished learns that a coordinator has ended all attempts below a number.
// One of them that is still pending here was decided retry: had it been decided
// ok, the coordinator would have waited for this shard to release it.
func (c *Core) raiseFinished(coordinator keyspace.ShardID, below uint64) {
	if !c.finished.raise(coordinator, below) {
		return
	}
	for _, a := range c.pendingSorted() {
		if a.key.coordinator == coordinator && a.key.number < below && a.phase == attemptVoted {
			c.dropAttempt(a)
		}
	}
	c.deliver()
}

// judge says how this shard votes on an attempt, and why if not OK.
func (c *Core) judge(a *attempt) (shardv1.VoteKind, []*kvv1.Hint, *kvv1.Result) {
	if !PureRead(a.command) {
		if r := c.known(a.command); r != nil {
			switch {
			case r.Outcome == kvv1.Outcome_OUTCOME_OK:
				return shardv1.VoteKind_VOTE_KIND_DONE, nil, r.Result
			case r.Outcome == kvv1.Outcome_OUTCOME_RETRY:
				return shardv1.VoteKind_VOTE_KIND_IN_PROGRESS, nil, nil
			default:
				return kvv1Retry, nil, nil
			}
		}
	}
	if len(c.pending) >= c.cfg.MaxPending {
		return kvv1Retry, nil, nil
	}
	if isRangeScan(a.command) {
		return c.judgeRangeScan(a)
	}
	if r := c.refuse(a.vertices); r != nil {
		if r.Outcome == kvv1.Outcome_OUTCOME_MOVED {
			return kvv1Retry, r.Hints, nil
		}
		return kvv1Retry, nil, nil
	}
	return kvv1OK, nil, nil
}

// judgeRangeScan: a scan over all shards must not pass between the two ends of a
// handoff, and must claim every shard that something of this one went to.
func (c *Core) judgeRangeScan(a *attempt) (shardv1.VoteKind, []*kvv1.Hint, *kvv1.Result) {
	if c.sealedAny() {
		return kvv1Retry, nil, nil
	}
	set := map[keyspace.ShardID]struct{}{}
	c.owner.successors(set)
	for to := range set {
		if to != c.cfg.Shard && !a.claims1(to) {
			return kvv1Retry, nil, nil
		}
	}
	return kvv1OK, nil, nil
}

func (c *Core) sendVote(key attemptKey, kind shardv1.VoteKind, hints []*kvv1.Hint, result *kvv1.Result) {
	c.send(key.coordinator, voteMessage(key, stamp{clock: c.clock, shard: c.cfg.Shard}, kind, hints, result))
}

func voteMessage(key attemptKey, at stamp, kind shardv1.VoteKind, hints []*kvv1.Hint, result *kvv1.Result) *shardv1.Message {
	return &shardv1.Message{Body: &shardv1.Message_Vote{Vote: &shardv1.Vote{
		Attempt: key.proto(), Shard: uint32(at.shard), Kind: kind, Timestamp: at.proto(), Hints: hints, Result: result,
	}}}
}

// decide logs the coordinator's decision (DESIGN 3.4, step 3). Only the first
// one of an attempt counts.
func (c *Core) decide(e *shardv1.Decide) {
	d := e.GetDecision()
	key, at := attemptKeyOf(d.GetAttempt()), stampOf(d.GetTimestamp())
	c.clock = max(c.clock, at.clock)
	a := c.pending[key]
	if a == nil {
		// A retry that overtook its Begin: the late Begin must find the tombstone.
		if !d.GetOk() && key.coordinator != c.cfg.Shard && isShard(uint32(key.coordinator)) {
			c.finished.add(key)
		}
		return
	}
	if a.phase != attemptVoted {
		return
	}
	if d.GetOk() {
		c.undelivered.Delete(a)
		a.order, a.phase = at, attemptDecided
		c.undelivered.Set(a)
		c.emitAttempt(a)
	} else {
		c.dropAttempt(a)
		if a.key.coordinator == c.cfg.Shard {
			c.replyRetry(a, e)
		}
		c.emitAttempt(a)
	}
	c.deliver()
}

// dropAttempt makes an undecided attempt a no-op here.
func (c *Core) dropAttempt(a *attempt) {
	c.undelivered.Delete(a)
	c.endAttempt(a)
}

// endAttempt forgets an attempt that no message of its own can need again.
func (c *Core) endAttempt(a *attempt) {
	delete(c.pending, a.key)
	if a.phase != attemptExecuted && !PureRead(a.command) {
		c.leaveProgress(a.command)
	}
	if a.key.coordinator == c.cfg.Shard {
		c.coordinated.Delete(a.key.number)
	} else {
		c.finished.add(a.key)
	}
}

// replyRetry tells the client why its command did not run, or what it did when
// it ran before.
func (c *Core) replyRetry(a *attempt, e *shardv1.Decide) {
	r := &kvv1.Reply{MultiShard: true}
	switch {
	case e.Reason == shardv1.VoteKind_VOTE_KIND_DONE && e.Result != nil:
		r.Outcome, r.Result = kvv1.Outcome_OUTCOME_OK, e.Result
	case e.Reason == shardv1.VoteKind_VOTE_KIND_IN_PROGRESS:
		r.Outcome, r.Message = kvv1.Outcome_OUTCOME_RETRY, "the same command is in progress"
	case len(e.Hints) > 0:
		r.Outcome, r.Hints, r.Message = kvv1.Outcome_OUTCOME_MOVED, e.Hints, "keys of the command have moved"
	default:
		r.Outcome, r.Message = kvv1.Outcome_OUTCOME_RETRY, "a shard of the command did not vote in time, or its keys are moving"
	}
	c.reply(a.origin, r)
}

// deliver takes attempts in the order of their timestamps (DESIGN 3.4, step 4):
// one is delivered when no other begun here may still get a smaller timestamp.
func (c *Core) deliver() {
	for {
		a, some := c.undelivered.Min()
		if !some || a.phase != attemptDecided {
			break
		}
		c.undelivered.Delete(a)
		a.phase = attemptDelivered
		u := &unit{
			command: a.command, vertices: a.vertices, attempt: a,
			ranged: isRangeScan(a.command), reads: PureRead(a.command),
		}
		c.queues.add(u)
		c.queues.ready = append(c.queues.ready, u)
	}
	c.pump()
}
