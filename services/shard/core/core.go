// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package core owns a shard's replicated state: its keys, what it owns, and the
// protocols for commands over several shards and for handoffs (DESIGN 3).
// It never reads a clock, a random source, a disk or the network, and starts no
// goroutine. The shard server and the simulator drive it, one goroutine at a time.
package core

import (
	"fmt"
	"maps"
	"slices"

	"github.com/tidwall/btree"

	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// Core is the deterministic state machine of one shard. The same entries in the
// same order lead to the same state and the same effects at every replica. It is
// not safe for concurrent use.
type Core struct {
	cfg     Config
	genesis bool
	index   uint64
	now     int64 // log time, milliseconds since the Unix epoch
	// clock is the logical clock: it orders multi-shard commands and numbers
	// versions. It only grows, and goes along with handoffs.
	clock      uint64
	epochKnown uint64

	keys    keys
	owner   ownership
	records records
	sweeps  []*sweep

	lastAttempt uint64
	pending     map[attemptKey]*attempt
	finished    finished
	queues      queues

	outgoing map[uint64]*outgoing
	incoming map[uint64]*incoming
	ended    *btree.Map[uint64, struct{}]

	// What follows is derived from the state above.
	undelivered *btree.BTreeG[*attempt]
	coordinated *btree.Map[uint64, struct{}]
	progress    map[commandKey]int
	sources     []*outgoing // active, ascending by id
	stagings    []*incoming // staging, ascending by id
	sealed      int

	// And this is no part of the state.
	scratch       execution
	effects       []Effect
	tracing       bool
	trackers      []*tracker
	executed      uint64
	executedMulti uint64
}

// New returns the empty core of a shard. Its first entry must be a Genesis.
func New(cfg Config) *Core {
	return &Core{
		cfg:         cfg.withDefaults(),
		keys:        newKeys(),
		owner:       newOwnership(),
		records:     newRecords(),
		pending:     map[attemptKey]*attempt{},
		finished:    newFinished(),
		queues:      newQueues(),
		outgoing:    map[uint64]*outgoing{},
		incoming:    map[uint64]*incoming{},
		ended:       &btree.Map[uint64, struct{}]{},
		undelivered: btree.NewBTreeGOptions(attemptBefore, btree.Options{NoLocks: true}),
		coordinated: &btree.Map[uint64, struct{}]{},
		progress:    map[commandKey]int{},
	}
}

// Apply applies the log entry at index and returns its effects in order. The
// core keeps e and parts of it: nobody may change e afterwards. The returned
// slice is used again by the next Apply; what it points to is not.
//
// An error is fatal for the replica: the log is not one of this shard, or the
// state is broken. A command that can't run is no error but a Reply.
func (c *Core) Apply(index uint64, e *shardv1.Entry) ([]Effect, error) {
	clear(c.effects)
	c.effects = c.effects[:0]
	if index <= c.index {
		return nil, fmt.Errorf("apply entry %d at %v: entry %d is applied already; entries must come in order", index, c.cfg.Shard, c.index)
	}
	c.index = index
	c.now = max(c.now, e.GetTimeMillis())
	if err := c.apply(e); err != nil {
		return nil, err
	}
	c.records.expire(c.now-c.cfg.RecordRetention.Milliseconds(), c.cfg.MaxRecords, c.cfg.MaxRecordBytes)
	if len(c.sweeps) > 0 {
		c.sweepSome()
	}
	if c.sealed > 0 {
		c.noteDrained()
	}
	return c.effects, nil
}

func (c *Core) apply(e *shardv1.Entry) error {
	if g, ok := e.GetBody().(*shardv1.Entry_Genesis); ok {
		return c.applyGenesis(g.Genesis)
	}
	if !c.genesis {
		return fmt.Errorf("apply entry %d at %v of store %q: the log does not begin with a genesis entry; start the shard with the data directory it was created in", c.index, c.cfg.Shard, c.cfg.Store)
	}
	switch body := e.GetBody().(type) {
	case *shardv1.Entry_Commands:
		c.commands(body.Commands.GetCommands())
	case *shardv1.Entry_Begin:
		c.begin(body.Begin)
	case *shardv1.Entry_Decide:
		c.decide(body.Decide)
	case *shardv1.Entry_Inputs:
		c.inputs(body.Inputs)
	case *shardv1.Entry_Return:
		c.giveBack(body.Return)
	case *shardv1.Entry_Finish:
		c.finish(body.Finish)
	case *shardv1.Entry_HandoffBegin:
		c.handoffBegin(body.HandoffBegin.GetHandoff())
	case *shardv1.Entry_HandoffSeal:
		c.handoffSeal(body.HandoffSeal.GetId())
	case *shardv1.Entry_HandoffDone:
		return c.handoffDone(body.HandoffDone.GetId())
	case *shardv1.Entry_HandoffRevoke:
		c.handoffRevoke(body.HandoffRevoke.GetId())
	case *shardv1.Entry_HandoffStage:
		c.handoffStage(body.HandoffStage)
	case *shardv1.Entry_HandoffCommit:
		c.handoffCommit(body.HandoffCommit)
	case *shardv1.Entry_HandoffTombstone:
		c.handoffTombstone(body.HandoffTombstone.GetId(), keyspace.NoShard)
	case *shardv1.Entry_Housekeeping:
		c.housekeeping(body.Housekeeping)
	default:
		return fmt.Errorf("apply entry %d at %v: unknown kind of entry %T; it was written by a newer version, run that one", c.index, c.cfg.Shard, body)
	}
	return nil
}

// applyGenesis takes a shard's identity and first slots. A second one is a
// repetition by a new leader and changes nothing.
func (c *Core) applyGenesis(g *shardv1.Genesis) error {
	if g.GetStore() != c.cfg.Store || keyspace.ShardID(g.GetShard()) != c.cfg.Shard {
		return fmt.Errorf("apply genesis at %v of store %q: the log is of %v of store %q; give this shard its own data directory",
			c.cfg.Shard, c.cfg.Store, keyspace.ShardID(g.GetShard()), g.GetStore())
	}
	if c.genesis {
		return nil
	}
	c.genesis = true
	for _, run := range g.GetSlots() {
		for slot := run.First; slot <= run.Last && slot < keyspace.Slots; slot++ {
			c.owner.slots.Add(keyspace.Slot(slot))
		}
	}
	return nil
}

func (c *Core) housekeeping(h *shardv1.Housekeeping) {
	c.epochKnown = max(c.epochKnown, h.GetEpochKnownEverywhere())
	c.forgetHandoffs(h.GetForgetHandoffs())
	c.records.expireMarks(c.now-c.cfg.RecordRetention.Milliseconds(), c.cfg.MaxRecords)
}

// Owns says whether the shard owns v and serves it. If not, hint names the shard
// it is believed to be at (NoShard if unknown), and incoming says that it is
// staged here by a handoff which has not committed yet: hint is then this shard,
// and a command is best kept back until the EffectHandoff for it.
func (c *Core) Owns(v keyspace.Vertex) (owned bool, hint keyspace.ShardID, incoming bool) {
	if c.owner.has(v) {
		if c.sealed > 0 {
			for _, o := range c.sources {
				if o.phase == outgoingSealed && o.area.has(v) {
					return false, keyspace.ShardID(o.handoff.To), false
				}
			}
		}
		return true, c.cfg.Shard, false
	}
	for _, in := range c.stagings {
		if in.area.has(v) {
			if _, elsewhere := c.owner.out[v]; elsewhere && !in.area.names(v) {
				continue
			}
			return false, c.cfg.Shard, true
		}
	}
	return false, c.owner.hint(v), false
}

// SetTracing switches EffectExecuted on or off. It is no part of the state.
func (c *Core) SetTracing(on bool) { c.tracing = on }

// Applied returns the index of the last applied entry.
func (c *Core) Applied() uint64 { return c.index }

// HasGenesis says whether the shard knows who it is. Before that it owns nothing.
func (c *Core) HasGenesis() bool { return c.genesis }

// Stats counts what the core holds. All values are of this moment, except
// Executed and MultiShard, which count since New or Restore.
type Stats struct {
	Applied     uint64
	Keys        uint64 // staged ones and ones not deleted yet included
	Bytes       uint64 // of keys and values
	Clock       uint64
	LogTime     int64 // milliseconds since the Unix epoch
	Slots       int
	VerticesIn  int
	VerticesOut int
	Pending     int // multi-shard commands begun and not finished
	Held        int // of these, those that hold vertices
	Queued      int // single-shard commands that wait for held vertices
	Records     int
	Handoffs    int // handoffs that have not ended
	Executed    uint64
	MultiShard  uint64 // executed over several shards, counted at the coordinator
}

// Stats returns counts; it takes no time worth mention.
func (c *Core) Stats() Stats {
	s := Stats{
		Applied: c.index, Keys: uint64(c.keys.cells.Len()), Bytes: c.keys.bytes, Clock: c.clock, LogTime: c.now, //nolint:gosec // lengths are not negative
		Slots: c.owner.slots.Len(), VerticesIn: len(c.owner.in), VerticesOut: len(c.owner.out),
		Pending: len(c.pending), Queued: c.queues.waiting, Records: c.records.byID.Len(),
		Handoffs: len(c.sources) + len(c.stagings), Executed: c.executed, MultiShard: c.executedMulti,
	}
	for _, a := range c.pending {
		if a.phase == attemptHolding {
			s.Held++
		}
	}
	return s
}

// pendingSorted lists the attempts in an order that does not depend on the map's.
func (c *Core) pendingSorted() []*attempt {
	return slices.SortedFunc(maps.Values(c.pending), func(a, b *attempt) int { return a.key.compare(b.key) })
}
