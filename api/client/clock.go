// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"container/heap"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc/backoff"

	"google.golang.org/grpc"
)

// sweepInterval is how late a deadline may be noticed by a call that nobody waits for.
const sweepInterval = 10 * time.Millisecond

// clock holds the calls that pause before a retry, and looks over all queues
// for calls whose time is over.
type clock struct {
	client *Client
	wake   chan struct{}

	mu     sync.Mutex
	random *rand.Rand
	paused pausedCalls
	closed bool
}

func newClock(c *Client, seed1, seed2 uint64) *clock {
	return &clock{client: c, wake: make(chan struct{}, 1), random: rand.New(rand.NewPCG(seed1, seed2))}
}

// pause returns the pause before the nth retry, n from 0: it doubles from
// MinBackoff to MaxBackoff and is drawn from its upper half.
func (c *clock) pause(n int) time.Duration {
	config := &c.client.config
	full := config.MaxBackoff
	if n < 30 && config.MinBackoff<<n < full {
		full = config.MinBackoff << n
	}
	return full/2 + time.Duration(c.random.Int64N(int64(full/2)+1))
}

// linkPause is pause for callers without the lock.
func (c *clock) linkPause(n int) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pause(n)
}

// schedule sends the call again after its next pause.
func (c *clock) schedule(k *call) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		k.finish(nil, k.failure(Closed, errClosed))
		return
	}
	k.due = time.Now().Add(c.pause(k.attempts))
	k.attempts++
	heap.Push(&c.paused, k)
	first := c.paused[0] == k
	c.mu.Unlock()
	if first {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
}

// run routes calls when they are due and sweeps, until the client is closed.
func (c *clock) run() {
	sweep := time.NewTicker(sweepInterval)
	defer sweep.Stop()
	due := time.NewTimer(time.Hour)
	defer due.Stop()
	for {
		due.Reset(c.routeDue(time.Now()))
		select {
		case <-c.client.stopped.Done():
			return
		case <-c.wake:
		case <-due.C:
		case now := <-sweep.C:
			if len(c.client.slots) > 0 {
				c.sweep(now)
				c.client.links.sweep(now)
			}
		}
	}
}

// routeDue routes the calls whose pause is over and returns the time to the next.
func (c *clock) routeDue(now time.Time) time.Duration {
	var ready []*call
	c.mu.Lock()
	for len(c.paused) > 0 && !c.paused[0].due.After(now) {
		ready = append(ready, heap.Pop(&c.paused).(*call)) //nolint:errcheck,forcetypeassert // schedule pushes nothing else
	}
	wait := time.Hour
	if len(c.paused) > 0 {
		wait = c.paused[0].due.Sub(now)
	}
	c.mu.Unlock()
	for _, k := range ready {
		if !k.expired(now) {
			c.client.route(k)
		}
	}
	return wait
}

func (c *clock) sweep(now time.Time) {
	c.mu.Lock()
	all := append([]*call(nil), c.paused...)
	c.mu.Unlock()
	for _, k := range all {
		k.expired(now)
	}
}

func (c *clock) failAll() {
	c.mu.Lock()
	all := c.paused
	c.paused, c.closed = nil, true
	c.mu.Unlock()
	for _, k := range all {
		k.finish(nil, k.failure(Closed, errClosed))
	}
}

// pausedCalls is a heap with the call that is due first at its root.
type pausedCalls []*call

func (p pausedCalls) Len() int           { return len(p) }
func (p pausedCalls) Less(i, j int) bool { return p[i].due.Before(p[j].due) }
func (p pausedCalls) Swap(i, j int)      { p[i], p[j] = p[j], p[i] }

// Push is called by container/heap alone.
func (p *pausedCalls) Push(x any) { *p = append(*p, x.(*call)) } //nolint:errcheck,forcetypeassert // schedule pushes nothing else

// Pop is called by container/heap alone.
func (p *pausedCalls) Pop() any {
	old := *p
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*p = old[:len(old)-1]
	return last
}

// connectParams makes gRPC try a lost connection again as often as the links do.
func connectParams(longest time.Duration) grpc.ConnectParams {
	return grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: max(longest, 10*time.Millisecond)},
		MinConnectTimeout: 2 * time.Second,
	}
}
