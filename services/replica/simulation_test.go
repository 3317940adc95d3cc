// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/kolocate/kolocate/services/replica/snapshot"
)

// simulation runs three nodes in virtual time over a network that loses, delays, repeats and reorders, on
// disks whose power fails. Everything comes from one seed.
type simulation struct {
	t      *testing.T
	random *rand.Rand
	nodes  map[uint64]*simNode
	net    []*raftpb.Message
	trace  bytes.Buffer
	now    time.Duration
	nextID uint64

	// decided is what any node has applied at each index: all must agree.
	decided map[uint64]string
	// acknowledged is the highest number of a proposal that its proposer has applied.
	acknowledged map[string]bool
	// reads are those asked, with the index acknowledged when they were.
	reads map[uint64]uint64
	// newest is the highest index that any proposer has seen applied.
	newest uint64
	// isolated is the node that is cut off from the others, none if there is no such node.
	isolated uint64
	// answered and installed count reads and snapshots from peers, to see that they happen.
	answered, installed int
}

type simNode struct {
	id uint64
	fs *vfs.MemFS
	// failIn counts the writing operations until the disk fails, 0 for never.
	failIn  int
	node    *Node
	applied uint64
	term    uint64
	state   []string
	mine    map[string]bool
	bytes   int
}

func newSimulation(t *testing.T, seed uint64) *simulation {
	t.Helper()
	s := &simulation{
		t: t, random: rand.New(rand.NewPCG(seed, 7)), nodes: map[uint64]*simNode{},
		decided: map[uint64]string{}, acknowledged: map[string]bool{}, reads: map[uint64]uint64{},
	}
	for id := uint64(1); id <= 3; id++ {
		s.nodes[id] = &simNode{id: id, fs: vfs.NewCrashableMem()}
		s.open(s.nodes[id])
	}
	return s
}

