// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"fmt"
	"time"

	"go.etcd.io/raft/v3/raftpb"
)

// raftState is what the Raft goroutine keeps beside the node.
type raftState struct {
	in batch
	// waiting are the waiters of proposals not committed yet, in log order.
	waiting []*waiter
	// proposed are those proposed in this round, waiting for their index; nil for who does not wait.
	proposed []*waiter
	// rounds are the last index and the begin of rounds not committed yet, to measure them.
	rounds []round
	// reads are those waiting for a quorum, by the id of their batch.
	reads  map[uint64][]*pendingRead
	readID uint64
	// told is the leadership last passed to the apply goroutine.
	told Leadership
	// led is the term in which this replica leads by Raft's word.
	led uint64
}

type round struct {
	last  uint64
	began time.Time
}

// raftLoop is the Raft goroutine.
func (h *Host) raftLoop() {
	defer close(h.raftDone)
	s := &raftState{reads: map[uint64][]*pendingRead{}}
	defer h.endRaft(s)
	ticker := time.NewTicker(h.cfg.TickInterval)
	defer ticker.Stop()
	// A sole member has begun its election when it was opened.
	if err := h.processAll(s); err != nil {
		h.fail(err)
		return
	}
	for {
		select {
		case <-h.stop:
			return
		case <-ticker.C:
			h.node.Tick()
		case <-h.inbox.wake:
		}
		if err := h.round(s); err != nil {
			h.fail(err)
			return
		}
	}
}

// endRaft passes the loss of leadership on, as the last thing the apply goroutine does.
func (h *Host) endRaft(s *raftState) {
	proposals, reads := h.inbox.stop()
	h.endLeadership(s, proposals, reads, ErrStopped)
	view := h.node.View()
	view.Lead, view.Leads = 0, false
	h.publish(view)
	if s.told.Leader {
		h.queue.push(work{announce: &Leadership{Term: view.Term}})
	}
}

// observeView passes a change of leadership on.
func (h *Host) observeView(s *raftState) {
	view := h.node.View()
	led := uint64(0)
	if view.Leads {
		led = view.Term
	}
	if led != s.led {
		proposals, reads := h.inbox.setLeads(led)
		h.endLeadership(s, proposals, reads, ErrNotLeader)
		s.led = led
	}
	told := Leadership{Term: view.Term, LeaderID: view.Lead}
	if s.told.Leader && led != s.told.Term || !s.told.Leader && told != s.told {
		s.told = told
		h.queue.push(work{announce: &told})
	}
	h.publish(view)
}

// endLeadership answers who waits for what was begun in a leadership that has ended.
func (h *Host) endLeadership(s *raftState, proposals []proposal, reads []*pendingRead, why error) {
	failed := append(s.waiting, s.proposed...) //nolint:gocritic // s.waiting is given away
	for _, p := range proposals {
		failed = append(failed, p.waiter)
	}
	s.waiting, s.proposed, s.rounds = nil, nil, nil
	if len(failed) > 0 {
		h.queue.push(work{failed: failed})
	}
	for _, r := range reads {
		r.refuse(why)
	}
	for id, batch := range s.reads {
		for _, r := range batch {
			r.refuse(why)
		}
		delete(s.reads, id)
	}
}

// publish makes the view visible to other goroutines.
func (h *Host) publish(view View) {
	walBytes := h.node.WALBytes()
	h.mu.Lock()
	before := h.view
	h.view, h.walBytes, h.position = view, walBytes, h.node.Snapshot().Index
	if before.Term != view.Term || before.Lead != view.Lead || before.Leads != view.Leads {
		close(h.changed)
		h.changed = make(chan struct{})
	}
	h.mu.Unlock()
	if before != view {
		h.metrics.observe(view, walBytes)
	}
}

// round takes in what waits: messages first, then what other goroutines ask for, then proposals and
// reads, which share one sync.
func (h *Host) round(s *raftState) error {
	lagging := h.queue.backlog.Load() > h.cfg.MaxPendingBytes
	h.inbox.take(&s.in)
	for _, m := range s.in.messages {
		if lagging && m.GetType() == raftpb.MsgApp {
			// The state machine does not keep up: the leader sends it again.
			continue
		}
		h.node.Step(m)
	}
	if err := h.processAll(s); err != nil {
		return err
	}
	for _, fn := range s.in.controls {
		if err := fn(h.node); err != nil {
			return err
		}
		if err := h.processAll(s); err != nil {
			return err
		}
	}
	// While leadership is handed over, proposals wait for the outcome.
	view := h.node.View()
	h.inbox.takeRequests(&s.in, view.Leads && !view.Transferring && !lagging && h.node.Uncommitted() < h.cfg.MaxPendingBytes)
	if err := h.proposeAll(s); err != nil {
		return err
	}
	h.readAll(s)
	return h.processAll(s)
}

