// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"fmt"
	"time"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/services/oracle/directory"
	"github.com/kolocate/kolocate/services/oracle/trigger"
)

const (
	// triggerInterval is how often the trigger's policies are asked.
	triggerInterval = time.Second
	// gainMemory is for how many cooldowns a plan that promised too little keeps
	// another from being made.
	gainMemory = 10
)

// considerTrigger asks the chain of policies whether a rebalance is worth it,
// and starts one if so.
func (c *conductor) considerTrigger(ctx context.Context, now time.Time) error {
	if now.Before(c.triggerAfter) {
		return nil
	}
	c.triggerAfter = now.Add(triggerInterval)
	input, name := c.oracle.triggerInput(now, c.started)
	decision := trigger.Decide(input)
	c.answer.Store(&decision)
	if !decision.Act {
		return nil
	}
	return c.oracle.propose(ctx, &oraclev1.LogEntry{Body: &oraclev1.LogEntry_RebalanceCreated{RebalanceCreated: &oraclev1.RebalanceCreated{
		Name: name, Reasons: []string{decision.Reason()},
	}}})
}

// triggerInput gathers what the policies decide on, and a name for the rebalance.
func (o *Oracle) triggerInput(now, observedSince time.Time) (in trigger.Input, name string) {
	o.machine.view(func(d *directory.Directory) {
		p := d.Policy()
		in = trigger.Input{
			Mode: p.GetMode(), Observed: now.Sub(observedSince),
			Limits: trigger.Limits{
				MPOShare: p.GetMpoShareThreshold(), Imbalance: p.GetImbalanceThreshold(), MinimumGain: p.GetMinimumGain(),
				MinimumCommands: p.GetMinimumCommands(), Cooldown: seconds(p.GetCooldownSeconds()), Window: seconds(p.GetWindowSeconds()),
			},
		}
		r := o.registry.since(now.Add(-in.Limits.Window), now)
		in.Commands, in.MPOShare, in.Imbalance = r.commands, r.mpoShare(), r.imbalance(d.Shards())
		for shard := uint32(1); shard <= d.Shards(); shard++ {
			if leader, ok := o.registry.leader(shard); !ok || !leader.initialised {
				in.UnreadyShards++
			}
		}
		if last := d.Newest(); last != nil {
			in.HadRebalance, in.SinceLast = true, now.Sub(time.UnixMilli(last.GetPhaseSinceUnixMillis()))
			nothing := last.GetPhase() == oraclev1.Phase_PHASE_SUCCEEDED && last.GetStepsTotal() == 0
			in.GainKnown = nothing && in.SinceLast < gainMemory*in.Limits.Cooldown
			in.PredictedGain = last.GetPrediction().GetMpoShareBefore() - last.GetPrediction().GetMpoShareAfter()
		}
		name = fmt.Sprintf("auto-%d-%d", d.Placement().Epoch(), now.Unix())
	})
	return in, name
}

// triggerAnswer is what the policies said last, in words.
func (c *conductor) triggerAnswer() string {
	if decision := c.answer.Load(); decision != nil {
		return decision.Reason()
	}
	return ""
}