// open starts a node and restores its state.
func (s *simulation) open(n *simNode) {
	s.t.Helper()
	node, err := OpenNode(NodeConfig{
		Group: "store/shard-1", ID: n.id, Members: []uint64{1, 2, 3}, Dir: "data",
		FS:            errorfs.Wrap(n.fs, errorfs.InjectorFunc(n.maybeFail)),
		ElectionTicks: 10, TickInterval: 10 * time.Millisecond, MaxClockError: 10 * time.Millisecond,
		KeepLogBytes: 100, SegmentBytes: 1000, Seed: n.id, Logger: testLogger(s.t),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	n.node, n.applied, n.term, n.state, n.mine, n.bytes = node, 0, 0, nil, map[string]bool{}, 0
	if p := node.Snapshot(); p.Index > 0 {
		s.restore(n, p)
	}
	s.drive(n)
}

// maybeFail fails the disk when its time has come.
func (n *simNode) maybeFail(op errorfs.Op) error {
	if n.failIn == 0 || op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
		return nil
	}
	if n.failIn--; n.failIn > 0 {
		return nil
	}
	n.failIn = 1
	return syscall.EIO
}

func (s *simulation) restore(n *simNode, p snapshot.Position) {
	s.t.Helper()
	body, err := n.node.OpenSnapshot(p)
	if err != nil {
		s.t.Fatal(err)
	}
	data, err := io.ReadAll(body)
	if err := errors.Join(err, body.Close()); err != nil {
		s.t.Fatal(err)
	}
	n.state = strings.Split(string(data), "\n")
	n.applied, n.term = p.Index, p.Term
}

// drive does what the node asks for.
func (s *simulation) drive(n *simNode) {
	s.t.Helper()
	for n.node.Ready() {
		out, err := n.node.Process(func(m []*raftpb.Message) {
			for _, message := range m {
				s.net = append(s.net, proto.Clone(message).(*raftpb.Message))
			}
		})
		if s.failed(n, err) {
			return
		}
		if out.Restore.Index > 0 {
			s.restore(n, out.Restore)
			s.installed++
		}
		for _, e := range out.Committed {
			s.apply(n, e)
		}
		for _, r := range out.Reads {
			// Reads run when applied; the driver applies at once.
			s.answered++
			if n.applied < r.Index || n.applied < s.reads[r.ID] {
				s.t.Fatalf("a read at node %d sees %d, %d was acknowledged before", n.id, n.applied, s.reads[r.ID])
			}
		}
	}
	fmt.Fprintf(&s.trace, "%d %+v %d\n", n.id, n.node.View(), n.applied)
}

// apply applies one entry and compares it with what others applied.
func (s *simulation) apply(n *simNode, e *raftpb.Entry) {
	s.t.Helper()
	if e.GetIndex() != n.applied+1 {
		s.t.Fatalf("node %d: entry %d follows %d", n.id, e.GetIndex(), n.applied)
	}
	data := string(e.GetData())
	what := fmt.Sprintf("%d %s", e.GetTerm(), data)
	if before, ok := s.decided[e.GetIndex()]; ok && before != what {
		s.t.Fatalf("node %d applies %q at %d, another applied %q", n.id, what, e.GetIndex(), before)
	}
	s.decided[e.GetIndex()] = what
	n.applied, n.term = e.GetIndex(), e.GetTerm()
	if data == "" {
		return
	}
	n.state = append(n.state, data)
	n.bytes += len(data)
	if n.mine[data] {
		s.acknowledged[data] = true
		s.newest = max(s.newest, e.GetIndex())
	}
}

// step does one random thing.
func (s *simulation) step(faults bool) {
	s.t.Helper()
	n := s.nodes[uint64(s.random.IntN(3))+1]
	switch what := s.random.IntN(100); {
	case what < 10:
		s.now += 10 * time.Millisecond
		for id := uint64(1); id <= 3; id++ {
			s.nodes[id].node.Tick()
			s.drive(s.nodes[id])
		}
	case what < 80:
		s.deliver(faults)
	case what < 92 && faults:
		s.propose(n)
	case what < 97:
		s.snapshot(n)
	case what < 98 && faults:
		if s.random.IntN(2) == 0 {
			s.crash(n)
		} else if n.failIn == 0 {
			n.failIn = s.random.IntN(8) + 1
		}
	case what < 99 && faults:
		if n.node.TransferLeadership() == nil {
			s.drive(n)
		}
	case faults:
		s.isolated = uint64(s.random.IntN(6))
	}
}

// failed crashes the node if its disk has failed.
func (s *simulation) failed(n *simNode, err error) bool {
	s.t.Helper()
	if err == nil {
		return false
	}
	if !errors.Is(err, syscall.EIO) {
		s.t.Fatal(err)
	}
	s.crash(n)
	return true
}

func (s *simulation) propose(n *simNode) {
	s.nextID++
	data := fmt.Sprintf("proposal %d with some more bytes %s", s.nextID, strings.Repeat("x", s.random.IntN(100)))
	if !n.node.View().Transferring && n.node.Propose([]byte(data)) == nil {
		n.mine[data] = true
	}
	if n.node.Read(s.nextID, s.now) == nil {
		s.reads[s.nextID] = s.newest
	}
	s.drive(n)
}

// deliver delivers, loses or repeats one message.
func (s *simulation) deliver(faults bool) {
	s.t.Helper()
	if len(s.net) == 0 {
		return
	}
	i := 0
	if faults {
		i = s.random.IntN(len(s.net))
	}
	m := s.net[i]
	cut := faults && s.isolated != 0 && (m.GetTo() == s.isolated || m.GetFrom() == s.isolated)
	lost, repeated := cut || faults && s.random.IntN(20) == 0, faults && s.random.IntN(20) == 0
	if !repeated {
		s.net = slices.Delete(s.net, i, i+1)
	}
	to := s.nodes[m.GetTo()]
	if m.GetType() == raftpb.MsgSnap {
		from := s.nodes[m.GetFrom()].node
		ok := !lost && s.copySnapshot(from, to, metadataPosition(m.GetSnapshot().GetMetadata()))
		from.ReportSnapshot(m.GetTo(), ok)
		lost = !ok
	}
	if !lost {
		to.node.Step(proto.Clone(m).(*raftpb.Message))
	}
	s.drive(to)
}

func (s *simulation) copySnapshot(from *Node, n *simNode, p snapshot.Position) bool {
	s.t.Helper()
	file, err := from.SnapshotFile(p)
	if err != nil {
		// It was removed since; the leader will offer a newer one.
		return false
	}
	receiver, err := n.node.ReceiveSnapshot(p)
	if err == nil {
		_, err = io.Copy(receiver, file)
	}
	if err := errors.Join(err, file.Close()); s.failed(n, err) {
		return false
	}
	_, err = receiver.Commit()
	return !s.failed(n, err)
}

func (s *simulation) snapshot(n *simNode) {
	s.t.Helper()
	if n.bytes < 500 {
		return
	}
	n.bytes = 0
	p := snapshot.Position{Index: n.applied, Term: n.term}
	_, err := n.node.CreateSnapshot(p, func(w io.Writer) (int64, error) {
		count, err := io.WriteString(w, strings.Join(n.state, "\n"))
		return int64(count), err
	})
	if err == nil {
		err = n.node.Snapshotted(p)
	}
	s.failed(n, err)
}

// crash takes the power from a node and starts it again.
func (s *simulation) crash(n *simNode) {
	s.t.Helper()
	// Half-way percentages depend on the order of a map in the file system: no two runs would be equal.
	percent := []int{0, 100}[s.random.IntN(2)]
	fs := n.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: s.random})
	if err := n.node.Close(); err != nil && !errors.Is(err, syscall.EIO) {
		s.t.Fatal(err)
	}
	n.fs, n.failIn = fs, 0
	s.open(n)
}

