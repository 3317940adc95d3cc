// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"slices"
	"time"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
	"github.com/kolocate/kolocate/services/shard/core"
)

// housekeepInterval is how often log time advances without commands.
const housekeepInterval = time.Second

// report is what the apply goroutine lets others see of the shard.
type report struct {
	leading, genesis bool
	stats            core.Stats
	requests, parked int
	paused           int
}

// report publishes the state of the shard.
func (e *engine) report() {
	r := &report{
		leading: e.leader != nil, genesis: e.core.HasGenesis(), stats: e.core.Stats(),
		requests: len(e.requests), parked: len(e.parked), paused: len(e.paused),
	}
	e.known.Store(r)
}

// serving says that this replica can run commands.
func (r *report) serving() bool { return r.leading && r.genesis }

// joinRequest tells the oracle of this replica. It may be called from any goroutine.
func (e *engine) joinRequest() *oraclev1.JoinRequest {
	r, status := e.known.Load(), e.host.Status()
	m := &oraclev1.JoinRequest{
		Store: e.config.Store, Shard: uint32(e.config.Shard), Replica: uint32(e.config.Replica), //nolint:gosec // at most 5 replicas
		Address: e.config.Advertise, Leader: r.leading, Term: status.Term, Applied: status.Applied,
		KnownEpoch: uint64(e.follower.Epoch()), Initialised: r.genesis,
	}
	if r.serving() {
		m.Counters = e.metrics.counters(&r.stats)
	}
	return m
}

// heard takes the oracle's answer to a report. It may be called from any goroutine.
func (e *engine) heard(m *oraclev1.JoinResponse, refused func(string)) {
	if m.GetRefused() != "" {
		refused(m.GetRefused())
		return
	}
	e.tracer.setRate(m.GetSampleRate())
	e.heardEpoch.Store(m.GetEpochKnownEverywhere())
	if g := m.GetGenesis(); g != nil {
		if err := e.host.Run(func() { e.proposeGenesis(g) }); err != nil {
			e.log.Debug("the genesis was not proposed; the oracle sends it again", "reason", err)
		}
	}
}

func (e *engine) proposeGenesis(g *oraclev1.Genesis) {
	if e.leader == nil || e.core.HasGenesis() {
		return
	}
	entry := &shardv1.Genesis{Store: e.config.Store, Shard: uint32(e.config.Shard)}
	for _, run := range g.GetSlots() {
		entry.Slots = append(entry.Slots, &shardv1.SlotRange{First: run.GetFirst(), Last: run.GetLast()})
	}
	err := e.propose(&shardv1.Entry{TimeMillis: time.Now().UnixMilli(), Body: &shardv1.Entry_Genesis{Genesis: entry}})
	if err != nil {
		e.log.Debug("the genesis was not proposed; the oracle sends it again", "reason", err)
	}
}

// handoffMemory is how long an ended handoff is kept for an oracle that asks for
// it again after a failure.
const handoffMemory = time.Hour

// endedHandoff is when, and at which epoch, a handoff was first seen to have ended.
type endedHandoff struct {
	at    time.Time
	epoch uint64
}

// housekeep advances log time, so that old records go, and forgets handoffs that
// ended long ago, when every replica knows a newer placement since.
func (e *engine) housekeep(now time.Time) {
	epoch := e.heardEpoch.Load()
	var forget []uint64
	seen := make(map[uint64]endedHandoff, len(e.old))
	for _, p := range e.leader.Moves() {
		if !ended(p) {
			continue
		}
		first, known := e.old[p.GetId()]
		if !known {
			first = endedHandoff{at: now, epoch: epoch}
		}
		if now.Sub(first.at) >= handoffMemory && epoch > first.epoch {
			forget = append(forget, p.GetId())
			continue
		}
		seen[p.GetId()] = first
	}
	e.old = seen
	e.leader.Housekeep(keyspace.Epoch(epoch), forget)
}

// observeHandoff counts what a handoff does at this shard.
func (e *engine) observeHandoff(event *core.HandoffEvent) {
	if e.leader == nil {
		return
	}
	switch event.Step {
	case core.HandoffDone, core.HandoffRevoked:
		e.ended = append(e.ended, event.ID)
	default:
	}
	e.log.Debug("handoff", "id", event.ID, "step", event.Step.String(), "reason", event.Reason)
}

// observeMoves counts the handoffs that ended, when the Leader knows how.
func (e *engine) observeMoves() {
	if e.leader == nil {
		e.ended = e.ended[:0]
		return
	}
	e.ended = slices.DeleteFunc(e.ended, func(id uint64) bool {
		p := e.leader.Progress(id)
		if p == nil {
			return true
		}
		switch p.GetPhase() {
		case shardv1.HandoffPhase_HANDOFF_PHASE_DONE:
			e.metrics.handoffPause.Observe(time.Duration(int64(p.GetPauseMicros()) * int64(time.Microsecond)).Seconds()) //nolint:gosec // far below the bound
			e.metrics.handoffBytes.Add(float64(p.GetBytesCopied()))
			e.metrics.handoffsDone.Inc()
		case shardv1.HandoffPhase_HANDOFF_PHASE_ABORTED:
			e.metrics.handoffsAborted.Inc()
		default:
			return false
		}
		return true
	})
}
