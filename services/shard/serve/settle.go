// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"container/heap"
	"fmt"
	"slices"
	"time"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	"github.com/kolocate/kolocate/services/shard/core"
)

const (
	// maxAttempts bounds the tries of one command in this process.
	maxAttempts = 200
	// forwardedAttempts bounds them where another shard tries again too.
	forwardedAttempts = 8
	// minPause and maxPause bound the pause before a try.
	minPause = 2 * time.Millisecond
	maxPause = 64 * time.Millisecond
	// sweepInterval is how late a deadline may be noticed.
	sweepInterval = 20 * time.Millisecond
)

// enter notes where a request waits from now on, under a new origin: an answer
// to an earlier try must not end this one.
func (e *engine) enter(r *request, p place) {
	if r.origin != 0 {
		delete(e.requests, r.origin)
	}
	e.nextOrigin++
	if e.nextOrigin == 0 {
		e.nextOrigin++
	}
	r.origin, r.place = e.nextOrigin, p
	e.requests[r.origin] = r
}

// settle takes the answer to a try: it ends the request, or another try follows.
func (e *engine) settle(r *request, reply *kvv1.Reply, now time.Time) {
	switch reply.GetOutcome() {
	case kvv1.Outcome_OUTCOME_OK, kvv1.Outcome_OUTCOME_REJECTED:
		if r.hints != nil && r.forwarded {
			reply.Hints = r.hints // a reply of another shard is this process's own
		}
		e.finish(r, reply, now)
		return
	case kvv1.Outcome_OUTCOME_MOVED:
		e.guesses.learn(reply.GetHints())
		if r.redirects && !reply.GetMultiShard() && !r.forwarded {
			e.finish(r, reply, now)
			return
		}
		if r.attempts == 0 && r.hops == 0 {
			// The hints are fresh: try at once.
			r.attempts++
			e.dispatch(r, now)
			return
		}
	case kvv1.Outcome_OUTCOME_UNKNOWN:
		r.uncertain = true
		if !r.repeatable() || r.redirects && e.leader == nil {
			e.finish(r, reply, now)
			return
		}
	default:
		e.guesses.learn(reply.GetHints())
		if r.redirects && e.leader == nil {
			e.finish(r, reply, now)
			return
		}
	}
	e.pause(r, reply, now)
}

// pause lets a request wait for its next try, if there is to be one.
func (e *engine) pause(r *request, reply *kvv1.Reply, now time.Time) {
	limit := maxAttempts
	if r.hops > 0 {
		limit = forwardedAttempts
	}
	if r.attempts >= limit || e.draining.Load() {
		if r.uncertain {
			reply = unknownReply(reply.GetMessage())
		} else if reply.GetOutcome() == kvv1.Outcome_OUTCOME_MOVED && !r.redirects {
			reply = &kvv1.Reply{Outcome: kvv1.Outcome_OUTCOME_RETRY, Message: reply.GetMessage(), Hints: reply.GetHints()}
		}
		e.finish(r, reply, now)
		return
	}
	if r.attempts%4 == 3 {
		e.guesses.drop(r.vertices)
	}
	full := min(minPause<<min(r.attempts, 10), maxPause)
	r.attempts++
	e.metrics.retries.Inc()
	e.enter(r, placePause)
	r.forwarded = false
	r.due = now.Add(full/2 + time.Duration(e.random.Int64N(int64(full/2)+1)))
	heap.Push(&e.paused, r)
}

// park lets a request wait until a handoff to this shard commits.
func (e *engine) park(r *request, now time.Time) {
	if len(e.parked) >= e.config.Limits.MaxParked {
		r.reason = reasonBound
		e.settle(r, retryReply(fmt.Sprintf("%d commands wait for a handoff to commit, the bound MaxParked", len(e.parked))), now)
		return
	}
	e.enter(r, placeParked)
	e.parked = append(e.parked, r)
}

// handoff follows the handoffs of this shard.
func (e *engine) handoff(event *core.HandoffEvent, now time.Time) {
	e.observeHandoff(event)
	switch event.Step {
	case core.HandoffCommitted, core.HandoffTombstoned, core.HandoffRevoked:
		parked := e.parked
		e.parked = nil
		for _, r := range parked {
			if r.place == placeParked {
				e.dispatch(r, now)
			}
		}
	default:
	}
}

// finish answers the client.
func (e *engine) finish(r *request, reply *kvv1.Reply, now time.Time) {
	if r.place == placeDone {
		return
	}
	if r.origin != 0 {
		delete(e.requests, r.origin)
	}
	r.place = placeDone
	e.live.Add(-1)
	if !r.forwarded {
		e.metrics.observe(r, reply, now)
	}
	r.sink.put(r, reply)
	if n := len(e.dirty); n == 0 || e.dirty[n-1] != r.sink {
		e.dirty = append(e.dirty, r.sink)
	}
}

// expire answers a request whose time is over.
func (e *engine) expire(r *request, now time.Time) {
	r.reason = reasonDeadline
	switch {
	case r.place == placePeer:
		e.peers.Cancel(r.peer, r.origin)
		e.finish(r, unknownReply("the deadline came before "+r.peer.String()+" answered"), now)
	case r.place == placeLog || r.uncertain:
		e.finish(r, unknownReply("the deadline came before the command was applied"), now)
	default:
		e.finish(r, retryReply("the deadline came before the command could be run; it did not run"), now)
	}
}

// tick does what is due.
func (e *engine) tick(now time.Time) {
	for len(e.paused) > 0 && !e.paused[0].due.After(now) {
		r := heap.Pop(&e.paused).(*request) //nolint:errcheck,forcetypeassert // pause pushes nothing else
		if r.place == placePause {
			e.dispatch(r, now)
		}
	}
	if now.Sub(e.lastSweep) >= sweepInterval {
		e.lastSweep = now
		e.sweep(now)
		e.report()
		e.observeMoves()
	}
	if e.leader != nil && e.core.HasGenesis() {
		e.leader.Tick(now)
		if now.Sub(e.lastKeep) >= housekeepInterval {
			e.lastKeep = now
			e.housekeep(now)
		}
	}
}

// sweep ends the requests whose time is over.
func (e *engine) sweep(now time.Time) {
	var over []uint64
	for origin, r := range e.requests {
		if !now.Before(r.deadline) {
			over = append(over, origin)
		}
	}
	slices.Sort(over)
	for _, origin := range over {
		e.expire(e.requests[origin], now)
	}
	gone := 0
	for _, r := range e.parked {
		if r.place != placeParked {
			gone++
		}
	}
	if gone > 0 {
		kept := e.parked[:0]
		for _, r := range e.parked {
			if r.place == placeParked {
				kept = append(kept, r)
			}
		}
		clear(e.parked[len(kept):])
		e.parked = kept
	}
	for len(e.paused) > 0 && e.paused[0].place != placePause {
		heap.Pop(&e.paused)
	}
}

// pausedRequests is a heap with the request that is due first at its root.
type pausedRequests []*request

func (p pausedRequests) Len() int           { return len(p) }
func (p pausedRequests) Less(i, j int) bool { return p[i].due.Before(p[j].due) }
func (p pausedRequests) Swap(i, j int)      { p[i], p[j] = p[j], p[i] }

// Push is called by container/heap alone.
func (p *pausedRequests) Push(x any) { *p = append(*p, x.(*request)) } //nolint:errcheck,forcetypeassert // pause pushes nothing else

// Pop is called by container/heap alone.
func (p *pausedRequests) Pop() any {
	old := *p
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*p = old[:len(old)-1]
	return last
}
