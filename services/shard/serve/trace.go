// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/kolocate/kolocate/services/keyspace"
	"github.com/kolocate/kolocate/services/shard/core"
	"github.com/kolocate/kolocate/services/trace"
)

const (
	// traceInterval is how often a leader reports what it sampled.
	traceInterval = time.Second
	traceTimeout  = 5 * time.Second
)

// tracer samples executed commands while the oracle asks for it. Two sketches
// take turns: one is filled on the apply goroutine, the other is being reported.
type tracer struct {
	config trace.Config
	// rate is what the oracle wants, as the bits of a float64.
	rate atomic.Uint64

	// The apply goroutine's.
	sampler *trace.Sampler
	filling *trace.Sketch
	since   time.Time
	// sizes is what the report under way goes by. The reporting goroutine's.
	sizes *core.Sizes
	// spare is the sketch that is not filled; nil while it is being reported.
	spare atomic.Pointer[trace.Sketch]
}

func newTracer(config *Config, seed uint64) *tracer {
	t := &tracer{sampler: trace.NewSampler(seed, 0)}
	t.config = trace.Config{
		Store: config.Store, Shard: config.Shard, Seed: seed,
		SizeOf: func(v keyspace.Vertex) (uint64, bool) { return t.sizes.Of(v) },
	}
	return t
}

// setRate may be called from any goroutine.
func (t *tracer) setRate(rate float64) { t.rate.Store(math.Float64bits(rate)) }

func (t *tracer) wanted() float64 { return math.Float64frombits(t.rate.Load()) }

func (t *tracer) on() bool { return t.sampler.Rate() > 0 }

func (t *tracer) observe(vertices []keyspace.Vertex, written int) {
	if t.sampler.Rate() == 0 || t.filling == nil {
		return
	}
	if weight, picked := t.sampler.Next(); picked {
		t.filling.Observe(vertices, uint64(max(0, written)), weight)
	}
}

// adjust takes over the rate that the oracle wants. Apply goroutine.
func (t *tracer) adjust(now time.Time) (changed bool) {
	rate := t.wanted()
	if rate == t.sampler.Rate() {
		return false
	}
	if t.filling == nil {
		t.filling, t.since = trace.NewSketch(t.config), now
		t.spare.Store(trace.NewSketch(t.config))
	}
	if !t.on() {
		t.since = now
	}
	t.sampler.SetRate(rate)
	return true
}

// swap gives away the filled sketch. Apply goroutine.
func (t *tracer) swap(now time.Time) (full *trace.Sketch, window time.Duration, rate float64) {
	if t.filling == nil || t.filling.Observed() == 0 {
		return nil, 0, 0
	}
	next := t.spare.Swap(nil)
	if next == nil {
		return nil, 0, 0 // the last report is not sent yet
	}
	full, window = t.filling, now.Sub(t.since)
	t.filling, t.since = next, now
	return full, window, t.sampler.Rate()
}

// reportTraces sends what was sampled, until ctx ends.
func (e *engine) reportTraces(ctx context.Context) {
	ticker := time.NewTicker(traceInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		var full *trace.Sketch
		var window time.Duration
		var rate float64
		var sizes *core.Sizes
		err := e.host.Run(func() { //nolint:contextcheck // the function does not wait
			now := time.Now()
			if full, window, rate = e.tracer.swap(now); full != nil {
				sizes = e.core.Sizes()
			}
			if e.tracer.adjust(now) && e.leader != nil {
				e.core.SetTracing(e.tracer.on())
			}
		})
		if err != nil || full == nil {
			continue
		}
		e.tracer.sizes = sizes
		report := full.Report(window, rate)
		e.tracer.sizes = nil // the copy would keep the past in memory
		e.tracer.spare.Store(full)
		bound, cancel := context.WithTimeout(ctx, traceTimeout)
		if err := e.follower.Trace(bound, report); err != nil {
			e.metrics.lostReports.Inc()
			e.log.Debug("a trace report was lost", "reason", err)
		}
		cancel()
	}
}
