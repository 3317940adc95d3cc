// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package client is the Go SDK of a Kolocate store: it owns the location cache,
// the pipelined streams to the shards and the retries that keep exactly-once.
// It never decides where data lives. Applications, the CLI and benchmarks call it.
package client

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/kolocate/kolocate/api/client/sequence"
	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// Client speaks to one store. All methods may be called concurrently.
type Client struct {
	config  Config
	id      uint64
	slots   chan struct{}
	ids     sequence.Window
	cache   *locations
	links   *links
	clock   *clock
	stats   counters
	stop    context.CancelFunc
	stopped context.Context //nolint:containedctx // the life of the client, ended by Close
	done    sync.WaitGroup
	closing atomic.Bool
}

// Dial connects to a store and returns when its placement is known, or with an
// error of kind Unavailable or DeadlineExceeded when ctx (or Config.Timeout)
// ends before. ctx bounds the dialling alone.
func Dial(ctx context.Context, config Config) (*Client, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, &Error{Op: "dial", Kind: Invalid, Cause: err}
	}
	var seed [24]byte
	if _, err := rand.Read(seed[:]); err != nil {
		return nil, &Error{Op: "dial", Kind: Unavailable, Cause: fmt.Errorf("draw a client id: %w", err)}
	}
	// The low bit keeps the id from being 0, which means "no id".
	id := binary.LittleEndian.Uint64(seed[:8]) | 1
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	c := &Client{config: config, id: id, slots: make(chan struct{}, config.MaxInFlight), stop: stop, stopped: life}
	c.cache = newLocations(config.MaxHints)
	c.links = newLinks(c)
	c.clock = newClock(c, binary.LittleEndian.Uint64(seed[8:16]), binary.LittleEndian.Uint64(seed[16:]))
	c.goDo(c.clock.run)
	c.goDo(func() { c.watchPlacement(life) })
	ctx, cancel := context.WithTimeout(ctx, config.Timeout)
	defer cancel()
	select {
	case <-c.cache.known:
		return c, nil
	case <-ctx.Done():
	}
	cause := errors.Join(ctx.Err(), c.cache.lastError())
	if err := c.Close(); err != nil {
		cause = errors.Join(cause, err)
	}
	return nil, &Error{Op: "dial", Kind: Unavailable, Cause: fmt.Errorf("wait for the placement from %q: %w", config.placementTarget(), cause)}
}

func (c *Client) goDo(f func()) {
	c.done.Add(1)
	go func() {
		defer c.done.Done()
		f()
	}()
}

// Close ends the client. Commands in flight end with an error of kind Closed;
// those that were sent may have run. It must not be called from a callback.
func (c *Client) Close() error {
	if !c.closing.CompareAndSwap(false, true) {
		return nil
	}
	c.links.shut()
	c.stop()
	c.done.Wait()
	c.links.failAll()
	c.clock.failAll()
	return c.links.close()
}

// Epoch returns the newest epoch of the placement that the client knows.
func (c *Client) Epoch() keyspace.Epoch { return c.cache.epoch() }

// ShardOf returns the shard at which the client believes a key to be.
func (c *Client) ShardOf(key []byte) keyspace.ShardID {
	return c.cache.shardOf(keyspace.VertexOf(string(key)))
}

// Stats returns what the client counted since Dial.
func (c *Client) Stats() Stats { return c.stats.read() }

// Do runs a command and returns the shard's reply, whose outcome is OK. A
// command that updates and has no id is given one; the command itself is not
// changed, and must not be while it runs. Without a deadline in ctx,
// Config.Timeout holds. Errors are of type *Error.
func (c *Client) Do(ctx context.Context, command *kvv1.Command) (*kvv1.Reply, error) {
	p := c.Start(ctx, command)
	return p.Wait(ctx)
}

// Pending is a command under way.
type Pending struct {
	call *call
	done chan struct{}
	// Written before done is closed.
	reply *kvv1.Reply
	err   error
}

// Start begins a command and returns at once, or when one of the
// Config.MaxInFlight places is free. The result is had by Wait.
func (c *Client) Start(ctx context.Context, command *kvv1.Command) *Pending {
	p := &Pending{done: make(chan struct{})}
	p.call = c.start(ctx, command, func(reply *kvv1.Reply, err error) {
		p.reply, p.err = reply, err
		close(p.done)
	})
	return p
}

// Done is closed when the result is there.
func (p *Pending) Done() <-chan struct{} { return p.done }

// Wait returns the result of the command. If ctx ends first, the command is
// given up and the error says whether it may have run.
func (p *Pending) Wait(ctx context.Context) (*kvv1.Reply, error) {
	select {
	case <-p.done:
	case <-ctx.Done():
		p.call.giveUp(ctx.Err())
		<-p.done
	}
	return p.reply, p.err
}

// DoAsync begins a command as Start does and calls back with its result, from a
// goroutine of the client: the callback must return soon. It may call DoAsync
// as long as no more than Config.MaxInFlight chains of commands do so.
func (c *Client) DoAsync(ctx context.Context, command *kvv1.Command, callback func(*kvv1.Reply, error)) {
	c.start(ctx, command, callback)
}

func (c *Client) start(ctx context.Context, command *kvv1.Command, callback func(*kvv1.Reply, error)) *call {
	k := newCall(ctx, c, command, callback)
	if err := checkCommand(command); err != nil {
		k.finish(nil, k.failure(Invalid, err))
		return k
	}
	select {
	case c.slots <- struct{}{}:
	default:
		select {
		case c.slots <- struct{}{}:
		case <-ctx.Done():
			k.giveUp(ctx.Err())
			return k
		case <-time.After(time.Until(k.deadline)):
			k.giveUp(context.DeadlineExceeded)
			return k
		case <-c.stopped.Done():
			k.finish(nil, k.failure(Closed, errClosed))
			return k
		}
	}
	k.hasSlot = true
	if err := k.identify(); err != nil {
		k.finish(nil, k.failure(Overloaded, err))
		return k
	}
	c.route(k)
	return k
}

// route queues a call at the shard that owns most of its vertices.
func (c *Client) route(k *call) {
	if c.closing.Load() {
		k.finish(nil, k.failure(Closed, errClosed))
		return
	}
	shard := c.cache.choose(k.vertices)
	k.shard.Store(uint32(shard))
	l, err := c.links.get(shard)
	if err != nil {
		k.finish(nil, k.failure(Closed, err))
		return
	}
	l.enqueue(k)
}

// connection is what a link needs of a gRPC connection.
type connection = grpc.ClientConnInterface
