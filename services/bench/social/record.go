// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package social

import (
	"fmt"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latencies are recorded in microseconds, up to this, with two digits.
const (
	maxLatencyMicros = int64(10 * time.Minute / time.Microsecond)
	latencyDigits    = 2
	// keptErrors bounds the error texts that are kept.
	keptErrors = 5
)

// Measures are what was measured over some time. Commands counts all that
// ended, failed ones too.
type Measures struct {
	Name                                       string
	Elapsed                                    time.Duration
	Commands, Reads, Posts, MultiShard, Errors uint64
	// Latencies of all commands that succeeded, and of each kind.
	P50, P99, Max time.Duration
	ReadP50       time.Duration
	ReadP99       time.Duration
	PostP50       time.Duration
	PostP99       time.Duration
}

// Throughput returns the commands that succeeded in a second.
func (m Measures) Throughput() float64 {
	if m.Elapsed <= 0 {
		return 0
	}
	return float64(m.Commands-m.Errors) / m.Elapsed.Seconds()
}

// MPOShare returns the share of the commands that succeeded which ran over
// several shards.
func (m Measures) MPOShare() float64 {
	if m.Commands == m.Errors {
		return 0
	}
	return float64(m.MultiShard) / float64(m.Commands-m.Errors)
}

// tally gathers measures. The recorder's mutex guards it.
type tally struct {
	name             string
	began, ended     time.Time
	counts           Measures
	all, reads, post *hdrhistogram.Histogram
}

func newTally(name string) *tally {
	h := func() *hdrhistogram.Histogram { return hdrhistogram.New(1, maxLatencyMicros, latencyDigits) }
	return &tally{name: name, began: time.Now(), all: h(), reads: h(), post: h()}
}

func (t *tally) add(kind kind, elapsed time.Duration, multiShard bool, err error) {
	t.counts.Commands++
	own := t.reads
	if kind == kindPost {
		own = t.post
		t.counts.Posts++
	} else {
		t.counts.Reads++
	}
	if err != nil {
		t.counts.Errors++
		return
	}
	if multiShard {
		t.counts.MultiShard++
	}
	micros := min(max(elapsed.Microseconds(), 1), maxLatencyMicros)
	for _, h := range []*hdrhistogram.Histogram{t.all, own} {
		// The value is inside the histogram's range, so there is no error.
		_ = h.RecordValue(micros)
	}
}

func (t *tally) measures() Measures {
	m := t.counts
	m.Name = t.name
	m.Elapsed = t.ended.Sub(t.began)
	if t.ended.IsZero() {
		m.Elapsed = time.Since(t.began)
	}
	at := func(h *hdrhistogram.Histogram, q float64) time.Duration {
		return time.Duration(h.ValueAtQuantile(q)) * time.Microsecond
	}
	m.P50, m.P99, m.Max = at(t.all, 50), at(t.all, 99), time.Duration(t.all.Max())*time.Microsecond
	m.ReadP50, m.ReadP99 = at(t.reads, 50), at(t.reads, 99)
	m.PostP50, m.PostP99 = at(t.post, 50), at(t.post, 99)
	return m
}

// recorder takes the results of all workers.
type recorder struct {
	mu     sync.Mutex
	phases []*tally // the last one is open if recording
	open   bool
	live   *tally
	errors []string
}

func newRecorder() *recorder { return &recorder{live: newTally("live")} }

// begin ends the open phase and starts another; with "" it only ends.
func (r *recorder) begin(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open {
		r.phases[len(r.phases)-1].ended = time.Now()
	}
	r.open = name != ""
	if r.open {
		r.phases = append(r.phases, newTally(name))
	}
}

func (r *recorder) add(kind kind, elapsed time.Duration, multiShard bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.live.add(kind, elapsed, multiShard, err)
	if r.open {
		r.phases[len(r.phases)-1].add(kind, elapsed, multiShard, err)
	}
	if err != nil && len(r.errors) < keptErrors {
		r.errors = append(r.errors, fmt.Sprintf("%s after %v: %v", kind, elapsed.Round(time.Millisecond), err))
	}
}

// takeLive returns what happened since the last call.
func (r *recorder) takeLive() Measures {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.live.measures()
	r.live = newTally("live")
	return m
}

func (r *recorder) all() []Measures {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Measures, 0, len(r.phases))
	for _, p := range r.phases {
		out = append(out, p.measures())
	}
	return out
}

func (r *recorder) firstErrors() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.errors...)
}
