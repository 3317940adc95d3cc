// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kolocate/kolocate/services/keyspace"
)

// Config says which store a Client speaks to and what bounds it keeps. A zero
// field takes its default.
type Config struct {
	// Target is the gRPC address of the store's Envoy, or of anything that
	// routes by x-kolocate-shard; it serves the placement too unless Placement is set.
	Target string
	// Placement is the address of the oracle; empty: Target.
	Placement string
	// Direct makes the client connect to the leaders that the placement names
	// instead of to Target. Placement must be set.
	Direct bool
	// Timeout holds for calls whose context has no deadline, and bounds Dial; default 10 s.
	Timeout time.Duration
	// MaxInFlight bounds the commands under way; over it calls wait. Default 4,096.
	MaxInFlight int
	// MaxFrameCommands and MaxFrameBytes bound what is sent in one message;
	// defaults 256 and 1 MiB. A single larger command is sent alone.
	MaxFrameCommands, MaxFrameBytes int
	// MaxHints bounds the vertices remembered from redirects; default 65,536.
	MaxHints int
	// MinBackoff and MaxBackoff bound the pause before a retry, which doubles
	// from one to the other and is drawn between half of it and all;
	// defaults 1 ms and 250 ms.
	MinBackoff, MaxBackoff time.Duration
	// DialOptions are used for all connections; without any, connections are not encrypted.
	DialOptions []grpc.DialOption
	// Hooks are told what happens; any may be nil.
	Hooks Hooks
}

// Hooks let a program count what a Client does. They are called from the
// client's goroutines and must return soon.
type Hooks struct {
	// Redirect: a command was answered that its keys are elsewhere.
	Redirect func(from keyspace.ShardID)
	// Retry: a command will be sent again after a pause.
	Retry func(shard keyspace.ShardID, reason string)
	// Reconnect: a stream to a shard ended and will be opened again.
	Reconnect func(shard keyspace.ShardID, cause error)
	// Done: a command ended, after how long, and with what error.
	Done func(op string, elapsed time.Duration, multiShard bool, err error)
}

// Stats are counts since Dial.
type Stats struct {
	Commands, MultiShard, Failed   uint64
	Redirects, Retries, Reconnects uint64
}

type counters struct {
	commands, multiShard, failed   atomic.Uint64
	redirects, retries, reconnects atomic.Uint64
}

func (c *counters) read() Stats {
	return Stats{
		Commands: c.commands.Load(), MultiShard: c.multiShard.Load(), Failed: c.failed.Load(),
		Redirects: c.redirects.Load(), Retries: c.retries.Load(), Reconnects: c.reconnects.Load(),
	}
}

const (
	defaultTimeout       = 10 * time.Second
	defaultInFlight      = 4096
	defaultFrameCommands = 256
	defaultFrameBytes    = 1 << 20
	defaultHints         = 1 << 16
	defaultMinBackoff    = time.Millisecond
	defaultMaxBackoff    = 250 * time.Millisecond
	// maxMessageBytes leaves room for the frame around the largest command.
	maxMessageBytes = 2*keyspace.MaxCommandBytes + 1<<20
)

func orDefault[T comparable](v, d T) T {
	var zero T
	if v == zero {
		return d
	}
	return v
}

func (c Config) withDefaults() (Config, error) {
	if c.Target == "" && !c.Direct {
		return c, errors.New("no target is configured: set it to the address of the store's Envoy")
	}
	if c.Direct && c.Placement == "" {
		return c, errors.New("direct connections need the address of the oracle in Placement")
	}
	c.Timeout = orDefault(c.Timeout, defaultTimeout)
	c.MaxInFlight = orDefault(c.MaxInFlight, defaultInFlight)
	c.MaxFrameCommands = orDefault(c.MaxFrameCommands, defaultFrameCommands)
	c.MaxFrameBytes = orDefault(c.MaxFrameBytes, defaultFrameBytes)
	c.MaxHints = orDefault(c.MaxHints, defaultHints)
	c.MinBackoff = orDefault(c.MinBackoff, defaultMinBackoff)
	c.MaxBackoff = orDefault(c.MaxBackoff, defaultMaxBackoff)
	if c.MaxInFlight < 0 || c.MaxFrameCommands < 0 || c.MaxFrameBytes < 0 || c.MaxHints < 0 || c.Timeout < 0 || c.MinBackoff < 0 || c.MaxBackoff < c.MinBackoff {
		return c, fmt.Errorf("a bound is negative, or MaxBackoff %v is below MinBackoff %v: use 0 for a default", c.MaxBackoff, c.MinBackoff)
	}
	if len(c.DialOptions) == 0 {
		c.DialOptions = []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	}
	return c, nil
}

func (c *Config) placementTarget() string {
	if c.Placement != "" {
		return c.Placement
	}
	return c.Target
}

func (c *Config) dial(address string) (*grpc.ClientConn, error) {
	options := append([]grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes), grpc.MaxCallSendMsgSize(maxMessageBytes)),
		grpc.WithInitialWindowSize(1 << 20), grpc.WithInitialConnWindowSize(4 << 20),
		grpc.WithConnectParams(connectParams(c.MaxBackoff)),
	}, c.DialOptions...)
	return grpc.NewClient(address, options...)
}
