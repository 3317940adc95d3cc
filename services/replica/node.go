// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/kolocate/kolocate/services/replica/snapshot"
	"github.com/kolocate/kolocate/services/replica/wal"
)

// NodeConfig says which member of which group a Node is. Ticks are Raft's unit of time.
type NodeConfig struct {
	Group string
	ID    uint64
	// Members are the ids at the founding of the group, in ascending order.
	Members []uint64
	FS      vfs.FS
	Dir     string
	// ElectionTicks is the silence after which a leader is no longer believed in; heartbeats go out each tick.
	ElectionTicks int
	// TickInterval and MaxClockError bound the lease, see Config. No lease if MaxClockError is 0.
	TickInterval, MaxClockError time.Duration
	// KeepLogBytes is what stays in memory below a snapshot. SegmentBytes is passed to the WAL.
	KeepLogBytes, SegmentBytes int64
	Seed                       uint64
	// OnSync is passed to the WAL.
	OnSync func(begin bool)
	Logger *slog.Logger
}

const (
	maxMessageBytes   = 1 << 20
	maxInflight       = 256
	maxCommittedBytes = 8 << 20
)

// Node is one member of a Raft group as a deterministic machine: the same inputs in the same order, on
// the same files, give the same outputs. It has no goroutine, clock or random source but the seed. After
// each input the driver calls Process until Ready says no. It is used by one goroutine.
type Node struct {
	cfg       NodeConfig
	rn        *raft.RawNode
	log       *wal.Log
	storage   *logStorage
	snapshots *snapshot.Store
	// lock keeps a second process from the directory.
	lock   io.Closer
	random *rand.Rand

	state View
	// conf is the membership as of the last committed entry handed out; confs are those at earlier
	// indexes that a snapshot may still be taken at.
	confs []confAt

	// silence counts the ticks since a leader was heard or a vote given; at timeout the node campaigns.
	silence, timeout int
	// deafTicks is for how many ticks votes are refused after a restart, so that a lease given before holds.
	deafTicks int

	// uncommitted is the size of proposals that are not committed yet.
	uncommitted int64
	reads       readState
	// arrived is a snapshot received from a peer that Raft has not taken yet.
	arrived snapshot.Position
}

// confAt is a membership and the index from which it holds.
type confAt struct {
	index uint64
	conf  *raftpb.ConfState
}

// View is what a node knows of the leadership of its group.
type View struct {
	// Term is the node's Raft term; Lead the leader in it, 0 if unknown.
	Term, Lead uint64
	// Leads says that this node is the leader.
	Leads bool
	// Transferring says that this node leads and has offered leadership to another.
	Transferring bool
	// Commit is the highest index known to be committed.
	Commit uint64
}

// OpenNode recovers the node from its directory. The driver then restores the state machine from
// Snapshot, if its index is not 0, before anything else.
func OpenNode(cfg NodeConfig) (*Node, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, random: rand.New(rand.NewPCG(cfg.Seed, cfg.ID))}
	if err := n.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("open replica %d of %q: %w", cfg.ID, cfg.Group, err), n.Close())
	}
	return n, nil
}

// open opens the files and starts Raft.
func (n *Node) open() error {
	fs, dir := n.cfg.FS, n.cfg.Dir
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make directory %s: %w", dir, err)
	}
	var err error
	if n.lock, err = fs.Lock(fs.PathJoin(dir, "LOCK")); err != nil {
		return fmt.Errorf("lock directory %s: %w: another process uses it", dir, err)
	}
	if n.snapshots, err = snapshot.Open(fs, fs.PathJoin(dir, "snapshots"), n.cfg.Group); err != nil {
		return err //nolint:wrapcheck // it names the file
	}
	var contents *wal.Contents
	n.log, contents, err = wal.Open(wal.Options{
		FS: fs, Dir: fs.PathJoin(dir, "wal"), Group: n.cfg.Group, Replica: n.cfg.ID,
		Founding: &raftpb.ConfState{Voters: n.cfg.Members, AutoLeave: new(false)}, SegmentBytes: n.cfg.SegmentBytes,
		OnSync: n.cfg.OnSync, Logger: n.cfg.Logger,
	})
	if err != nil {
		return err //nolint:wrapcheck // it names the file
	}
	return n.start(contents)
}

