// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package core owns a shard's replicated state: its keys, what it owns, and the
// protocols for commands over several shards and for handoffs (DESIGN 3).
// It never reads a clock, a random source, a disk or the network, and starts no
// goroutine. The shard server and the simulator drive it, one goroutine at a time.
package core

import (
	"io"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// Core is the deterministic state machine of one shard. The same entries in the
// same order lead to the same state and the same effects at every replica. It is
// not safe for concurrent use.
type Core struct {
	cfg Config
}

// New returns the empty core of a shard. Its first entry must be a Genesis.
func New(cfg Config) *Core { return &Core{cfg: cfg.withDefaults()} }

// Apply applies the log entry at index and returns its effects in order. The
// core keeps e and parts of it: nobody may change e afterwards. The returned
// slice is used again by the next Apply; what it points to is not.
//
// An error is fatal for the replica: the log is not one of this shard, or the
// state is broken. A command that can't run is no error but a Reply.
func (c *Core) Apply(index uint64, e *shardv1.Entry) ([]Effect, error) { return nil, nil }

// Read runs a pure read on the applied state. When ok is false the command must
// go through the log: it writes, meets vertices that are held or have queued
// commands, or is a scan over several shards. A read of vertices that are not
// owned is answered MOVED with hints, or RETRY if they are on their way here.
// The caller has made sure that the state is fresh enough (a ReadIndex).
func (c *Core) Read(cmd *kvv1.Command) (reply *kvv1.Reply, ok bool) { return nil, false }

// Owns says whether the shard owns v and serves it. If not, hint names the shard
// it is believed to be at (NoShard if unknown), and incoming says that it is
// staged here by a handoff which has not committed yet: hint is then this shard,
// and a command is best kept back until the EffectHandoff for it.
func (c *Core) Owns(v keyspace.Vertex) (owned bool, hint keyspace.ShardID, incoming bool) {
	return false, keyspace.NoShard, false
}

// Class says where a command can run, as this shard sees it.
type Class uint8

// The classes of a command.
const (
	// ClassLocal: all vertices are owned here; propose it in a Commands entry.
	ClassLocal Class = iota + 1
	// ClassMulti: several shards are involved and this one coordinates; hand it
	// to Leader.Submit with the claims.
	ClassMulti
	// ClassElsewhere: another shard should run or coordinate it.
	ClassElsewhere
	// ClassIncoming: a vertex is on its way here; wait for the EffectHandoff.
	ClassIncoming
	// ClassUnknown: the home of a vertex is not known, neither here nor to the
	// placement.
	ClassUnknown
)

// Placement tells where vertices are believed to be. keyspace.Placement is one.
type Placement interface {
	// ShardOf returns NoShard for a vertex whose home it does not know.
	ShardOf(v keyspace.Vertex) keyspace.ShardID
}

// Classification is Classify's answer.
type Classification struct {
	Class Class
	// Claims, with ClassMulti: ascending by shard.
	Claims []*shardv1.Claim
	// Target, with ClassElsewhere: the shard that owns the command's vertices, or
	// most of them (ties: the lowest id), and so coordinates it.
	Target keyspace.ShardID
	// Hints names the believed shard of every vertex that is not owned here.
	Hints []*kvv1.Hint
}

// Classify says, from this shard's ownership and forwarding pointers and, for
// vertices of which they say nothing, from the placement, where cmd can run.
// shards lists all shards of the store, ascending: a scan over all shards claims
// each of them. A command that has been forwarded too often may be coordinated
// anywhere: with coordinateHere it is never ClassElsewhere by majority alone,
// as long as this shard owns one of its vertices.
func (c *Core) Classify(cmd *kvv1.Command, p Placement, shards []keyspace.ShardID, coordinateHere bool) Classification {
	return Classification{}
}

// SetTracing switches EffectExecuted on or off. It is no part of the state.
func (c *Core) SetTracing(on bool) {}

// Applied returns the index of the last applied entry.
func (c *Core) Applied() uint64 { return 0 }

// HasGenesis says whether the shard knows who it is. Before that it owns nothing.
func (c *Core) HasGenesis() bool { return false }

// Stats counts what the core holds. All values are of this moment, except
// Executed and MultiShard, which count since New or Restore.
type Stats struct {
	Applied     uint64
	Keys        uint64
	Bytes       uint64 // keys and values
	Clock       uint64
	LogTime     int64 // milliseconds since the Unix epoch
	Slots       int
	VerticesIn  int
	VerticesOut int
	Pending     int // multi-shard commands begun and not finished
	Held        int // of these, those that hold vertices
	Queued      int // single-shard commands that wait for held vertices
	Records     int
	Handoffs    int // handoffs that have neither ended nor been forgotten
	Executed    uint64
	MultiShard  uint64 // executed over several shards, counted at the coordinator
}

// Stats returns counts; it takes no time worth mention.
func (c *Core) Stats() Stats { return Stats{} }

// Snapshot returns a copy of the state that later entries do not change. It
// shares the trees with the core (copy on write) and may be written by another
// goroutine.
func (c *Core) Snapshot() *Snapshot { return nil }

// Snapshot is the state of a core at one index.
type Snapshot struct{}

// Applied returns the index the snapshot was taken at.
func (s *Snapshot) Applied() uint64 { return 0 }

// WriteTo writes the snapshot with a format version and checksums, and returns
// the bytes written.
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) { return 0, nil }

// Close lets the copy go. WriteTo must have returned.
func (s *Snapshot) Close() {}

// Restore reads a snapshot. It refuses one of another store or shard, another
// format version, or with a wrong checksum, and says which.
func Restore(cfg Config, r io.Reader) (*Core, error) { return New(cfg), nil }

// StateHash returns a hash over the whole state: equal at replicas that applied
// the same entries. It walks the state: for tests and the simulator.
func (c *Core) StateHash() uint64 { return 0 }

// CheckInvariants returns an error that names the first broken invariant. It
// walks the state: for tests and the simulator.
func (c *Core) CheckInvariants() error { return nil }

// Validate returns a *CommandError for a command that no shard will ever run: it
// is malformed or over a limit. Serve and the SDK call it before they send or
// propose anything; the core trusts that it has been called, and answers
// REJECTED where it was not.
func Validate(cmd *kvv1.Command) error { return nil }

// PureRead says that a command can't write, whichever branch runs.
func PureRead(cmd *kvv1.Command) bool { return false }

// Vertices returns the distinct vertices of a command's keys, in the order of
// their first key.
func Vertices(cmd *kvv1.Command) []keyspace.Vertex { return nil }
