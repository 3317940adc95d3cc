// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/oracle/directory"
)

// metrics holds what the oracle counts, and reads the rest from its state when
// it is scraped. Rates and shares are gauges of the leader; a follower leaves them out.
type metrics struct {
	oracle     *Oracle
	registerer prometheus.Registerer
	movedBytes prometheus.Counter
	pause      prometheus.Histogram
	gauges     map[string]*prometheus.Desc
	phase      *prometheus.Desc
}

var gaugeHelp = map[string]string{
	"placement_epoch":               "Epoch of the newest placement.",
	"overrides":                     "Vertices placed elsewhere than their slot says.",
	"graph_vertices":                "Vertices of the workload graph.",
	"graph_edges":                   "Edges of the workload graph.",
	"mpo_share":                     "Share of commands that ran over several shards in the last 10 s, 0 to 1.",
	"imbalance":                     "How far the busiest shard is above the mean in the last 10 s; 0.25 means 25 %.",
	"commands_per_second":           "Commands a second in the last 10 s.",
	"rebalance_steps_total_planned": "Handoffs of the newest rebalance.",
	"rebalance_steps_done":          "Handoffs of the newest rebalance that are done.",
	"rebalance_moved_bytes":         "Bytes moved by the newest rebalance.",
	"rebalance_moved_vertices":      "Vertices moved by the newest rebalance.",
	"measured_mpo_share_before":     "Share of multi-shard commands before the newest rebalance.",
	"predicted_mpo_share":           "Share of multi-shard commands that the newest plan predicts.",
	"measured_mpo_share":            "Share of multi-shard commands measured after the newest rebalance.",
}

func newMetrics(o *Oracle, registerer prometheus.Registerer) *metrics {
	m := &metrics{
		oracle: o, registerer: registerer, gauges: map[string]*prometheus.Desc{},
		movedBytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kolocate_oracle_moved_bytes_total", Help: "Bytes moved by handoffs that this leader recorded.",
		}),
		pause: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kolocate_oracle_handoff_pause_seconds", Help: "Pause of the vertices of a handoff, from seal to commit.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 12),
		}),
		phase: prometheus.NewDesc("kolocate_oracle_rebalance_phase", "1 for the phase of the newest rebalance, 0 for the others.", []string{"phase"}, nil),
	}
	for name, help := range gaugeHelp {
		m.gauges[name] = prometheus.NewDesc("kolocate_oracle_"+name, help, nil, nil)
	}
	registerer.MustRegister(m.movedBytes, m.pause, m)
	return m
}

func (m *metrics) moved(p *shardv1.MoveProgress) {
	m.movedBytes.Add(float64(p.GetBytesCopied()))
	m.pause.Observe((time.Duration(p.GetPauseMicros()) * time.Microsecond).Seconds()) //nolint:gosec // a pause is short
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range m.gauges {
		descs <- desc
	}
	descs <- m.phase
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	gauge := func(name string, value float64) {
		out <- prometheus.MustNewConstMetric(m.gauges[name], prometheus.GaugeValue, value)
	}
	if !m.oracle.leading.Load() {
		return
	}
	var newest *oraclev1.Rebalance
	founded := false
	m.oracle.machine.view(func(d *directory.Directory) {
		founded = d.Founded()
		newest = d.Newest()
	})
	if !founded {
		return
	}
	s := m.oracle.status(time.Now())
	gauge("placement_epoch", float64(s.GetEpoch()))
	gauge("overrides", float64(s.GetOverrides()))
	gauge("graph_vertices", float64(s.GetGraphVertices()))
	gauge("graph_edges", float64(s.GetGraphEdges()))
	gauge("mpo_share", s.GetMpoShare())
	gauge("imbalance", s.GetImbalance())
	gauge("commands_per_second", s.GetCommandsPerSecond())
	gauge("rebalance_steps_total_planned", float64(newest.GetStepsTotal()))
	gauge("rebalance_steps_done", float64(newest.GetStepsDone()))
	gauge("rebalance_moved_bytes", float64(newest.GetMovedBytes()))
	gauge("rebalance_moved_vertices", float64(newest.GetMovedVertices()))
	gauge("measured_mpo_share_before", newest.GetBefore().GetMpoShare())
	gauge("predicted_mpo_share", newest.GetPrediction().GetMpoShareAfter())
	gauge("measured_mpo_share", newest.GetAfter().GetMpoShare())
	for phase := oraclev1.Phase_PHASE_TRACING; phase <= oraclev1.Phase_PHASE_STOPPED; phase++ {
		value := 0.0
		if newest.GetPhase() == phase {
			value = 1
		}
		out <- prometheus.MustNewConstMetric(m.phase, prometheus.GaugeValue, value, directory.PhaseName(phase))
	}
}
