// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package replica owns one member of one Raft group: its log, its snapshots and its wire to the other members.
// It never looks into what is replicated: that is the StateMachine's, which it drives from one goroutine.
// The shard and the oracle processes call it through Host; the simulator drives Node.
package replica

import (
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/kolocate/kolocate/services/replica/transport"
)

// Entry is one committed log entry.
type Entry struct {
	// Index is the position in the log, from 1.
	Index uint64
	// Term is the Raft term in which the entry was proposed.
	Term uint64
	// Data is what was given to Propose. It must not be changed: peers may still be sent it.
	Data []byte
}

// StateMachine is what a replica group keeps equal on all of its members. The host calls every
// method from one goroutine, the apply goroutine, and never two at a time.
type StateMachine interface {
	// Apply takes committed entries in log order. The slice is reused after the call; the Data of its
	// entries is not. An error is fatal for the replica.
	Apply(entries []Entry) error
	// Snapshot returns at once (copy on write) with a writer that the host runs in the background
	// while Apply goes on.
	Snapshot() (SnapshotWriter, error)
	// Restore replaces the state by what Snapshot wrote.
	Restore(r io.Reader) error
}

// SnapshotWriter writes the state as it was when StateMachine.Snapshot returned it. It is used by one
// goroutine, which is not the apply goroutine.
type SnapshotWriter interface {
	// WriteTo writes the whole state and returns the number of bytes written.
	WriteTo(w io.Writer) (int64, error)
	// Close frees what the snapshot holds. It is called once, also when WriteTo failed or was never called.
	Close()
}

// Leadership tells who leads the group, as this replica sees it.
type Leadership struct {
	// Leader says that this replica leads, and that it has applied all entries of earlier terms.
	Leader bool
	// Term is the Raft term in which this holds.
	Term uint64
	// LeaderID is the replica that leads, 0 if none is known.
	LeaderID uint64
}

// Status is what a replica knows of itself at one moment.
type Status struct {
	// Leadership is the last one announced through Config.OnLeadership, or a loss about to be announced.
	Leadership
	// Applied is the index of the last applied entry.
	Applied uint64
	// Committed is the index of the last entry known to be committed.
	Committed uint64
	// WALBytes is the size of the log on disk.
	WALBytes int64
	// SnapshotIndex is the index of the last snapshot that is durable here, 0 without one.
	SnapshotIndex uint64
}

// Config says which member of which group a Host is, where its files are, and what bounds it keeps.
// A zero value of a field that has a default takes it.
type Config struct {
	// Group names the Raft group, such as "store/shard-1": 1 to 255 bytes. A log or a peer of another
	// group is refused.
	Group string
	// ID is this replica's, from 1.
	ID uint64
	// Peers maps the id of each member to the address of its replica gRPC server: 1, 3 or 5 members,
	// this one included. The address of this one is not dialled.
	Peers map[uint64]string

	// FS is the file system that holds Dir; vfs.Default if nil. Dir is used by this replica alone.
	FS  vfs.FS
	Dir string

	// TickInterval is the unit of Raft time and the interval of heartbeats; default 100 ms.
	// ElectionTimeout is the shortest silence of a leader after which another is elected; default 1 s,
	// at least 4 ticks.
	TickInterval, ElectionTimeout time.Duration
	// MaxClockError bounds how much two members' clocks may drift apart within one ElectionTimeout.
	// 0: no lease, each batch of reads asks a quorum. Otherwise the leader answers reads alone until
	// ElectionTimeout less two ticks less MaxClockError after a quorum was last asked.
	MaxClockError time.Duration

	// SnapshotEveryBytes is how many bytes of entries are applied between two snapshots; default 64 MiB.
	// KeepLogBytes is how many bytes of entries stay in memory below the snapshot for followers that lag;
	// default 16 MiB.
	SnapshotEveryBytes, KeepLogBytes int64
	// MaxPendingProposals and MaxPendingBytes bound what waits to be appended to the log; over them
	// Propose answers ErrQueueFull. Defaults 16,384 and 64 MiB. Reads and functions waiting are bounded
	// by MaxPendingProposals too.
	MaxPendingProposals int
	MaxPendingBytes     int64

	// StateMachine is what is replicated.
	StateMachine StateMachine
	// OnLeadership, if not nil, is called from the apply goroutine, in order with Apply. When it says
	// Leader, all entries of earlier terms have been applied. When it says not Leader after that, what was
	// proposed and not yet applied may or may not be applied later. It must not block, and may be called
	// before Open has returned.
	OnLeadership func(Leadership)

	// Seed seeds the election timers. Members of one group should have different seeds.
	Seed uint64
	// Logger takes the replica's log; slog.Default if nil.
	Logger *slog.Logger
	// Registerer takes the metrics, labelled with the group; nil for none.
	Registerer prometheus.Registerer
	// DialOptions are used to dial the peers; without any, connections are not encrypted.
	DialOptions []grpc.DialOption
}

