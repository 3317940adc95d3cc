// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the measures of one replica, labelled with its group alone.
type metrics struct {
	proposals      prometheus.Counter
	commitLatency  prometheus.Histogram
	fsyncLatency   prometheus.Histogram
	walBytes       prometheus.Gauge
	appliedIndex   prometheus.Gauge
	leader         prometheus.Gauge
	term           prometheus.Gauge
	snapshotBytes  prometheus.Gauge
	all            []prometheus.Collector
	registeredWith prometheus.Registerer
}

// newMetrics makes the metrics and registers them, if there is a registerer.
func newMetrics(group string, registerer prometheus.Registerer, queueLength func() float64) (*metrics, error) {
	labels := prometheus.Labels{"group": group}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "kolocate", Subsystem: "raft", Name: name, Help: help, ConstLabels: labels})
	}
	histogram := func(name, help string, start float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "kolocate", Subsystem: "raft", Name: name, Help: help, ConstLabels: labels,
			Buckets: prometheus.ExponentialBuckets(start, 2, 18),
		})
	}
	m := &metrics{
		proposals: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "kolocate", Subsystem: "raft", Name: "proposals_total", Help: "Proposals appended to the log by this replica.", ConstLabels: labels,
		}),
		commitLatency: histogram("commit_latency_seconds", "Time from the first proposal of a round until the round is committed.", 50e-6),
		fsyncLatency:  histogram("fsync_latency_seconds", "Time of one sync of the log.", 10e-6),
		walBytes:      gauge("wal_bytes", "Bytes of the log on disk."),
		appliedIndex:  gauge("applied_index", "Index of the last applied entry."),
		leader:        gauge("leader", "1 while this replica leads its group."),
		term:          gauge("term", "Raft term."),
		snapshotBytes: gauge("snapshot_bytes", "Bytes of the last snapshot file written or received."),
	}
	queue := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "kolocate", Subsystem: "raft", Name: "queue_length", Help: "Proposals waiting to be appended.", ConstLabels: labels,
	}, queueLength)
	m.all = []prometheus.Collector{
		m.proposals, m.commitLatency, m.fsyncLatency, m.walBytes, m.appliedIndex, m.leader, m.term, m.snapshotBytes, queue,
	}
	if registerer == nil {
		return m, nil
	}
	m.registeredWith = registerer
	for i, c := range m.all {
		if err := registerer.Register(c); err != nil {
			m.all = m.all[:i]
			m.unregister()
			return nil, fmt.Errorf("register the metrics of %q: %w", group, errors.Join(err))
		}
	}
	return m, nil
}

// observe takes over the node's view.
func (m *metrics) observe(view View, walBytes int64) {
	leader := 0.0
	if view.Leads {
		leader = 1
	}
	m.leader.Set(leader)
	m.term.Set(float64(view.Term))
	m.walBytes.Set(float64(walBytes))
}

// unregister takes the metrics back, so that the replica can be opened again in the same process.
func (m *metrics) unregister() {
	if m.registeredWith == nil {
		return
	}
	for _, c := range m.all {
		m.registeredWith.Unregister(c)
	}
}
