// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	planv1 "github.com/kolocate/kolocate/api/proto/plan/v1"
	"github.com/kolocate/kolocate/services/keyspace"
	"github.com/kolocate/kolocate/services/oracle/directory"
	"github.com/kolocate/kolocate/services/oracle/trigger"
)

const (
	// conductInterval is how often the conductor looks at the clock; changes wake it at once.
	conductInterval = 100 * time.Millisecond
	// partitionTimeout bounds how long a plan is waited for.
	partitionTimeout = 15 * time.Minute
	// traceExtension is how many times longer than asked tracing goes on while too few commands are seen.
	traceExtension = 4
	// maxVerifyWindow bounds how long the effect of a rebalance is measured.
	maxVerifyWindow = 10 * time.Second
	// revertMargin is by how much the share of multi-shard commands must have
	// grown for a rebalance to be taken back.
	revertMargin = 0.02
)

// conductor carries the active rebalance through its phases while this replica
// leads. Each step is decided from the replicated state, so that the next
// leader goes on where this one stopped.
type conductor struct {
	oracle *Oracle
	mover  *mover
	// partitioning is the newest partitioner that was run as a child process.
	partitioning *partitioning
	children     sync.WaitGroup
	triggerAfter time.Time
	// started is when this replica began to lead, and so to count.
	started time.Time
	// answer is what the trigger's policies said last.
	answer atomic.Pointer[trigger.Decision]
}

// partitioning is a partitioner that runs, or ran, for a rebalance.
type partitioning struct {
	name   string
	failed chan error
}

// gathered is what one decision is taken from.
type gathered struct {
	name      string
	phase     oraclev1.Phase
	paused    bool
	stopping  bool
	reverting bool
	since     time.Time
	trace     time.Duration
	window    time.Duration
	minimum   uint64
	shards    uint32
	placement *keyspace.Placement
	before    *oraclev1.Measurement
	predicted *planv1.Prediction
}

func newConductor(o *Oracle) *conductor {
	return &conductor{oracle: o, mover: newMover(o), started: time.Now()}
}

