// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"time"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
)

// meterBuckets bounds how far back a measurement can reach: one bucket a second.
const meterBuckets = 600

// meter turns the growing counters of shard leaders into shares and rates over
// a window. It takes time as a parameter and is not safe for concurrent use.
type meter struct {
	last    map[uint32]*oraclev1.Counters
	buckets []bucket
}

type bucket struct {
	second                 int64
	commands, multiShard   uint64
	touchedVerticesByShard map[uint32]uint64
}

func newMeter() *meter { return &meter{last: map[uint32]*oraclev1.Counters{}} }

// observe takes the counters that the leader of a shard reported. The first
// report of a process only sets the base line.
func (m *meter) observe(shard uint32, c *oraclev1.Counters, now time.Time) {
	before, ok := m.last[shard]
	m.last[shard] = c
	if !ok || before.GetProcess() != c.GetProcess() || c.GetCommands() < before.GetCommands() {
		return
	}
	b := m.bucketAt(now.Unix())
	b.commands += c.GetCommands() - before.GetCommands()
	b.multiShard += c.GetMultiShard() - before.GetMultiShard()
	b.touchedVerticesByShard[shard] += c.GetTouchedVertices() - before.GetTouchedVertices()
}

func (m *meter) bucketAt(second int64) *bucket {
	if n := len(m.buckets); n == 0 || m.buckets[n-1].second < second {
		m.buckets = append(m.buckets, bucket{second: second, touchedVerticesByShard: map[uint32]uint64{}})
		if len(m.buckets) > meterBuckets {
			m.buckets = append([]bucket(nil), m.buckets[len(m.buckets)-meterBuckets:]...)
		}
	}
	return &m.buckets[len(m.buckets)-1]
}

// reading is a measurement over whole seconds.
type reading struct {
	commands, multiShard uint64
	// load is vertices touched by commands, for each shard.
	load    map[uint32]uint64
	seconds float64
}

// since sums up what happened from one moment on. The second that is not over
// yet is left out.
func (m *meter) since(from, now time.Time) reading {
	r := reading{load: map[uint32]uint64{}}
	for _, b := range m.buckets {
		if b.second < from.Unix() || b.second >= now.Unix() {
			continue
		}
		r.commands += b.commands
		r.multiShard += b.multiShard
		for shard, touched := range b.touchedVerticesByShard {
			r.load[shard] += touched
		}
	}
	r.seconds = float64(max(1, now.Unix()-from.Unix()))
	return r
}

// mpoShare is the share of multi-shard commands, 0 to 1.
func (r reading) mpoShare() float64 {
	if r.commands == 0 {
		return 0
	}
	return float64(r.multiShard) / float64(r.commands)
}

// imbalance is how far the busiest of the shards is above the mean: 0.25 means 25 %.
func (r reading) imbalance(shards uint32) float64 {
	var most, sum uint64
	for _, touched := range r.load {
		sum += touched
		most = max(most, touched)
	}
	if sum == 0 || shards == 0 {
		return 0
	}
	return float64(most)*float64(shards)/float64(sum) - 1
}

func (r reading) measurement(shards uint32) *oraclev1.Measurement {
	return &oraclev1.Measurement{
		MpoShare: r.mpoShare(), Imbalance: r.imbalance(shards),
		CommandsPerSecond: float64(r.commands) / r.seconds, Seconds: r.seconds,
	}
}