// proposeAll proposes what was taken.
func (h *Host) proposeAll(s *raftState) error {
	if len(s.in.proposals) == 0 {
		return nil
	}
	data := make([][]byte, len(s.in.proposals))
	for i, p := range s.in.proposals {
		data[i] = p.data
	}
	if err := h.node.Propose(data...); err != nil {
		return fmt.Errorf("propose as the leader of %q: %w", h.cfg.Group, err)
	}
	h.metrics.proposals.Add(float64(len(data)))
	for _, p := range s.in.proposals {
		s.proposed = append(s.proposed, p.waiter)
	}
	return nil
}

// readAll asks for a point to read at for all reads taken.
func (h *Host) readAll(s *raftState) {
	if len(s.in.reads) == 0 {
		return
	}
	s.readID++
	if err := h.node.Read(s.readID, h.now()); err != nil {
		for _, r := range s.in.reads {
			r.refuse(err)
		}
		return
	}
	s.reads[s.readID] = append([]*pendingRead(nil), s.in.reads...)
}

// processAll drives the node until it has nothing more to do.
func (h *Host) processAll(s *raftState) error {
	h.observeView(s)
	for h.node.Ready() {
		out, err := h.node.Process(h.transport.Enqueue)
		if err != nil {
			return err
		}
		h.deliver(s, &out)
		h.observeView(s)
	}
	return nil
}

// deliver passes on what one Process gave.
func (h *Host) deliver(s *raftState, out *Output) {
	if out.Restore.Index > 0 {
		h.restoring.Store(out.Restore.Index)
		h.queue.push(work{restore: out.Restore})
	}
	if out.Appended > 0 {
		h.numberWaiters(s, out)
	}
	if n := len(out.Committed); n > 0 {
		last := out.Committed[n-1]
		w := work{entries: out.Committed}
		for _, e := range out.Committed {
			w.bytes += int64(len(e.GetData())) + entryOverhead
		}
		w.waiters = s.takeWaiters(last.GetIndex())
		h.observeCommit(s, last.GetIndex())
		if s.led != 0 && last.GetTerm() == s.led && !s.told.Leader {
			s.told = Leadership{Leader: true, Term: s.led, LeaderID: h.cfg.ID}
			told := s.told
			w.announce = &told
		}
		h.queue.push(w)
	}
	for _, r := range out.Reads {
		if reads := s.reads[r.ID]; reads != nil {
			delete(s.reads, r.ID)
			h.queue.push(work{reads: reads, readIndex: r.Index})
		}
	}
}

// numberWaiters gives the waiters of this round the places of their proposals in the log.
func (h *Host) numberWaiters(s *raftState, out *Output) {
	term := h.node.View().Term
	for i, w := range s.proposed {
		if w != nil {
			w.index, w.term = out.FirstAppended+uint64(i), term
			s.waiting = append(s.waiting, w)
		}
	}
	s.proposed = s.proposed[:0]
	s.rounds = append(s.rounds, round{last: out.FirstAppended + uint64(out.Appended) - 1, began: s.in.oldest}) //nolint:gosec // a count
}

// takeWaiters takes off the waiters up to the index.
func (s *raftState) takeWaiters(index uint64) []*waiter {
	n := 0
	for n < len(s.waiting) && s.waiting[n].index <= index {
		n++
	}
	if n == 0 {
		return nil
	}
	out := append([]*waiter(nil), s.waiting[:n]...)
	rest := copy(s.waiting, s.waiting[n:])
	clear(s.waiting[rest:])
	s.waiting = s.waiting[:rest]
	return out
}

// observeCommit measures the rounds that are committed now.
func (h *Host) observeCommit(s *raftState, index uint64) {
	n := 0
	for n < len(s.rounds) && s.rounds[n].last <= index {
		h.metrics.commitLatency.Observe(time.Since(s.rounds[n].began).Seconds())
		n++
	}
	s.rounds = s.rounds[:copy(s.rounds, s.rounds[n:])]
}
