// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/kolocate/kolocate/services/replica/snapshot"
	"github.com/kolocate/kolocate/services/replica/wal"
)

// Output is what the driver must do after Process, in this order.
type Output struct {
	// Restore, if its index is not 0, is a snapshot from the leader that replaces the state machine.
	Restore snapshot.Position
	// Committed are the next entries to apply, in log order, those without data and of other types included.
	Committed []*raftpb.Entry
	// Appended counts the entries with data that this node proposed and that are in the log now, in the
	// order they were proposed; FirstAppended is the index of the first.
	Appended      int
	FirstAppended uint64
	// Reads may run once everything up to their index is applied.
	Reads []Read
}

// errNoFile is a bug of the driver: it stepped a MsgSnap without its file.
var errNoFile = errors.New("a snapshot is to be installed whose file was not received")

// Ready says whether Process has something to do.
func (n *Node) Ready() bool { return len(n.reads.answered) > 0 || n.rn.HasReady() }

// Process makes durable what the inputs demand, with at most one sync, and returns what follows from it.
// Send is given messages up to twice: before the sync those that a leader may send while it writes
// itself (Raft thesis, section 10.2.1), after it the others. It must not keep the slice. An error is
// fatal: the disk failed, and the node must not be used again.
func (n *Node) Process(send func([]*raftpb.Message)) (Output, error) {
	rd := n.rn.Ready()
	// Before a new term is durable nothing may be said in it.
	early := n.state.Leads && (rd.HardState == nil || !rd.MustSync || !n.termChanges(rd.HardState))
	var late []*raftpb.Message
	if early {
		var now []*raftpb.Message
		now, late = splitMessages(rd.Messages)
		if len(now) > 0 {
			send(now)
		}
	} else {
		late = rd.Messages
	}
	var out Output
	if err := n.persist(&rd, &out); err != nil {
		return Output{}, err
	}
	if len(late) > 0 {
		n.noteVotes(late)
		send(late)
	}
	out.Reads = n.takeReads(rd.ReadStates)
	out.Committed = rd.CommittedEntries
	if err := n.applyConfChanges(rd.CommittedEntries); err != nil {
		return Output{}, err
	}
	n.settle(rd.CommittedEntries)
	n.rn.Advance(rd)
	n.refresh()
	return out, nil
}

// termChanges says whether the hard state brings a term or vote that is not durable yet.
func (n *Node) termChanges(s *raftpb.HardState) bool {
	durable, _, err := n.storage.InitialState()
	return err != nil || durable.GetTerm() != s.GetTerm() || durable.GetVote() != s.GetVote()
}

// splitMessages parts what a leader may send before its own write is durable from the rest.
func splitMessages(all []*raftpb.Message) (early, late []*raftpb.Message) {
	for _, m := range all {
		switch m.GetType() {
		case raftpb.MsgApp, raftpb.MsgHeartbeat, raftpb.MsgSnap:
			early = append(early, m)
		default:
			late = append(late, m)
		}
	}
	return early, late
}

// noteVotes resets the election timer when a vote is given.
func (n *Node) noteVotes(messages []*raftpb.Message) {
	for _, m := range messages {
		if m.GetType() == raftpb.MsgVoteResp && !m.GetReject() {
			n.silence = 0
		}
	}
}

// persist writes hard state, entries and a received snapshot. A change of the commit index alone is
// not written: it is learnt again.
func (n *Node) persist(rd *raft.Ready, out *Output) error {
	batch := wal.Batch{Entries: rd.Entries}
	if rd.HardState != nil && (rd.MustSync || !raft.IsEmptySnap(rd.Snapshot)) {
		batch.State = rd.HardState
	}
	if err := n.install(rd.Snapshot, &batch, out); err != nil {
		return err
	}
	if batch.Reset != nil || batch.State != nil || len(batch.Entries) > 0 {
		if err := n.log.Append(batch); err != nil {
			return fmt.Errorf("append to the log of %q: %w", n.cfg.Group, err)
		}
	}
	if batch.Reset != nil {
		n.storage.newest = n.log.Marks()[0]
		if err := n.storage.ApplySnapshot(rd.Snapshot); err != nil {
			return fmt.Errorf("install the snapshot of %d: %w", rd.Snapshot.GetMetadata().GetIndex(), err)
		}
	}
	if batch.State != nil {
		if err := n.storage.SetHardState(batch.State); err != nil {
			return fmt.Errorf("keep the state: %w", err)
		}
	}
	if err := n.storage.Append(rd.Entries); err != nil {
		return fmt.Errorf("keep %d entries: %w", len(rd.Entries), err)
	}
	if n.state.Leads {
		for _, e := range rd.Entries {
			if e.GetType() != raftpb.EntryNormal || len(e.GetData()) == 0 {
				continue
			}
			if out.Appended == 0 {
				out.FirstAppended = e.GetIndex()
			}
			out.Appended++
		}
	}
	return nil
}

