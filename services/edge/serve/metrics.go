// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	epoch, overrides, overridesDropped prometheus.Gauge
	snapshots, nacks                   prometheus.Counter
	updateSeconds                      prometheus.Histogram
}

func newMetrics(registerer prometheus.Registerer, s *Server) (*metrics, error) {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "kolocate", Subsystem: "edge", Name: name, Help: help})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "kolocate", Subsystem: "edge", Name: name, Help: help})
	}
	m := &metrics{
		epoch:            gauge("placement_epoch", "Epoch of the placement last given to the edge."),
		overrides:        gauge("overrides", "Overrides in the route table of Envoy."),
		overridesDropped: gauge("overrides_dropped", "Overrides beyond the bound of the route table, routed by slot."),
		snapshots:        counter("snapshots_total", "Snapshots published, each of new content."),
		nacks:            counter("nacks_total", "Configurations that an Envoy refused."),
		updateSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "kolocate", Subsystem: "edge", Name: "update_seconds",
			Help:    "Time to check, translate and publish an edge.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 13),
		}),
	}
	acknowledged := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "kolocate", Subsystem: "edge", Name: "acknowledged_epoch",
		Help: "Lowest epoch that the connected Envoys hold; 0 without any.",
	}, func() float64 { return float64(s.AcknowledgedEpoch()) })
	envoys := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "kolocate", Subsystem: "edge", Name: "envoys",
		Help: "Envoys connected.",
	}, func() float64 { return float64(len(s.Envoys())) })
	if registerer == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.epoch, m.overrides, m.overridesDropped, m.snapshots, m.nacks, m.updateSeconds, acknowledged, envoys} {
		if err := registerer.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}
