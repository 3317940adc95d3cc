// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// A world is a few shards, each a core and a leader that never fail but may be
// replaced at any moment, over a network that reorders, loses and repeats.
type world struct {
	r      *rand.Rand
	now    time.Time
	nodes  []*node // nodes[i] is shard i+1
	shards []keyspace.ShardID
	net    []packet
	calm   bool // faults have stopped
	faults faults

	vertices []keyspace.Vertex
	believed map[keyspace.Vertex]keyspace.ShardID // where the placement says
	handoffs []*shardv1.Handoff
	nextMove uint64
	moves    int // still to be started

	clients []*client
	ops     []*operation
	todo    int
	origins map[uint64]*operation
	origin  uint64
	clock   int // of the history
	err     error
}

type faults struct {
	loss, repeat, restart, stale, impatient, silent float64
}

type packet struct {
	from, to keyspace.ShardID
	message  *shardv1.Message
}

type node struct {
	w         *world
	id        keyspace.ShardID
	core      *Core
	twin      *Core // applies the same entries
	leader    *Leader
	term      uint64
	index     uint64
	proposals []*shardv1.Entry
}

func testConfig(id keyspace.ShardID) Config {
	return Config{Store: "test", Shard: id, SweepKeys: 3}
}

func testLeaderConfig(term uint64) LeaderConfig {
	return LeaderConfig{
		Term: term, ChunkBytes: 60, ChunkWindow: 3, SealKeys: 2, SealBytes: 400, MaxRounds: 2,
		VoteTimeout: 400 * time.Millisecond, ProposalTimeout: 200 * time.Millisecond,
	}
}

func newWorld(seed uint64) *world {
	r := rand.New(rand.NewPCG(seed, 7))
	w := &world{
		r: r, now: time.UnixMilli(1_000_000), believed: map[keyspace.Vertex]keyspace.ShardID{},
		origins: map[uint64]*operation{}, todo: 10 + r.IntN(60), moves: []int{0, 6, 24}[r.IntN(3)],
	}
	w.faults = faults{
		loss: pick(r, 0, 0.05, 0.2), repeat: pick(r, 0, 0.05, 0.2), restart: pick(r, 0, 0.003, 0.02),
		stale: pick(r, 0, 0.2), impatient: pick(r, 0, 0.01, 0.05), silent: pick(r, 0, 0.05, 0.3),
	}
	count := 2 + r.IntN(4)
	for i := range count {
		w.shards = append(w.shards, keyspace.ShardID(i+1))
	}
	for i := range 2 + r.IntN(7) {
		v := keyspace.Vertex(fmt.Sprintf("v%d", i))
		w.vertices = append(w.vertices, v)
	}
	placement, err := keyspace.EvenPlacement(count)
	if err != nil {
		panic(err)
	}
	for _, id := range w.shards {
		n := &node{w: w, id: id, core: New(testConfig(id)), twin: New(testConfig(id))}
		w.nodes = append(w.nodes, n)
		g := &shardv1.Genesis{Store: "test", Shard: uint32(id)}
		for slot := range keyspace.Slots {
			if placement.ShardOfSlot(keyspace.Slot(slot)) == id {
				g.Slots = append(g.Slots, &shardv1.SlotRange{First: uint32(slot), Last: uint32(slot)})
			}
		}
		n.newLeader()
		n.apply(&shardv1.Entry{Body: &shardv1.Entry_Genesis{Genesis: g}})
	}
	for _, v := range w.vertices {
		w.believed[v] = placement.ShardOf(v)
	}
	for i := range 2 + r.IntN(5) {
		w.clients = append(w.clients, &client{id: uint64(i + 1)})
	}
	return w
}

func pick(r *rand.Rand, of ...float64) float64 { return of[r.IntN(len(of))] }

func (w *world) chance(p float64) bool { return w.r.Float64() < p }

func (w *world) node(id keyspace.ShardID) *node { return w.nodes[id-1] }

func (w *world) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

func (n *node) newLeader() {
	n.term++
	n.leader = NewLeader(n.core, testLeaderConfig(n.term), n.w.now)
	n.drain()
}

// drain takes what the leader wants to propose and to send.
func (n *node) drain() {
	propose, send := n.leader.Output()
	n.proposals = append(n.proposals, propose...)
	for _, out := range send {
		p := packet{from: n.id, to: out.To, message: out.Message}
		if !n.w.calm && n.w.chance(n.w.faults.loss) {
			continue
		}
		n.w.net = append(n.w.net, p)
		if !n.w.calm && n.w.chance(n.w.faults.repeat) {
			n.w.net = append(n.w.net, p)
		}
	}
}

func (n *node) apply(e *shardv1.Entry) {
	n.index++
	n.trace(e)
	effects, err := n.core.Apply(n.index, e)
	if err != nil {
		n.w.fail("apply at %v: %v", n.id, err)
		return
	}
	if _, err := n.twin.Apply(n.index, e); err != nil {
		n.w.fail("apply at the twin of %v: %v", n.id, err)
	}
	for _, effect := range effects {
		switch {
		case effect.Kind == EffectReply:
			n.w.replied(effect.Origin, effect.Reply)
		case effect.Kind == EffectHandoff && effect.Handoff.Step == HandoffCommitted:
			for _, v := range n.w.vertices {
				if newArea(effect.Handoff.Handoff).has(v) && n.core.owner.has(v) {
					n.w.believed[v] = n.id
				}
			}
		}
	}
	n.leader.Applied(effects, n.w.now)
	n.drain()
}

