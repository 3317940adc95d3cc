// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// campaignTransfer marks the votes of a planned transfer, which a lease does not hinder (raft.campaignTransfer).
var campaignTransfer = []byte("CampaignTransfer")

// Tick advances the node's time by one tick. The library draws its own election timeouts from a source
// that cannot be seeded; it is told of time without being allowed to act on it, and campaigns only
// when the node says so.
func (n *Node) Tick() {
	n.deafTicks = max(0, n.deafTicks-1)
	if n.state.Leads {
		n.rn.Tick()
		n.refresh()
		return
	}
	n.rn.TickQuiesced()
	n.silence++
	if n.silence >= n.timeout {
		n.campaign()
	}
}

// campaign begins an election, if the node may vote.
func (n *Node) campaign() {
	n.resetTimer()
	if err := n.rn.Campaign(); err != nil {
		n.cfg.Logger.Debug("could not campaign", "error", err)
	}
	n.refresh()
}

// Step takes in a message from a peer. A message of type MsgSnap comes after its snapshot file has
// been received. Messages that make no sense are dropped.
func (n *Node) Step(m *raftpb.Message) {
	vote := m.GetType() == raftpb.MsgVote || m.GetType() == raftpb.MsgPreVote
	if vote && n.deafTicks > 0 && !bytes.Equal(m.GetContext(), campaignTransfer) {
		return
	}
	if m.GetType() == raftpb.MsgSnap {
		n.arrived = metadataPosition(m.GetSnapshot().GetMetadata())
	}
	if err := n.rn.Step(m); err != nil {
		n.cfg.Logger.Debug("dropped a message", "type", m.GetType().String(), "from", m.GetFrom(), "error", err)
	}
	n.refresh()
	switch m.GetType() {
	case raftpb.MsgApp, raftpb.MsgHeartbeat, raftpb.MsgSnap:
		if n.state.Lead == m.GetFrom() && m.GetTerm() == n.state.Term {
			n.silence = 0
		}
	default:
	}
}

// Propose appends entries with the data to the log, in order, all or none. Errors: ErrNotLeader if this
// node does not lead, or hands leadership over at the moment.
func (n *Node) Propose(data ...[]byte) error {
	if !n.state.Leads {
		return ErrNotLeader
	}
	entries := make([]*raftpb.Entry, len(data))
	backing := make([]raftpb.Entry, len(data))
	size := int64(0)
	for i, d := range data {
		backing[i].Data = d
		entries[i] = &backing[i]
		size += int64(len(d))
	}
	err := n.rn.Step(&raftpb.Message{Type: raftpb.MsgProp.Enum(), From: new(n.cfg.ID), Entries: entries})
	if errors.Is(err, raft.ErrProposalDropped) {
		return ErrNotLeader
	}
	if err != nil {
		return fmt.Errorf("propose %d entries: %w", len(data), err)
	}
	n.uncommitted += size
	return nil
}

// Uncommitted is the number of bytes proposed here that are not committed yet.
func (n *Node) Uncommitted() int64 { return n.uncommitted }

// readState is what a leader knows of reads.
type readState struct {
	// asked are the quorum rounds under way, in order.
	asked []askedRead
	// answered were answered by the lease and wait for the next Process.
	answered []Read
	// leaseEnd is until when no other leader can have been elected, in the driver's time; it holds
	// in leaseTerm, and not after leadership was offered to another in noLease.
	leaseEnd           time.Duration
	leaseTerm, noLease uint64
}

type askedRead struct {
	id uint64
	at time.Duration
}

// Read is a batch of reads that may run once everything up to Index is applied.
type Read struct {
	ID, Index uint64
}

// leaseLength is how long after asking a quorum no other leader can be elected: a member that answered
// gives no vote for ElectionTicks of its own clock (CheckQuorum, Raft thesis section 6.4.1). A tick may
// come early by one interval, and a leader's own reading of the clock by another.
func (n *Node) leaseLength() time.Duration {
	if n.cfg.MaxClockError == 0 {
		return 0
	}
	return time.Duration(n.cfg.ElectionTicks-2)*n.cfg.TickInterval - n.cfg.MaxClockError
}

// Read asks for a point of the log at which reads that wait now are linearizable. Process returns it
// under the id, unless leadership is lost before. Ids are unique and not 0; now is a monotonic time.
// Error: ErrNotLeader.
func (n *Node) Read(id uint64, now time.Duration) error {
	if !n.state.Leads {
		return ErrNotLeader
	}
	r := &n.reads
	if r.leaseTerm == n.state.Term && r.noLease != n.state.Term && now < r.leaseEnd {
		r.answered = append(r.answered, Read{ID: id, Index: n.state.Commit})
		return nil
	}
	r.asked = append(r.asked, askedRead{id: id, at: now})
	n.rn.ReadIndex(binary.BigEndian.AppendUint64(nil, id))
	return nil
}

// takeReads returns what has been answered and extends the lease.
func (n *Node) takeReads(states []raft.ReadState) []Read {
	r := &n.reads
	out := r.answered
	r.answered = nil
	for _, s := range states {
		id := binary.BigEndian.Uint64(s.RequestCtx)
		out = append(out, Read{ID: id, Index: s.Index})
		for len(r.asked) > 0 {
			first := r.asked[0]
			r.asked = r.asked[1:]
			if first.id == id {
				r.leaseEnd, r.leaseTerm = first.at+n.leaseLength(), n.state.Term
				break
			}
		}
	}
	return out
}

// TransferLeadership offers leadership to the member whose log is closest to the leader's. It is done
// when View says that another leads, and given up after ElectionTicks. Errors: ErrNotLeader, ErrNoTransferee.
func (n *Node) TransferLeadership() error {
	if !n.state.Leads {
		return ErrNotLeader
	}
	var best, match uint64
	status := n.rn.Status()
	for _, id := range n.conf().GetVoters() {
		p, ok := status.Progress[id]
		if ok && id != n.cfg.ID && p.RecentActive && (best == 0 || p.Match > match) {
			best, match = id, p.Match
		}
	}
	if best == 0 {
		return ErrNoTransferee
	}
	// The offer may arrive late and win an election in spite of the lease.
	n.reads.noLease = n.state.Term
	n.rn.TransferLeader(best)
	n.refresh()
	return nil
}

// ReportUnreachable tells that messages to the peer were lost.
func (n *Node) ReportUnreachable(id uint64) { n.rn.ReportUnreachable(id) }

// ReportSnapshot tells whether the peer has received the snapshot it was sent.
func (n *Node) ReportSnapshot(id uint64, ok bool) {
	status := raft.SnapshotFailure
	if ok {
		status = raft.SnapshotFinish
	}
	n.rn.ReportSnapshot(id, status)
}
