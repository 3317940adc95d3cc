// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
	"github.com/kolocate/kolocate/services/replica"
	"github.com/kolocate/kolocate/services/shard/core"
	"github.com/kolocate/kolocate/services/shard/serve/peers"
)

// tickInterval is the grain of pauses and of the Leader's repetitions.
const tickInterval = 5 * time.Millisecond

// intake gathers what other goroutines have for the apply goroutine. It is
// bounded: requests by Limits.MaxRequests, messages by Limits.MaxInbox, answers
// by the requests that were passed on.
type intake struct {
	wake     chan struct{}
	maxInbox int

	mu       sync.Mutex
	requests []*request
	messages []peerMessage
	answers  []peers.Answer
}

type peerMessage struct {
	from    keyspace.ShardID
	message *shardv1.Message
}

func (q *intake) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *intake) addRequests(requests []*request) {
	q.mu.Lock()
	q.requests = append(q.requests, requests...)
	q.mu.Unlock()
	q.signal()
}

// addMessages takes messages, or drops them at the bound: they will be repeated.
func (q *intake) addMessages(from keyspace.ShardID, messages []*shardv1.Message) {
	q.mu.Lock()
	for _, m := range messages {
		if len(q.messages) >= q.maxInbox {
			break
		}
		q.messages = append(q.messages, peerMessage{from: from, message: m})
	}
	q.mu.Unlock()
	q.signal()
}

func (q *intake) addAnswers(answers []peers.Answer) {
	if len(answers) == 0 {
		return
	}
	q.mu.Lock()
	q.answers = append(q.answers, answers...)
	q.mu.Unlock()
	q.signal()
}

// taken is what one round on the apply goroutine takes in; its slices are reused.
type taken struct {
	requests []*request
	messages []peerMessage
	answers  []peers.Answer
}

func (q *intake) take(t *taken) {
	clear(t.requests)
	clear(t.messages)
	clear(t.answers)
	q.mu.Lock()
	defer q.mu.Unlock()
	t.requests, q.requests = q.requests, t.requests[:0]
	t.messages, q.messages = q.messages, t.messages[:0]
	t.answers, q.answers = q.answers, t.answers[:0]
}

// drive brings to the apply goroutine what waits, and the time, until ctx ends.
func (e *engine) drive(ctx context.Context) {
	ticker := time.NewTicker(tickInterval)
	defer ticker.Stop()
	var in taken
	lastTick := time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.intake.wake:
		case <-ticker.C:
		}
		e.intake.take(&in)
		err := e.host.Run(func() { //nolint:contextcheck // the function does not wait
			now := time.Now()
			e.takeIn(&in, now)
			if now.Sub(lastTick) >= tickInterval {
				lastTick = now
				e.tick(now)
			}
			e.finishRound(now)
		})
		if err == nil {
			continue
		}
		if errors.Is(err, replica.ErrStopped) {
			e.refuse(&in, "the replica is stopping")
			return
		}
		e.refuse(&in, err.Error())
		e.intake.addAnswers(in.answers)
	}
}

// accept takes requests that have passed prepare. Those over a bound, malformed,
// or too late are answered at once. It may be called from any goroutine.
func (e *engine) accept(requests []*request) {
	leading := e.term.Load().leading
	var reads []*request
	kept := requests[:0]
	for _, r := range requests {
		if live := e.live.Add(1); live > int64(e.config.Limits.MaxRequests) {
			r.reason = reasonBound
			e.turnAway(r, retryReply(fmt.Sprintf("%v has %d commands under way, its bound MaxRequests", e.config.Shard, live-1)))
			continue
		}
		if e.draining.Load() {
			e.turnAway(r, retryReply("the replica is stopping"))
			continue
		}
		if err := core.Validate(r.command); err != nil {
			e.turnAway(r, &kvv1.Reply{Outcome: kvv1.Outcome_OUTCOME_REJECTED, Message: err.Error()})
			continue
		}
		if leading && r.reads && len(r.vertices) == 1 {
			r.place = placeRead
			reads = append(reads, r)
			continue
		}
		kept = append(kept, r)
	}
	if len(reads) > 0 {
		e.reads.add(reads...)
	}
	if len(kept) > 0 {
		e.intake.addRequests(kept)
	}
}

// turnAway answers a request that was not taken in.
func (e *engine) turnAway(r *request, reply *kvv1.Reply) {
	r.place = placeDone
	e.live.Add(-1)
	r.sink.put(r, reply)
	r.sink.flush()
}

// refuse answers what could not be brought to the apply goroutine.
func (e *engine) refuse(in *taken, why string) {
	for _, r := range in.requests {
		e.turnAway(r, retryReply(why))
	}
}

// read runs linearizable reads, as many as wait at a time, until ctx ends.
func (e *engine) read(ctx context.Context) {
	var batch []*request
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.reads.wake:
		}
		batch = e.reads.take(batch)
		if len(batch) == 0 {
			continue
		}
		bound, cancel := context.WithTimeout(ctx, readTimeout)
		err := e.host.Read(bound, func() { e.runReads(batch, time.Now()) })
		cancel()
		if err == nil {
			continue
		}
		if errors.Is(err, replica.ErrStopped) {
			e.refuse(&taken{requests: batch}, "the replica is stopping")
			return
		}
		// They are classified anew: this replica may lead no longer.
		for _, r := range batch {
			r.attempts++
		}
		e.intake.addRequests(batch)
	}
}

// readTimeout bounds one round of reads.
const readTimeout = time.Second

// readQueue holds the reads that wait for the next round.
type readQueue struct {
	wake chan struct{}

	mu       sync.Mutex
	requests []*request
}

func (q *readQueue) add(requests ...*request) {
	q.mu.Lock()
	q.requests = append(q.requests, requests...)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *readQueue) take(reuse []*request) []*request {
	clear(reuse)
	q.mu.Lock()
	defer q.mu.Unlock()
	taken := q.requests
	q.requests = reuse[:0]
	return taken
}
