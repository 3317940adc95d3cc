// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/services/shard/core"
)

var outcomeNames = [...]string{"unspecified", "ok", "moved", "retry", "rejected", "unknown"}

// metrics counts what a shard's process does. The counters by kind are looked
// up once, so that counting a command costs no search.
type metrics struct {
	process  uint64
	commands [kindCount][len(outcomeNames)]prometheus.Counter
	latency  [kindCount]prometheus.Observer

	multiShard, forwarded, retries              prometheus.Counter
	refusedProposals, lostReports               prometheus.Counter
	handoffPause                                prometheus.Histogram
	handoffBytes, handoffsDone, handoffsAborted prometheus.Counter
	// What the oracle is told.
	executed, executedMulti, touched atomic.Uint64
}

func newMetrics(registerer prometheus.Registerer, process uint64) *metrics {
	m := &metrics{process: process}
	commands := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kolocate_commands_total", Help: "Commands answered by this shard, by kind and outcome.",
	}, []string{"kind", "outcome"})
	latency := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "kolocate_command_latency_seconds", Help: "Time from the arrival of a command to its answer.",
		Buckets: prometheus.ExponentialBuckets(0.0001, 2, 17),
	}, []string{"kind"})
	for k := range kindCount {
		m.latency[k] = latency.WithLabelValues(kindNames[k])
		for o := range outcomeNames {
			m.commands[k][o] = commands.WithLabelValues(kindNames[k], outcomeNames[o])
		}
	}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		registerer.MustRegister(c)
		return c
	}
	m.multiShard = counter("kolocate_multi_shard_commands_total", "Commands that ran over several shards, counted by their coordinator.")
	m.forwarded = counter("kolocate_forwarded_commands_total", "Commands passed on to another shard.")
	m.retries = counter("kolocate_command_retries_total", "Further tries of commands in this process.")
	m.refusedProposals = counter("kolocate_refused_proposals_total", "Log entries that found no place in the queue of proposals.")
	m.lostReports = counter("kolocate_trace_reports_lost_total", "Trace reports that the oracle did not take.")
	m.handoffBytes = counter("kolocate_handoff_bytes_total", "Bytes copied by handoffs of which this shard was the source.")
	m.handoffsDone = counter("kolocate_handoffs_done_total", "Handoffs done of which this shard was the source.")
	m.handoffsAborted = counter("kolocate_handoffs_aborted_total", "Handoffs aborted of which this shard was the source.")
	m.handoffPause = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "kolocate_handoff_pause_seconds", Help: "Time from seal to commit of a handoff, as its source saw it.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
	})
	registerer.MustRegister(commands, latency, m.handoffPause)
	return m
}

// register adds the measures of the moment, read from what the engine publishes.
func (m *metrics) register(registerer prometheus.Registerer, e *engine) {
	gauge := func(name, help string, labels prometheus.Labels, value func(*report) float64) {
		registerer.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels},
			func() float64 { return value(e.known.Load()) }))
	}
	gauge("kolocate_placement_epoch", "The newest epoch of the placement known here.", nil, func(*report) float64 { return float64(e.follower.Epoch()) })
	gauge("kolocate_handoff_active", "Handoffs in which this shard takes part now.", nil, func(r *report) float64 { return float64(r.stats.Handoffs) })
	gauge("kolocate_shard_keys", "Keys held.", nil, func(r *report) float64 { return float64(r.stats.Keys) })
	gauge("kolocate_shard_bytes", "Bytes of keys and values held.", nil, func(r *report) float64 { return float64(r.stats.Bytes) })
	gauge("kolocate_shard_slots", "Slots owned.", nil, func(r *report) float64 { return float64(r.stats.Slots) })
	gauge("kolocate_shard_leader", "1 if this replica leads its shard and can run commands.", nil, func(r *report) float64 {
		if r.serving() {
			return 1
		}
		return 0
	})
	gauge("kolocate_exactly_once_records", "Records of executed updates that are kept for repetitions.", nil, func(r *report) float64 { return float64(r.stats.Records) })
	gauge("kolocate_pending_commands", "Multi-shard commands begun here and not finished.", nil, func(r *report) float64 { return float64(r.stats.Pending) })
	for name, value := range map[string]func(*report) float64{
		"held":     func(r *report) float64 { return float64(r.stats.Queued) },
		"incoming": func(r *report) float64 { return float64(r.parked) },
		"paused":   func(r *report) float64 { return float64(r.paused) },
		"live":     func(*report) float64 { return float64(e.live.Load()) },
	} {
		gauge("kolocate_queue_length", "Commands that wait: for held vertices, for a handoff to commit, for their next try; live counts all.", prometheus.Labels{"queue": name}, value)
	}
}

// observe counts an answer. Apply goroutine.
func (m *metrics) observe(r *request, reply *kvv1.Reply, now time.Time) {
	m.commands[r.kind][reply.GetOutcome()].Inc()
	m.latency[r.kind].Observe(now.Sub(r.started).Seconds())
	if reply.GetOutcome() == kvv1.Outcome_OUTCOME_OK {
		m.executed.Add(1)
		m.touched.Add(uint64(len(r.vertices)))
		if reply.GetMultiShard() {
			m.executedMulti.Add(1)
			m.multiShard.Inc()
		}
	}
}

// counters returns what the oracle takes differences of.
func (m *metrics) counters(stats *core.Stats) *oraclev1.Counters {
	return &oraclev1.Counters{
		Process: m.process, Commands: m.executed.Load(), MultiShard: m.executedMulti.Load(),
		Keys: stats.Keys, Bytes: stats.Bytes, TouchedVertices: m.touched.Load(),
	}
}
