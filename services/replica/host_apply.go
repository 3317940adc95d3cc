// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"errors"
	"fmt"
	"io"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/kolocate/kolocate/services/replica/snapshot"
)

// applier is what the apply goroutine keeps.
type applier struct {
	entries []Entry
	// index and term are those of the last applied entry.
	index, term uint64
	// bytes were applied since the last snapshot was begun.
	bytes int64
	// reads wait for entries that are not applied yet, in the order of their indexes.
	reads []work
	// failed says that the state machine must not be called any more.
	failed bool
}

// applyLoop is the apply goroutine.
func (h *Host) applyLoop() {
	p := h.node.Snapshot()
	a := &applier{index: p.Index, term: p.Term}
	var items []work
	for ended := false; !ended; {
		select {
		case <-h.queue.wake:
		case <-h.raftDone:
			ended = true
		}
		items = h.queue.take(items)
		for i := range items {
			h.do(a, &items[i])
		}
	}
	for _, w := range h.queue.close() {
		h.do(a, &w)
	}
	for _, w := range a.reads {
		refuseAll(w.reads, ErrStopped)
	}
}

// do does one item. When the replica stops, only the ends of what was begun are passed on.
func (h *Host) do(a *applier, w *work) {
	select {
	case <-h.stop:
		a.failed = true
	default:
	}
	skip := a.failed
	if !skip {
		if err := h.advance(a, w); err != nil {
			a.failed, skip = true, true
			h.fail(err)
		}
	}
	if left := h.queue.backlog.Add(-w.bytes); left <= h.cfg.MaxPendingBytes && left+w.bytes > h.cfg.MaxPendingBytes {
		// The Raft goroutine waits with proposals while the state machine lags.
		h.inbox.signal()
	}
	answerWaiters(w, skip)
	if w.announce != nil && (!skip || !w.announce.Leader) {
		h.announce(w.announce)
	}
	for _, waiting := range w.failed {
		if waiting != nil {
			waiting.done <- ErrLeadershipLost
		}
	}
	switch {
	case len(w.reads) == 0:
	case skip:
		refuseAll(w.reads, ErrStopped)
	case w.readIndex > a.index:
		a.reads = append(a.reads, *w)
	default:
		runAll(w.reads)
	}
	if !skip {
		h.runReads(a)
		h.maybeSnapshot(a)
	}
}

// advance brings the state machine forward.
func (h *Host) advance(a *applier, w *work) error {
	// What will be replaced by a snapshot need not be applied.
	if target := h.restoring.Load(); target > a.index && w.restore.Index != target {
		return nil
	}
	if w.restore.Index > 0 {
		if err := h.restore(w.restore); err != nil {
			return err
		}
		a.index, a.term, a.bytes = w.restore.Index, w.restore.Term, 0
	}
	if len(w.entries) == 0 {
		return nil
	}
	a.entries = a.entries[:0]
	for _, e := range w.entries {
		if e.GetType() == raftpb.EntryNormal && len(e.GetData()) > 0 {
			a.entries = append(a.entries, Entry{Index: e.GetIndex(), Term: e.GetTerm(), Data: e.GetData()})
		}
	}
	if len(a.entries) > 0 {
		if err := h.cfg.StateMachine.Apply(a.entries); err != nil {
			return fmt.Errorf("apply entries %d to %d of %q: %w", a.entries[0].Index, a.entries[len(a.entries)-1].Index, h.cfg.Group, err)
		}
		clear(a.entries)
	}
	last := w.entries[len(w.entries)-1]
	a.index, a.term = last.GetIndex(), last.GetTerm()
	a.bytes += w.bytes
	h.applied.Store(a.index)
	h.metrics.appliedIndex.Set(float64(a.index))
	return nil
}

// answerWaiters tells who waits for the entries of an item.
func answerWaiters(w *work, skipped bool) {
	for _, waiting := range w.waiters {
		e := w.entries[waiting.index-w.entries[0].GetIndex()]
		if skipped || e.GetTerm() != waiting.term {
			waiting.done <- ErrLeadershipLost
			continue
		}
		waiting.done <- nil
	}
}

// announce tells of leadership. Proposals are taken from the moment on in which it is certain.
func (h *Host) announce(l *Leadership) {
	if l.Leader {
		h.inbox.announce(l.Term)
	}
	h.cfg.OnLeadership(*l)
}

// runReads runs the reads whose entries are applied by now.
func (h *Host) runReads(a *applier) {
	n := 0
	for n < len(a.reads) && a.reads[n].readIndex <= a.index {
		runAll(a.reads[n].reads)
		a.reads[n] = work{}
		n++
	}
	a.reads = a.reads[n:]
}

func runAll(reads []*pendingRead) {
	for _, r := range reads {
		r.run()
	}
}

func refuseAll(reads []*pendingRead, err error) {
	for _, r := range reads {
		r.refuse(err)
	}
}

// restore replaces the state machine by a snapshot.
func (h *Host) restore(p snapshot.Position) (err error) {
	body, err := h.node.OpenSnapshot(p)
	if err != nil {
		return fmt.Errorf("restore %q: %w", h.cfg.Group, err)
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	if err := h.cfg.StateMachine.Restore(body); err != nil {
		return fmt.Errorf("restore %q from the snapshot of %d: %w", h.cfg.Group, p.Index, err)
	}
	h.applied.Store(p.Index)
	h.metrics.appliedIndex.Set(float64(p.Index))
	h.cfg.Logger.Info("restored a snapshot", "index", p.Index)
	return nil
}

// maybeSnapshot begins a snapshot when enough has been applied since the last.
func (h *Host) maybeSnapshot(a *applier) {
	if a.bytes < h.cfg.SnapshotEveryBytes || !h.snapshotting.CompareAndSwap(false, true) {
		return
	}
	a.bytes = 0
	p := snapshot.Position{Index: a.index, Term: a.term}
	writer, err := h.cfg.StateMachine.Snapshot()
	if err != nil {
		a.failed = true
		h.fail(fmt.Errorf("take a snapshot of %q at %d: %w", h.cfg.Group, p.Index, err))
		return
	}
	h.wg.Go(func() { h.writeSnapshot(p, writer) })
}

// writeSnapshot writes a snapshot in the background. A failure is not fatal: the log goes on growing
// until the next one succeeds.
func (h *Host) writeSnapshot(p snapshot.Position, writer SnapshotWriter) {
	bytes, err := h.node.CreateSnapshot(p, func(w io.Writer) (int64, error) {
		return writer.WriteTo(stoppable{w: w, stop: h.stop})
	})
	writer.Close()
	if err != nil {
		h.snapshotting.Store(false)
		if !errors.Is(err, ErrStopped) {
			h.cfg.Logger.Error("could not write a snapshot; the log grows until the next one succeeds", "index", p.Index, "error", err)
		}
		return
	}
	h.metrics.snapshotBytes.Set(float64(bytes))
	h.inbox.control(func(n *Node) error {
		h.snapshotting.Store(false)
		return n.Snapshotted(p)
	})
}

// stoppable is a writer that fails when the replica stops.
type stoppable struct {
	w    io.Writer
	stop <-chan struct{}
}

// Write passes b on.
func (s stoppable) Write(b []byte) (int, error) {
	select {
	case <-s.stop:
		return 0, ErrStopped
	default:
		return s.w.Write(b) //nolint:wrapcheck // a thin wrapper
	}
}