func (c *NodeConfig) check() error {
	switch {
	case c.Group == "" || len(c.Group) > 255:
		return fmt.Errorf("open replica %d: group name %q has %d bytes, expected 1 to 255", c.ID, c.Group, len(c.Group))
	case c.ID == 0 || !slices.Contains(c.Members, c.ID):
		return fmt.Errorf("open replica %d of %q: the members %v don't include it: correct the list of peers", c.ID, c.Group, c.Members)
	case len(c.Members)%2 == 0 || len(c.Members) > 5:
		return fmt.Errorf("open replica %d of %q: %d members are configured, expected 1, 3 or 5", c.ID, c.Group, len(c.Members))
	}
	return nil
}

// start builds Raft's state from what the WAL held and the newest intact snapshot.
func (n *Node) start(c *wal.Contents) error {
	mark, err := n.chooseSnapshot(c.Marks)
	if err != nil {
		return err
	}
	state := &raftpb.HardState{
		Term: new(c.State.GetTerm()), Vote: new(c.State.GetVote()), Commit: new(max(c.State.GetCommit(), mark.Index)),
	}
	if n.storage, err = newLogStorage(c, state, mark); err != nil {
		return err
	}
	n.rn, err = raft.NewRawNode(&raft.Config{
		ID: n.cfg.ID, ElectionTick: n.cfg.ElectionTicks, HeartbeatTick: 1,
		Storage: n.storage, Applied: mark.Index,
		MaxSizePerMsg: maxMessageBytes, MaxCommittedSizePerReady: maxCommittedBytes, MaxInflightMsgs: maxInflight,
		CheckQuorum: true, PreVote: true, ReadOnlyOption: raft.ReadOnlySafe,
		DisableProposalForwarding: true, StepDownOnRemoval: true,
		Logger: raftLogger{n.cfg.Logger},
	})
	if err != nil {
		return fmt.Errorf("start Raft: %w", err)
	}
	n.confs = []confAt{{index: mark.Index, conf: mark.ConfState}}
	if members := append(slices.Clone(mark.ConfState.GetVoters()), mark.ConfState.GetLearners()...); !sameMembers(members, n.cfg.Members) {
		return fmt.Errorf("the log in %s is of a group with members %v, %v are configured: correct the list of peers", n.cfg.Dir, members, n.cfg.Members)
	}
	n.refresh()
	n.firstTimer(raft.IsEmptyHardState(c.State))
	if n.sole() {
		n.campaign()
	}
	return nil
}

// sameMembers says whether both lists hold the same ids.
func sameMembers(a, b []uint64) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

// chooseSnapshot returns the mark of the newest snapshot that is intact, and removes files without a mark.
func (n *Node) chooseSnapshot(marks []wal.Mark) (wal.Mark, error) {
	var keep []snapshot.Position
	for _, m := range marks {
		keep = append(keep, positionOf(m))
	}
	if err := n.snapshots.Retain(keep...); err != nil {
		return wal.Mark{}, fmt.Errorf("remove snapshots that were not finished: %w", err)
	}
	var failures []error
	for _, m := range slices.Backward(marks) {
		if m.Index == 0 {
			return m, nil
		}
		err := n.snapshots.Verify(positionOf(m))
		if err == nil {
			return m, nil
		}
		failures = append(failures, err)
		n.cfg.Logger.Error("refused a snapshot; falling back to the one before", "file", n.snapshots.Path(positionOf(m)), "error", err)
	}
	return wal.Mark{}, fmt.Errorf("no snapshot is intact: %w: restore the directory %s from a backup, or replace this replica by a new one",
		errors.Join(failures...), n.cfg.Dir)
}