// run conducts until the context ends. It is the only goroutine that does.
func (c *conductor) run(ctx context.Context) {
	ticker := time.NewTicker(conductInterval)
	defer ticker.Stop()
	defer c.mover.wait()
	defer c.children.Wait()
	for {
		changed := c.oracle.machine.changes()
		if err := c.step(ctx, time.Now()); err != nil && ctx.Err() == nil {
			c.oracle.log.Warn("the rebalance waits", "reason", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-changed:
		case <-c.mover.ended:
		}
	}
}

func (c *conductor) gather() (g gathered, active bool) {
	c.oracle.machine.view(func(d *directory.Directory) {
		state := d.Active()
		if state == nil {
			return
		}
		r := state.GetRebalance()
		active = true
		g = gathered{
			name: r.GetName(), phase: r.GetPhase(), paused: r.GetPaused(), stopping: state.GetStopping(), reverting: state.GetReverting(),
			since: time.UnixMilli(r.GetPhaseSinceUnixMillis()), trace: seconds(state.GetTraceSeconds()),
			window: seconds(d.Policy().GetWindowSeconds()), minimum: d.Policy().GetMinimumCommands(),
			shards: d.Shards(), placement: d.Placement(), before: r.GetBefore(), predicted: r.GetPrediction(),
		}
	})
	return g, active
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// step takes the one step that the active rebalance is due, if any.
func (c *conductor) step(ctx context.Context, now time.Time) error {
	g, active := c.gather()
	if !active {
		return c.considerTrigger(ctx, now)
	}
	if g.paused && g.phase != oraclev1.Phase_PHASE_MIGRATING {
		return nil
	}
	switch g.phase {
	case oraclev1.Phase_PHASE_TRACING:
		return c.trace(ctx, g, now)
	case oraclev1.Phase_PHASE_PARTITIONING:
		return c.partition(ctx, g, now)
	case oraclev1.Phase_PHASE_MIGRATING:
		return c.migrate(ctx, g)
	case oraclev1.Phase_PHASE_VERIFYING:
		return c.verify(ctx, g, now)
	default: // Proposed waits for a person.
		return nil
	}
}

func (c *conductor) enter(ctx context.Context, p *oraclev1.PhaseEntered) error {
	return c.oracle.propose(ctx, &oraclev1.LogEntry{Body: &oraclev1.LogEntry_PhaseEntered{PhaseEntered: p}})
}

// trace waits until enough was seen, then takes the snapshot that is planned from.
func (c *conductor) trace(ctx context.Context, g gathered, now time.Time) error {
	elapsed := now.Sub(g.since)
	if elapsed < g.trace {
		return nil
	}
	r := c.oracle.registry.since(g.since, now)
	if r.commands < g.minimum {
		if elapsed < traceExtension*g.trace {
			return nil
		}
		return c.enter(ctx, &oraclev1.PhaseEntered{
			Name: g.name, Phase: oraclev1.Phase_PHASE_FAILED,
			Message: fmt.Sprintf("only %d commands were seen in %v, %d are needed to plan; try again under load or lower the minimum", r.commands, elapsed.Round(time.Second), g.minimum),
		})
	}
	graph := c.oracle.tracer.take(g.name, g.placement, r, g.shards, now)
	return c.enter(ctx, &oraclev1.PhaseEntered{
		Name: g.name, Phase: oraclev1.Phase_PHASE_PARTITIONING,
		Message: fmt.Sprintf("partitioning a graph of %d vertices and %d edges", len(graph.GetVertices()), len(graph.GetEdges())),
		Before:  r.measurement(g.shards), GraphVertices: uint64(len(graph.GetVertices())), GraphEdges: uint64(len(graph.GetEdges())),
	})
}

// partition starts the partitioner where it runs as a child process, and waits
// for the plan either way.
func (c *conductor) partition(ctx context.Context, g gathered, now time.Time) error {
	graph := c.oracle.tracer.taken(g.name)
	if graph == nil {
		return c.enter(ctx, &oraclev1.PhaseEntered{
			Name: g.name, Phase: oraclev1.Phase_PHASE_TRACING,
			Message: "another replica of the oracle leads now and has no graph yet; watching again",
		})
	}
	if now.Sub(g.since) > partitionTimeout {
		return c.enter(ctx, &oraclev1.PhaseEntered{
			Name: g.name, Phase: oraclev1.Phase_PHASE_FAILED,
			Message: fmt.Sprintf("no plan came within %v; look at the partitioner's log", partitionTimeout),
		})
	}
	if c.oracle.config.Partitioner == PartitionerExternal {
		return nil
	}
	if c.partitioning == nil || c.partitioning.name != g.name {
		c.partitioning = c.startPartitioner(ctx, g.name, graph)
	}
	select {
	case failure := <-c.partitioning.failed:
		return c.oracle.propose(ctx, &oraclev1.LogEntry{Body: &oraclev1.LogEntry_RebalanceControlled{RebalanceControlled: &oraclev1.RebalanceControlled{
			Name: g.name, Action: oraclev1.RebalanceAction_REBALANCE_ACTION_FAIL, Message: failure.Error(),
		}}})
	default:
		return nil
	}
}

// startPartitioner runs the partitioner beside the conductor. A success shows in
// the directory; a failure is sent to the channel.
func (c *conductor) startPartitioner(ctx context.Context, name string, graph *planv1.Graph) *partitioning {
	p := &partitioning{name: name, failed: make(chan error, 1)}
	c.children.Go(func() {
		if err := c.oracle.runPartitioner(ctx, name, graph); err != nil {
			p.failed <- err
		}
	})
	return p
}

// migrate keeps the allowed number of handoffs under way and ends the phase
// when none is left.
func (c *conductor) migrate(ctx context.Context, g gathered) error {
	work := c.mover.gather()
	c.mover.resume(ctx, g.name, work.moving)
	if g.paused || g.stopping {
		return nil
	}
	for _, step := range work.startable {
		entry := &oraclev1.LogEntry{Body: &oraclev1.LogEntry_StepStarted{StepStarted: &oraclev1.StepStarted{Name: g.name, Step: step}}}
		if err := c.oracle.propose(ctx, entry); err != nil {
			return unlessRefused(err)
		}
	}
	if len(work.startable)+len(work.moving)+work.waiting > 0 {
		return nil
	}
	return c.enter(ctx, endOfMigration(g, work))
}

// unlessRefused drops the refusal of a step that a pause or a stop overtook.
func unlessRefused(err error) error {
	var refusal *directory.RefusalError
	if errors.As(err, &refusal) {
		return nil
	}
	return err
}

func endOfMigration(g gathered, work workload) *oraclev1.PhaseEntered {
	switch {
	case g.reverting:
		return &oraclev1.PhaseEntered{
			Name: g.name, Phase: oraclev1.Phase_PHASE_REVERTED,
			Message: fmt.Sprintf("the plan made things worse and was taken back: %d handoffs, %d failed", work.done, work.failed),
		}
	case work.done == 0:
		return &oraclev1.PhaseEntered{
			Name: g.name, Phase: oraclev1.Phase_PHASE_FAILED,
			Message: fmt.Sprintf("none of %d handoffs succeeded; last reason: %s", work.failed, work.lastFailure),
		}
	default:
		return &oraclev1.PhaseEntered{Name: g.name, Phase: oraclev1.Phase_PHASE_VERIFYING, Message: "measuring the effect"}
	}
}

// verify grades the rebalance: what was measured beside what was predicted.
func (c *conductor) verify(ctx context.Context, g gathered, now time.Time) error {
	// The first second after the last move is left out: commands that started before it still count there.
	from := g.since.Add(time.Second)
	if now.Sub(from) < min(g.window, maxVerifyWindow)+time.Second {
		return nil
	}
	r := c.oracle.registry.since(from, now)
	after := r.measurement(g.shards)
	if after.GetMpoShare() > g.before.GetMpoShare()+revertMargin && r.commands >= g.minimum {
		return c.enter(ctx, &oraclev1.PhaseEntered{
			Name: g.name, Phase: oraclev1.Phase_PHASE_MIGRATING, Revert: true, After: after,
			Message: fmt.Sprintf("multi-shard commands rose from %.1f %% to %.1f %%; taking the moves back", 100*g.before.GetMpoShare(), 100*after.GetMpoShare()),
		})
	}
	return c.enter(ctx, &oraclev1.PhaseEntered{
		Name: g.name, Phase: oraclev1.Phase_PHASE_SUCCEEDED, After: after,
		Message: fmt.Sprintf("multi-shard commands: %.1f %% before, %.1f %% predicted, %.1f %% measured",
			100*g.before.GetMpoShare(), 100*g.predicted.GetMpoShareAfter(), 100*after.GetMpoShare()),
	})
}

// addProgress adds to the public form of a rebalance what only this leader knows.
func (c *conductor) addProgress(r *oraclev1.Rebalance) {
	for _, step := range r.GetActive() {
		c.mover.addProgress(r.GetName(), step)
	}
}