// ServerOptions are the options that a gRPC server must have on which a Host is registered: they allow
// messages as large as the largest proposal.
func ServerOptions() []grpc.ServerOption { return transport.ServerOptions() }

// MaxProposalBytes is the size of the largest proposal.
const MaxProposalBytes = transport.MaxMessageBytes - 1<<20

const (
	defaultTickInterval       = 100 * time.Millisecond
	defaultElectionTimeout    = time.Second
	defaultSnapshotEveryBytes = 64 << 20
	defaultKeepLogBytes       = 16 << 20
	defaultPendingProposals   = 16 << 10
	defaultPendingBytes       = 64 << 20
	minElectionTicks          = 4
)

// orDefault returns v, or d if v is the zero value.
func orDefault[T comparable](v, d T) T {
	var zero T
	if v == zero {
		return d
	}
	return v
}

// withDefaults fills in defaults and checks the rest.
func (c Config) withDefaults() (Config, error) {
	c.TickInterval = orDefault(c.TickInterval, defaultTickInterval)
	c.ElectionTimeout = orDefault(c.ElectionTimeout, defaultElectionTimeout)
	c.SnapshotEveryBytes = orDefault(c.SnapshotEveryBytes, defaultSnapshotEveryBytes)
	c.KeepLogBytes = orDefault(c.KeepLogBytes, defaultKeepLogBytes)
	c.MaxPendingProposals = orDefault(c.MaxPendingProposals, defaultPendingProposals)
	c.MaxPendingBytes = orDefault(c.MaxPendingBytes, defaultPendingBytes)
	if c.FS == nil {
		c.FS = vfs.Default
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.OnLeadership == nil {
		c.OnLeadership = func(Leadership) {}
	}
	if c.StateMachine == nil {
		return c, fmt.Errorf("open replica %d of %q: no state machine is configured", c.ID, c.Group)
	}
	if c.Dir == "" {
		return c, fmt.Errorf("open replica %d of %q: no directory is configured", c.ID, c.Group)
	}
	if c.TickInterval <= 0 || c.electionTicks() < minElectionTicks {
		return c, fmt.Errorf("open replica %d of %q: election timeout %v is below %d ticks of %v: raise it or lower the tick interval",
			c.ID, c.Group, c.ElectionTimeout, minElectionTicks, c.TickInterval)
	}
	if c.MaxClockError < 0 || c.MaxPendingProposals < 0 || c.MaxPendingBytes < 0 || c.SnapshotEveryBytes < 0 || c.KeepLogBytes < 0 {
		return c, fmt.Errorf("open replica %d of %q: a bound is negative: use 0 for its default", c.ID, c.Group)
	}
	return c, nil
}

// electionTicks is the election timeout in ticks.
func (c *Config) electionTicks() int { return int(c.ElectionTimeout / c.TickInterval) }

// members returns the ids of the configured members in ascending order.
func (c *Config) members() []uint64 {
	ids := make([]uint64, 0, len(c.Peers))
	for id := range c.Peers {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}