// install takes over a snapshot from the leader, or removes the file of one that Raft did not want.
func (n *Node) install(s *raftpb.Snapshot, batch *wal.Batch, out *Output) error {
	arrived := n.arrived
	n.arrived = snapshot.Position{}
	if raft.IsEmptySnap(s) {
		return n.forget(arrived)
	}
	meta := s.GetMetadata()
	if arrived != metadataPosition(meta) {
		return fmt.Errorf("index %d of %q: %w", meta.GetIndex(), n.cfg.Group, errNoFile)
	}
	batch.Reset = &wal.Mark{Index: meta.GetIndex(), Term: meta.GetTerm(), ConfState: meta.GetConfState(), Reset: true}
	n.confs = []confAt{{index: meta.GetIndex(), conf: meta.GetConfState()}}
	out.Restore = arrived
	return nil
}

// forget removes the file of a snapshot that Raft did not want, unless the log has a mark of it.
func (n *Node) forget(p snapshot.Position) error {
	if p.Index == 0 {
		return nil
	}
	for _, m := range n.log.Marks() {
		if positionOf(m) == p {
			return nil
		}
	}
	if err := n.snapshots.Remove(p); err != nil {
		return fmt.Errorf("remove a snapshot of %q that came too late: %w", n.cfg.Group, err)
	}
	return nil
}

// retain removes the snapshot files without a mark.
func (n *Node) retain() error {
	var keep []snapshot.Position
	for _, m := range n.log.Marks() {
		keep = append(keep, positionOf(m))
	}
	if err := n.snapshots.Retain(keep...); err != nil {
		return fmt.Errorf("remove old snapshots of %q: %w", n.cfg.Group, err)
	}
	return nil
}

// applyConfChanges tells Raft of changes of the membership as they are handed out.
func (n *Node) applyConfChanges(entries []*raftpb.Entry) error {
	for _, e := range entries {
		var change raftpb.ConfChangeI
		switch e.GetType() {
		case raftpb.EntryNormal:
			continue
		case raftpb.EntryConfChange:
			v1 := &raftpb.ConfChange{}
			if err := proto.Unmarshal(e.GetData(), v1); err != nil {
				return fmt.Errorf("decode the change of members at index %d: %w", e.GetIndex(), err)
			}
			change = v1
		case raftpb.EntryConfChangeV2:
			v2 := &raftpb.ConfChangeV2{}
			if err := proto.Unmarshal(e.GetData(), v2); err != nil {
				return fmt.Errorf("decode the change of members at index %d: %w", e.GetIndex(), err)
			}
			change = v2
		}
		conf := n.rn.ApplyConfChange(change)
		n.confs = append(n.confs, confAt{index: e.GetIndex(), conf: conf})
	}
	return nil
}

// settle counts what has been handed out.
func (n *Node) settle(committed []*raftpb.Entry) {
	for _, e := range committed {
		n.uncommitted -= int64(len(e.GetData()))
	}
	n.uncommitted = max(0, n.uncommitted)
}

// Snapshotted tells that the file of a snapshot of the applied state is durable. It marks it in the
// log and drops what is no longer needed: the log below the snapshot before, and older files. An
// error is fatal.
func (n *Node) Snapshotted(p snapshot.Position) error {
	if p.Index <= n.storage.newest.Index || !n.snapshots.Exists(p) {
		// The leader's newer snapshot was installed meanwhile. The file goes with the next retain: the
		// state machine may not have restored yet what would go now.
		return nil
	}
	at := len(n.confs) - 1
	for n.confs[at].index > p.Index {
		at--
	}
	mark := wal.Mark{Index: p.Index, Term: p.Term, ConfState: n.confs[at].conf}
	if err := n.log.Append(wal.Batch{Mark: &mark}); err != nil {
		return fmt.Errorf("mark the snapshot of %d in the log of %q: %w", p.Index, n.cfg.Group, err)
	}
	n.confs = slices.Clone(n.confs[at:])
	n.storage.newest = mark
	if err := n.retain(); err != nil {
		return err
	}
	// The log is kept from the older snapshot on, to be able to fall back to it.
	if err := n.log.Cut(n.log.Marks()[0].Index); err != nil {
		return fmt.Errorf("cut the log of %q: %w", n.cfg.Group, err)
	}
	return n.storage.compact(p.Index, n.cfg.KeepLogBytes)
}
