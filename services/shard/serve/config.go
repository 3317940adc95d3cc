// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/grpc"

	"github.com/kolocate/kolocate/services/keyspace"
	"github.com/kolocate/kolocate/services/shard/core"
)

// Config says which replica of which shard a process is. A zero field that has
// a default takes it.
type Config struct {
	Store   string
	Shard   keyspace.ShardID
	Replica uint64
	// Peers maps replica ids of this shard to gRPC addresses, this one included.
	Peers   map[uint64]string
	DataDir string
	// Listen and MetricsListen are host:port of the gRPC and the HTTP server.
	Listen, MetricsListen string
	// Listener and MetricsListener are used instead of Listen and MetricsListen, if set.
	Listener, MetricsListener net.Listener
	// Advertise is the host:port under which others reach the gRPC server.
	Advertise string
	// Oracle lists the addresses of the oracle's replicas.
	Oracle                        []string
	TickInterval, ElectionTimeout time.Duration
	// MaxClockError, if not 0, lets the leader answer reads under a lease (see replica.Config).
	MaxClockError time.Duration
	// Bounds are the core's; Store and Shard in it are set from the above. All
	// replicas of a shard must have the same.
	Bounds core.Config
	// Limits bound what waits in this process.
	Limits Limits
	// FS is the file system of DataDir; the operating system's if nil.
	FS          vfs.FS
	DialOptions []grpc.DialOption
	Version     string
	Logger      *slog.Logger
}

// Limits bound what waits in a process. Over one of them a command is answered
// RETRY, or RESOURCE_EXHAUSTED, with the name of the bound.
type Limits struct {
	// MaxRequests bounds the commands under way; default 65,536.
	MaxRequests int
	// MaxStreamRequests bounds those of one stream, MaxStreamBytes the replies
	// that wait to be sent on it: over them the stream is not read. Defaults
	// 8,192 and 32 MiB.
	MaxStreamRequests, MaxStreamBytes int
	// MaxParked bounds commands that wait for a handoff to commit; default 16,384.
	MaxParked int
	// MaxBatchCommands and MaxBatchBytes bound one log entry; defaults 512 and 1 MiB.
	MaxBatchCommands, MaxBatchBytes int
	// MaxInbox bounds the messages of other shards that wait; default 65,536.
	MaxInbox int
	// MaxHints bounds the vertices whose place was learnt from retries; default 65,536.
	MaxHints int
	// DefaultTimeout holds for commands that bring none, MaxTimeout bounds all;
	// defaults 10 s and 60 s.
	DefaultTimeout, MaxTimeout time.Duration
	// StopTimeout bounds a graceful stop; default 10 s.
	StopTimeout time.Duration
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (l Limits) withDefaults() Limits {
	setDefault(&l.MaxRequests, 65536)
	setDefault(&l.MaxStreamRequests, 8192)
	setDefault(&l.MaxStreamBytes, 32<<20)
	setDefault(&l.MaxParked, 16384)
	setDefault(&l.MaxBatchCommands, 512)
	setDefault(&l.MaxBatchBytes, 1<<20)
	setDefault(&l.MaxInbox, 65536)
	setDefault(&l.MaxHints, 65536)
	setDefault(&l.DefaultTimeout, 10*time.Second)
	setDefault(&l.MaxTimeout, 60*time.Second)
	setDefault(&l.StopTimeout, 10*time.Second)
	return l
}

func (c Config) withDefaults() (Config, error) {
	c.Limits = c.Limits.withDefaults()
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Bounds.Store, c.Bounds.Shard = c.Store, c.Shard
	if err := c.Bounds.Validate(); err != nil {
		return c, err
	}
	if c.Advertise == "" {
		c.Advertise = c.Peers[c.Replica]
	}
	if _, _, err := net.SplitHostPort(c.Advertise); err != nil {
		return c, fmt.Errorf("configure %v: the address %q under which others reach replica %d: %w: expected host:port", c.Shard, c.Advertise, c.Replica, err)
	}
	if _, ok := c.Peers[c.Replica]; !ok {
		return c, fmt.Errorf("configure %v: replica %d is not among the %d peers; name all replicas, this one included", c.Shard, c.Replica, len(c.Peers))
	}
	if c.DataDir == "" {
		return c, errors.New("configure a shard: no data directory is named; name a folder for the log and the snapshots")
	}
	return c, nil
}