// firstTimer sets the election timer at the start. A member that may have promised a lease before it
// was restarted waits for its end, and gives no vote until then. Without that the first election comes
// early, since nobody is heard yet.
func (n *Node) firstTimer(founded bool) {
	if n.cfg.MaxClockError > 0 && !founded && !n.sole() {
		n.deafTicks = n.cfg.ElectionTicks
		n.resetTimer()
		return
	}
	n.silence = 0
	n.timeout = 1 + n.random.IntN(n.cfg.ElectionTicks)
}

// resetTimer draws a new election timeout between one and two times ElectionTicks (Raft, section 5.2).
func (n *Node) resetTimer() {
	n.silence = 0
	n.timeout = n.cfg.ElectionTicks + n.random.IntN(n.cfg.ElectionTicks)
}

// Snapshot returns the position of the snapshot that the state machine starts from; index 0 for the
// empty state.
func (n *Node) Snapshot() snapshot.Position { return positionOf(n.storage.newest) }

// CreateSnapshot writes a snapshot of the applied state and makes it durable; it returns the bytes of the
// file. It may run beside everything else. Snapshotted then makes it count.
func (n *Node) CreateSnapshot(p snapshot.Position, write func(io.Writer) (int64, error)) (int64, error) {
	return n.snapshots.Create(p, write) //nolint:wrapcheck // it names the file
}

// ReceiveSnapshot begins to take in the file of a snapshot from a peer. It may run beside everything
// else. When the receiver is committed, the peer's message is stepped.
func (n *Node) ReceiveSnapshot(p snapshot.Position) (*snapshot.Receiver, error) {
	return n.snapshots.Receive(p) //nolint:wrapcheck // it names the file
}

// SnapshotFile opens the whole file of a snapshot, for a peer. It may run beside everything else.
func (n *Node) SnapshotFile(p snapshot.Position) (io.ReadCloser, error) {
	file, _, err := n.snapshots.File(p)
	return file, err //nolint:wrapcheck // it names the file
}

// OpenSnapshot opens what the state machine wrote into the snapshot.
func (n *Node) OpenSnapshot(p snapshot.Position) (io.ReadCloser, error) {
	return n.snapshots.Body(p) //nolint:wrapcheck // it names the file
}

// sole says whether this node is the only voter.
func (n *Node) sole() bool {
	conf := n.conf()
	return len(conf.GetVoters()) == 1 && len(conf.GetVotersOutgoing()) == 0 && conf.GetVoters()[0] == n.cfg.ID
}

func (n *Node) conf() *raftpb.ConfState { return n.confs[len(n.confs)-1].conf }

// View returns what the node knew of its group after the last input.
func (n *Node) View() View { return n.state }

// refresh takes over Raft's view. With a term or with leadership ends what belonged to it.
func (n *Node) refresh() {
	before := n.state
	s := n.rn.BasicStatus()
	n.state = View{
		Term: s.GetTerm(), Lead: s.Lead, Leads: s.RaftState == raft.StateLeader,
		Transferring: s.LeadTransferee != raft.None, Commit: s.GetCommit(),
	}
	if n.state.Term != before.Term || n.state.Leads != before.Leads {
		n.reads.asked, n.reads.answered, n.uncommitted = nil, nil, 0
		n.resetTimer()
	}
}

// WALBytes is the size of the log on disk.
func (n *Node) WALBytes() int64 { return n.log.Size() }

// Close closes the files.
func (n *Node) Close() error {
	var errs []error
	if n.log != nil {
		errs = append(errs, n.log.Close())
	}
	if n.lock != nil {
		errs = append(errs, n.lock.Close())
		n.lock = nil
	}
	return errors.Join(errs...)
}