// replace puts a new leader in place of the old one, whose last proposals may be
// lost, and sometimes a core restored from a snapshot.
func (n *node) replace() {
	n.proposals = n.proposals[:n.w.r.IntN(len(n.proposals)+1)]
	for len(n.proposals) > 0 { // what got into the log is applied before the new leader starts
		e := n.proposals[0]
		n.proposals = n.proposals[1:]
		n.applyBetweenLeaders(e)
	}
	n.leader.Close()
	if n.w.chance(0.5) {
		var buffer bytes.Buffer
		if _, err := n.core.Snapshot().WriteTo(&buffer); err != nil {
			n.w.fail("snapshot: %v", err)
		}
		restored, err := Restore(testConfig(n.id), &buffer)
		if err != nil {
			n.w.fail("restore: %v", err)
			return
		}
		n.core = restored
	}
	n.newLeader()
}

func (n *node) applyBetweenLeaders(e *shardv1.Entry) {
	n.apply(e)
	// The old leader no longer leads: what it makes of the entry is lost.
	n.leader.Output()
}

func (w *world) step() {
	switch k := w.r.IntN(100); {
	case k < 12 && (!w.calm || len(w.net) < 40):
		w.now = w.now.Add(time.Duration(1+w.r.IntN(20)) * time.Millisecond)
		n := w.nodes[w.r.IntN(len(w.nodes))]
		n.leader.Tick(w.now)
		n.drain()
	case k < 50:
		w.deliver()
	case k < 85:
		n := w.nodes[w.r.IntN(len(w.nodes))]
		if len(n.proposals) > 0 {
			e := n.proposals[0]
			n.proposals = n.proposals[1:]
			n.apply(e)
		}
	case k < 94:
		w.clientStep()
	case k < 98 && !w.calm:
		w.handoffStep()
	case k >= 98:
		w.forgetStep()
	}
	if !w.calm && w.chance(w.faults.restart) {
		w.nodes[w.r.IntN(len(w.nodes))].replace()
	}
}

func (w *world) deliver() {
	if len(w.net) == 0 {
		return
	}
	i := w.r.IntN(len(w.net))
	p := w.net[i]
	w.net[i] = w.net[len(w.net)-1]
	w.net = w.net[:len(w.net)-1]
	n := w.node(p.to)
	n.leader.Receive(p.from, p.message, w.now)
	n.drain()
}

// handoffStep starts a handoff of some vertices, by name or by slot, or aborts one.
func (w *world) handoffStep() {
	if len(w.handoffs) > 0 && w.chance(0.2) {
		h := w.handoffs[w.r.IntN(len(w.handoffs))]
		n := w.node(keyspace.ShardID(h.From))
		_ = n.leader.AbortMove(h.Id, w.now) // it may have ended
		n.drain()
		return
	}
	if w.moves == 0 {
		return
	}
	w.moves--
	from := w.nodes[w.r.IntN(len(w.nodes))]
	to := w.shards[w.r.IntN(len(w.shards))]
	w.nextMove++
	h := &shardv1.Handoff{Id: w.nextMove, From: uint32(from.id), To: uint32(to)}
	for _, v := range w.vertices {
		switch {
		case w.chance(0.5):
		case w.chance(0.5) && from.core.owner.has(v):
			h.Vertices = append(h.Vertices, []byte(v))
		case from.core.owner.slots.Has(keyspace.SlotOf(v)):
			h.Slots = append(h.Slots, uint32(keyspace.SlotOf(v)))
		}
	}
	if err := from.leader.StartMove(&shardv1.MoveRequest{Handoff: h, RateBytesPerSecond: uint64(w.r.IntN(2) * 2000)}, w.now); err == nil {
		w.handoffs = append(w.handoffs, h)
	}
	from.drain()
}

// forgetStep lets both ends forget a handoff that has ended at its source.
func (w *world) forgetStep() {
	for i, h := range w.handoffs {
		o := w.node(keyspace.ShardID(h.From)).core.outgoing[h.Id]
		if o == nil || o.active() || !w.chance(0.3) {
			continue
		}
		for _, n := range w.nodes {
			n.leader.Housekeep(0, []uint64{h.Id})
			n.drain()
		}
		w.handoffs = slices.Delete(w.handoffs, i, i+1)
		return
	}
}

// believes is the placement that clients and shards are told.
type believes struct{ w *world }

func (b believes) ShardOf(v keyspace.Vertex) keyspace.ShardID {
	if id, ok := b.w.believed[v]; ok {
		return id
	}
	return keyspace.NoShard
}

func newOrigin(w *world, op *operation) uint64 {
	w.origin++
	w.origins[w.origin] = op
	return w.origin
}
