// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package drive

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/kolocate/kolocate/services/bench/social"
)

// Summary is the outcome as one JSON object. Shares are 0 to 1.
type Summary struct {
	GraphVertices         int     `json:"graph_vertices"`
	GraphEdges            int     `json:"graph_edges"`
	Shards                int     `json:"shards"`
	Commands              uint64  `json:"commands"`
	Errors                uint64  `json:"errors"`
	Lost                  uint64  `json:"lost"`
	StaleReads            uint64  `json:"stale_reads"`
	TornPosts             uint64  `json:"torn_posts"`
	DamagedValues         uint64  `json:"damaged_values"`
	UnjudgedReads         uint64  `json:"unjudged_reads"`
	AcknowledgedPosts     uint64  `json:"acknowledged_posts"`
	CheckedTimelines      int     `json:"checked_timelines"`
	MPOShareBefore        float64 `json:"mpo_share_before"`
	MPOSharePredicted     float64 `json:"mpo_share_predicted"`
	MPOShareAfter         float64 `json:"mpo_share_after"`
	ThroughputBefore      float64 `json:"throughput_before"`
	ThroughputDuring      float64 `json:"throughput_during"`
	ThroughputAfter       float64 `json:"throughput_after"`
	P50BeforeMillis       float64 `json:"p50_before_ms"`
	P50DuringMillis       float64 `json:"p50_during_ms"`
	P50AfterMillis        float64 `json:"p50_after_ms"`
	P99BeforeMillis       float64 `json:"p99_before_ms"`
	P99DuringMillis       float64 `json:"p99_during_ms"`
	P99AfterMillis        float64 `json:"p99_after_ms"`
	MovedVertices         uint64  `json:"moved_vertices"`
	MovedBytes            uint64  `json:"moved_bytes"`
	HandoffPauseP50Millis float64 `json:"handoff_pause_p50_ms"`
	HandoffPauseP99Millis float64 `json:"handoff_pause_p99_ms"`
	HandoffPauseMaxMillis float64 `json:"handoff_pause_max_ms"`
	MigrationSeconds      float64 `json:"migration_seconds"`
	PartitionSeconds      float64 `json:"partition_seconds"`
	ImbalanceBefore       float64 `json:"imbalance_before"`
	ImbalanceAfter        float64 `json:"imbalance_after"`
	Handoffs              uint32  `json:"handoffs"`
	TracedVertices        uint64  `json:"traced_vertices"`
	TracedEdges           uint64  `json:"traced_edges"`
	Overrides             uint32  `json:"overrides"`
	Epoch                 uint64  `json:"epoch"`
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Summary puts the outcome into one object.
func (o *Outcome) Summary() Summary {
	before, during, after := o.Phases[phaseBefore], o.Phases[phaseDuring], o.Phases[phaseAfter]
	r := o.Rebalance
	s := Summary{
		GraphVertices: o.Graph.Users(), GraphEdges: o.Graph.Edges(), Shards: len(o.Status.GetShards()),
		Lost: o.Verification.Lost, StaleReads: o.Totals.StaleReads, TornPosts: o.Totals.Torn,
		DamagedValues: o.Totals.Damaged + o.Verification.Damaged, UnjudgedReads: o.Totals.Unjudged + o.Verification.Unjudged,
		AcknowledgedPosts: o.Totals.Posts, CheckedTimelines: o.Verification.Users,
		MPOShareBefore: before.MPOShare(), MPOSharePredicted: r.GetPrediction().GetMpoShareAfter(), MPOShareAfter: after.MPOShare(),
		ThroughputBefore: before.Throughput(), ThroughputDuring: during.Throughput(), ThroughputAfter: after.Throughput(),
		P50BeforeMillis: millis(before.P50), P50DuringMillis: millis(during.P50), P50AfterMillis: millis(after.P50),
		P99BeforeMillis: millis(before.P99), P99DuringMillis: millis(during.P99), P99AfterMillis: millis(after.P99),
		MovedVertices: r.GetMovedVertices(), MovedBytes: r.GetMovedBytes(),
		HandoffPauseP50Millis: float64(r.GetPauseP50Micros()) / 1000, HandoffPauseP99Millis: float64(r.GetPauseP99Micros()) / 1000,
		HandoffPauseMaxMillis: float64(r.GetPauseMaxMicros()) / 1000, MigrationSeconds: during.Elapsed.Seconds(),
		PartitionSeconds: r.GetPartitionSeconds(), ImbalanceBefore: r.GetBefore().GetImbalance(), ImbalanceAfter: r.GetAfter().GetImbalance(),
		Handoffs: r.GetStepsDone(), TracedVertices: r.GetGraphVertices(), TracedEdges: r.GetGraphEdges(),
		Overrides: o.Status.GetOverrides(), Epoch: o.Status.GetEpoch(),
	}
	for _, m := range o.Phases {
		s.Commands += m.Commands
		s.Errors += m.Errors
	}
	return s
}

// Faults says what a correct store never does, in words; empty if it did nothing of it.
func (o *Outcome) Faults() (faults []string) {
	s := o.Summary()
	for _, f := range []struct {
		count uint64
		what  string
	}{
		{s.Errors, "commands failed"},
		{s.Lost, "timeline places lost an acknowledged post"},
		{s.StaleReads, "reads were stale"},
		{s.TornPosts, "posts were seen in one timeline and not in another"},
		{s.DamagedValues, "values were damaged"},
	} {
		if f.count > 0 {
			faults = append(faults, fmt.Sprintf("%d %s", f.count, f.what))
		}
	}
	return faults
}

// WriteJSON writes the summary as one line.
func (o *Outcome) WriteJSON(w io.Writer) error { return json.NewEncoder(w).Encode(o.Summary()) }

// WriteTable writes the outcome for people.
func (o *Outcome) WriteTable(w io.Writer) error {
	s := o.Summary()
	t := tabwriter.NewWriter(w, 0, 4, 3, ' ', 0)
	fmt.Fprintf(t, "\n\tbefore\tduring\tafter\t\n")
	phases := []social.Measures{o.Phases[phaseBefore], o.Phases[phaseDuring], o.Phases[phaseAfter]}
	row := func(name, format string, value func(social.Measures) any) {
		fmt.Fprint(t, name)
		for _, m := range phases {
			fmt.Fprintf(t, "\t"+format, value(m))
		}
		fmt.Fprint(t, "\t\n")
	}
	row("commands a second", "%.0f", func(m social.Measures) any { return m.Throughput() })
	row("over several shards", "%.1f %%", func(m social.Measures) any { return 100 * m.MPOShare() })
	row("all: p50", "%.2f ms", func(m social.Measures) any { return millis(m.P50) })
	row("all: p99", "%.2f ms", func(m social.Measures) any { return millis(m.P99) })
	row("timeline reads: p50", "%.2f ms", func(m social.Measures) any { return millis(m.ReadP50) })
	row("timeline reads: p99", "%.2f ms", func(m social.Measures) any { return millis(m.ReadP99) })
	row("posts: p50", "%.2f ms", func(m social.Measures) any { return millis(m.PostP50) })
	row("posts: p99", "%.2f ms", func(m social.Measures) any { return millis(m.PostP99) })
	row("errors", "%d", func(m social.Measures) any { return m.Errors })
	fmt.Fprintf(t, "\npredicted\t%.1f %% over several shards, measured %.1f %%\n", 100*s.MPOSharePredicted, 100*s.MPOShareAfter)
	fmt.Fprintf(t, "moved\t%d vertices, %d bytes in %d handoffs, %.1f s\n", s.MovedVertices, s.MovedBytes, s.Handoffs, s.MigrationSeconds)
	fmt.Fprintf(t, "pause of what moved\tp50 %.1f ms, p99 %.1f ms, longest %.1f ms\n", s.HandoffPauseP50Millis, s.HandoffPauseP99Millis, s.HandoffPauseMaxMillis)
	fmt.Fprintf(t, "busiest shard\t%.0f %% above the mean before, %.0f %% after\n", 100*s.ImbalanceBefore, 100*s.ImbalanceAfter)
	fmt.Fprintf(t, "placement\tepoch %d, %d overrides\n", s.Epoch, s.Overrides)
	fmt.Fprintf(t, "checked\t%d acknowledged posts in %d timelines: %d lost, %d stale reads, %d torn, %d damaged\n",
		s.AcknowledgedPosts, s.CheckedTimelines, s.Lost, s.StaleReads, s.TornPosts, s.DamagedValues)
	for _, text := range o.Errors {
		fmt.Fprintf(t, "error\t%s\n", text)
	}
	return t.Flush()
}