// run does random things with faults, then waits without faults until all agree.
func (s *simulation) run() [32]byte {
	s.t.Helper()
	for range 4000 {
		s.step(true)
	}
	for id := uint64(1); id <= 3; id++ {
		s.nodes[id].failIn = 0
	}
	for range 20000 {
		s.step(false)
		if s.settled() {
			break
		}
	}
	if !s.settled() {
		s.t.Fatalf("the group did not settle: applied %d %d %d", s.nodes[1].applied, s.nodes[2].applied, s.nodes[3].applied)
	}
	for data := range s.acknowledged {
		for id := uint64(1); id <= 3; id++ {
			if !slices.Contains(s.nodes[id].state, data) {
				s.t.Fatalf("%q was acknowledged and is not at node %d", data, id)
			}
		}
	}
	for id := uint64(1); id <= 3; id++ {
		if err := s.nodes[id].node.Close(); err != nil {
			s.t.Fatal(err)
		}
	}
	return sha256.Sum256(s.trace.Bytes())
}

// settled says whether all nodes have applied the same and something was decided.
func (s *simulation) settled() bool {
	a, b, c := s.nodes[1], s.nodes[2], s.nodes[3]
	return a.applied > 0 && a.applied >= s.newest && a.applied == b.applied && b.applied == c.applied && slices.Equal(a.state, b.state) && slices.Equal(b.state, c.state)
}

// TestNodesAgree runs simulations: state machine safety, durability, linearizable reads and liveness
// (Raft, figure 3), and that a seed gives the same run twice.
func TestNodesAgree(t *testing.T) {
	for seed := range simulationSeeds() {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			s := newSimulation(t, seed)
			first := s.run()
			t.Logf("%d acknowledged, %d terms, %d reads, %d snapshots installed", len(s.acknowledged), s.nodes[1].term, s.answered, s.installed)
			if len(s.acknowledged) == 0 {
				t.Error("nothing was acknowledged")
			}
			if seed%10 == 0 && newSimulation(t, seed).run() != first {
				t.Error("the same seed gave another run")
			}
		})
	}
}

// simulationSeeds is how many seeds a run takes; KOLOCATE_SEEDS asks for more.
func simulationSeeds() uint64 {
	n, err := strconv.ParseUint(os.Getenv("KOLOCATE_SEEDS"), 10, 32)
	if err != nil {
		return 16
	}
	return n
}
