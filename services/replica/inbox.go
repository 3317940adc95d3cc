// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"sync"
	"time"

	"go.etcd.io/raft/v3/raftpb"
)

// Names of the bounds that ErrQueueFull reports.
const (
	boundProposals = "max-pending-proposals"
	boundBytes     = "max-pending-bytes"
	boundReads     = "max-pending-reads"
	boundRuns      = "max-pending-runs"
)

// maxRoundBytes bounds the proposals that one Ready takes.
const maxRoundBytes = 8 << 20

// proposal is data that waits to be appended, with who waits for it, if anyone.
type proposal struct {
	data   []byte
	waiter *waiter
}

// inbox is what the Raft goroutine has to take in. Everything in it is bounded; whoever puts something
// in never waits.
type inbox struct {
	// wake holds a token when something may be in the inbox.
	wake chan struct{}

	mu      sync.Mutex
	stopped bool
	// leads is the term in which this replica leads by Raft's word, announced the one in which the
	// state machine was told so; proposals are taken while both are the same and not 0.
	leads, announced uint64

	proposals     []proposal
	proposalBytes int64
	// oldest is when the first of the proposals came.
	oldest time.Time
	reads  []*pendingRead

	messages     []*raftpb.Message
	messageBytes int64
	// controls come from the host itself: a few at a time.
	controls []func(*Node) error

	maxProposals int
	maxBytes     int64
}

// batch is what one round of the Raft goroutine takes in.
type batch struct {
	proposals []proposal
	oldest    time.Time
	reads     []*pendingRead
	messages  []*raftpb.Message
	controls  []func(*Node) error
}

func newInbox(maxProposals int, maxBytes int64) *inbox {
	return &inbox{wake: make(chan struct{}, 1), maxProposals: maxProposals, maxBytes: maxBytes}
}

// signal wakes the Raft goroutine.
func (b *inbox) signal() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// leading says whether proposals and reads are taken. The lock is held.
func (b *inbox) leading() bool { return b.leads != 0 && b.leads == b.announced }

// propose enqueues a proposal.
func (b *inbox) propose(p proposal) error {
	b.mu.Lock()
	switch {
	case b.stopped:
		b.mu.Unlock()
		return ErrStopped
	case !b.leading():
		b.mu.Unlock()
		return ErrNotLeader
	case len(b.proposals) >= b.maxProposals:
		b.mu.Unlock()
		return ErrQueueFull{Bound: boundProposals, Limit: int64(b.maxProposals)}
	case b.proposalBytes > 0 && b.proposalBytes+int64(len(p.data)) > b.maxBytes:
		b.mu.Unlock()
		return ErrQueueFull{Bound: boundBytes, Limit: b.maxBytes}
	}
	first := len(b.proposals) == 0
	if first {
		b.oldest = time.Now()
	}
	b.proposals = append(b.proposals, p)
	b.proposalBytes += int64(len(p.data))
	b.mu.Unlock()
	if first {
		b.signal()
	}
	return nil
}

// read enqueues a read.
func (b *inbox) read(r *pendingRead) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.stopped:
		return ErrStopped
	case !b.leading():
		return ErrNotLeader
	case len(b.reads) >= b.maxProposals:
		return ErrQueueFull{Bound: boundReads, Limit: int64(b.maxProposals)}
	}
	b.reads = append(b.reads, r)
	b.signal()
	return nil
}

// message enqueues a message from a peer. It says false, and drops it, if there is no room.
func (b *inbox) message(m *raftpb.Message) bool {
	size := int64(entryOverhead)
	for _, e := range m.GetEntries() {
		size += int64(len(e.GetData())) + entryOverhead
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped || len(b.messages) > 0 && b.messageBytes+size > b.maxBytes {
		return false
	}
	b.messages = append(b.messages, m)
	b.messageBytes += size
	b.signal()
	return true
}

// control enqueues something to be done with the node between two rounds.
func (b *inbox) control(fn func(*Node) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return
	}
	b.controls = append(b.controls, fn)
	b.signal()
}

// take moves out messages and controls. The slices of out are reused.
func (b *inbox) take(out *batch) {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(out.messages)
	clear(out.controls)
	out.messages, b.messages = b.messages, out.messages[:0]
	out.controls, b.controls = b.controls, out.controls[:0]
	b.messageBytes = 0
}

// takeRequests moves out the reads, and proposals up to a round's worth, or none if they are to wait.
// The slices of out are reused.
func (b *inbox) takeRequests(out *batch, proposals bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(out.reads)
	out.reads, b.reads = b.reads, out.reads[:0]
	clear(out.proposals)
	out.proposals = out.proposals[:0]
	if !proposals || len(b.proposals) == 0 {
		return
	}
	out.oldest = b.oldest
	if b.proposalBytes <= maxRoundBytes {
		out.proposals, b.proposals = b.proposals, out.proposals
		b.proposalBytes = 0
		return
	}
	n, size := 0, 0
	for ; n < len(b.proposals) && (n == 0 || size+len(b.proposals[n].data) <= maxRoundBytes); n++ {
		size += len(b.proposals[n].data)
	}
	out.proposals = append(out.proposals, b.proposals[:n]...)
	rest := copy(b.proposals, b.proposals[n:])
	clear(b.proposals[rest:])
	b.proposals = b.proposals[:rest]
	b.proposalBytes -= int64(size)
	b.signal()
}

// setLeads takes over Raft's word on leadership: the term led in, 0 for none. It returns what was
// waiting in an earlier leadership.
func (b *inbox) setLeads(term uint64) ([]proposal, []*pendingRead) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.leads == term {
		return nil, nil
	}
	b.leads = term
	proposals, reads := b.proposals, b.reads
	b.proposals, b.proposalBytes, b.reads = nil, 0, nil
	return proposals, reads
}

// announce opens the inbox for proposals in the term, unless leadership is lost already.
func (b *inbox) announce(term uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.announced = term
}

// refuse takes nothing in from now on.
func (b *inbox) refuse() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
}

// stop refuses everything from now on and returns what was waiting.
func (b *inbox) stop() ([]proposal, []*pendingRead) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	b.leads = 0
	proposals, reads := b.proposals, b.reads
	b.proposals, b.reads, b.messages, b.controls = nil, nil, nil, nil
	return proposals, reads
}

// canLead says whether this replica leads and was announced, and in which term.
func (b *inbox) canLead() (uint64, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.announced, b.leading()
}

// length is the number of proposals waiting.
func (b *inbox) length() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.proposals)
}
