// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bytes"
	"fmt"
	"time"

	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
)

// batch gathers the single-shard commands of one round into log entries.
type batch struct {
	commands []*shardv1.Submitted
	requests []*request
	bytes    int
	// slab is where the next Submitted come from: one allocation for many.
	slab []shardv1.Submitted
}

const slabCommands = 64

func (b *batch) add(r *request) {
	if len(b.slab) == 0 {
		b.slab = make([]shardv1.Submitted, slabCommands)
	}
	s := &b.slab[0]
	b.slab = b.slab[1:]
	s.Origin, s.Command = r.origin, r.command
	b.commands = append(b.commands, s)
	b.requests = append(b.requests, r)
	b.bytes += r.size
}

func (b *batch) reset() {
	b.commands = nil // the log entry keeps it
	clear(b.requests)
	b.requests = b.requests[:0]
	b.bytes = 0
}

// propose1 puts a single-shard command into the batch of this round.
func (e *engine) propose1(r *request, now time.Time) {
	if e.leader == nil {
		e.settle(r, retryReply("this replica leads no longer"), now)
		return
	}
	limits := &e.config.Limits
	if n := len(e.batch.commands); n >= limits.MaxBatchCommands || n > 0 && e.batch.bytes+r.size > limits.MaxBatchBytes {
		e.proposeBatch(now)
	}
	e.enter(r, placeLog)
	e.batch.add(r)
}

// proposeBatch proposes the batch as one log entry.
func (e *engine) proposeBatch(now time.Time) {
	if len(e.batch.commands) == 0 {
		return
	}
	err := e.propose(&shardv1.Entry{
		TimeMillis: now.UnixMilli(),
		Body:       &shardv1.Entry_Commands{Commands: &shardv1.Commands{Commands: e.batch.commands}},
	})
	if err == nil {
		e.batch.reset()
		return
	}
	refused := append([]*request(nil), e.batch.requests...)
	e.batch.reset()
	e.metrics.refusedProposals.Inc()
	for _, r := range refused {
		if r.place == placeLog {
			e.settle(r, retryReply(fmt.Sprintf("the command was not proposed: %v", err)), now)
		}
	}
}

// ownEntries are the entries proposed in this leadership and not applied yet, in
// the order in which they were proposed: the log keeps that order, so that they
// need not be decoded. The encoded form tells whether it is the same entry.
type ownEntries struct {
	queue   []ownEntry
	decoded uint64 // entries that had to be decoded
}

type ownEntry struct {
	data  []byte
	entry *shardv1.Entry
}

func (o *ownEntries) push(data []byte, entry *shardv1.Entry) {
	o.queue = append(o.queue, ownEntry{data: data, entry: entry})
}

// pop returns the entry that was proposed here with this encoded form, or nil.
// Those before it never came into the log.
func (o *ownEntries) pop(data []byte) *shardv1.Entry {
	for len(o.queue) > 0 {
		first := o.queue[0]
		o.queue[0] = ownEntry{}
		o.queue = o.queue[1:]
		if bytes.Equal(first.data, data) {
			return first.entry
		}
	}
	o.queue = nil
	o.decoded++
	return nil
}

func (o *ownEntries) reset() { o.queue = nil }
