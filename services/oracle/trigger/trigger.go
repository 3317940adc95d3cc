// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package trigger owns the decision whether to look for a better placement: a
// chain of pure policies over counters, each answering with a reason. It has no
// clock, state or I/O. The oracle asks it once a tick.
package trigger

import (
	"fmt"
	"strings"
	"time"
)

// Modes of rebalancing.
const (
	ModeAuto   = "Auto"
	ModeManual = "Manual"
	ModeOff    = "Off"
)

// Input is what the policies decide on.
type Input struct {
	Mode string
	// Active is the name of the rebalance under way; empty if there is none.
	Active string
	// Commands counted over the window, and how long the window has been filling.
	Commands      uint64
	Observed      time.Duration
	MPOShare      float64
	Imbalance     float64
	SinceLast     time.Duration // since the end of the last rebalance
	HadRebalance  bool          // whether there was one
	UnreadyShards int
	// GainKnown says that a plan was made for this load and found not worth
	// carrying out; PredictedGain is the fall of the MPO share that it promised.
	GainKnown     bool
	PredictedGain float64
	Limits        Limits
}

// Limits are the thresholds of a store's policy.
type Limits struct {
	MPOShare        float64 // 0 to 1; 0: any multi-shard command is worth a look
	Imbalance       float64 // 0.2: the busiest shard is 20 % over the mean
	MinimumGain     float64 // fall of the MPO share, 0 to 1
	MinimumCommands uint64
	Cooldown        time.Duration
	Window          time.Duration
}

// Verdict is one policy's answer.
type Verdict int

// A policy lets the chain go on, refuses, or sees a reason to act. The chain acts
// if none refuses and at least one sees a reason.
const (
	Pass Verdict = iota
	Refuse
	Act
)

// Answer is what one policy said.
type Answer struct {
	Policy  string
	Verdict Verdict
	Reason  string
}

// Decision is what the chain says. Answers holds the answers of all policies,
// in the order of the chain, whether an earlier one refused or not.
type Decision struct {
	Act     bool
	Answers []Answer
}

// Reason puts the decision into words: what refused, else why to act, else that
// there is nothing to gain.
func (d Decision) Reason() string {
	var parts []string
	wanted := Refuse
	if d.Act {
		wanted = Act
	}
	for _, a := range d.Answers {
		if a.Verdict == wanted {
			parts = append(parts, a.Reason)
		}
	}
	if len(parts) == 0 {
		for _, a := range d.Answers {
			if a.Verdict == Pass && a.Reason != "" {
				parts = append(parts, a.Reason)
			}
		}
	}
	return strings.Join(parts, "; ")
}

// Policy is one pure rule.
type Policy struct {
	Name   string
	Decide func(Input) (Verdict, string)
}

// Chain is the order in which the oracle asks.
func Chain() []Policy {
	return []Policy{
		{"mode", mode},
		{"active", active},
		{"shards", shards},
		{"window", window},
		{"commands", commands},
		{"cooldown", cooldown},
		{"gain", gain},
		{"mpo-share", mpoShare},
		{"imbalance", imbalance},
	}
}

// Decide asks all policies of the chain.
func Decide(in Input) Decision {
	return decide(Chain(), in)
}

func decide(chain []Policy, in Input) Decision {
	d := Decision{}
	refused, wanted := false, false
	for _, policy := range chain {
		verdict, reason := policy.Decide(in)
		refused = refused || verdict == Refuse
		wanted = wanted || verdict == Act
		d.Answers = append(d.Answers, Answer{Policy: policy.Name, Verdict: verdict, Reason: reason})
	}
	d.Act = wanted && !refused
	return d
}

// WorthTracing says whether the counters alone promise something, so that the
// shards should sample vertices and edges: the second, dearer phase of tracing.
func WorthTracing(in Input) (worth bool, reason string) {
	if in.Mode == ModeOff {
		return false, "rebalancing is off"
	}
	if in.Active != "" {
		return true, fmt.Sprintf("rebalance %s is under way", in.Active)
	}
	for _, policy := range []func(Input) (Verdict, string){mpoShare, imbalance} {
		if verdict, why := policy(in); verdict == Act {
			return true, why
		}
	}
	return false, "share of multi-shard commands and imbalance are below their thresholds"
}

func mode(in Input) (Verdict, string) {
	switch in.Mode {
	case ModeAuto:
		return Pass, ""
	case ModeManual:
		return Refuse, "rebalancing is manual: create a Rebalance to start one"
	case ModeOff:
		return Refuse, "rebalancing is off"
	default:
		return Refuse, fmt.Sprintf("rebalancing mode %q is unknown, expected %s, %s or %s", in.Mode, ModeAuto, ModeManual, ModeOff)
	}
}

func active(in Input) (Verdict, string) {
	if in.Active != "" {
		return Refuse, fmt.Sprintf("rebalance %s is under way", in.Active)
	}
	return Pass, ""
}

func shards(in Input) (Verdict, string) {
	if in.UnreadyShards > 0 {
		return Refuse, fmt.Sprintf("%d shards are not ready", in.UnreadyShards)
	}
	return Pass, ""
}

func window(in Input) (Verdict, string) {
	if in.Observed < in.Limits.Window {
		return Refuse, fmt.Sprintf("observed for %s of the window of %s", round(in.Observed), round(in.Limits.Window))
	}
	return Pass, ""
}

func commands(in Input) (Verdict, string) {
	if in.Commands < in.Limits.MinimumCommands {
		return Refuse, fmt.Sprintf("%d commands in the window, at least %d are needed to judge", in.Commands, in.Limits.MinimumCommands)
	}
	return Pass, ""
}

func cooldown(in Input) (Verdict, string) {
	if in.HadRebalance && in.SinceLast < in.Limits.Cooldown {
		return Refuse, fmt.Sprintf("the last rebalance ended %s ago, the cooldown is %s", round(in.SinceLast), round(in.Limits.Cooldown))
	}
	return Pass, ""
}

func gain(in Input) (Verdict, string) {
	if in.GainKnown && in.PredictedGain < in.Limits.MinimumGain {
		return Refuse, fmt.Sprintf("the last plan for this load promised a gain of %.1f %% of the commands, at least %.1f %% are asked for",
			100*in.PredictedGain, 100*in.Limits.MinimumGain)
	}
	return Pass, ""
}

func mpoShare(in Input) (Verdict, string) {
	if in.MPOShare > in.Limits.MPOShare {
		return Act, fmt.Sprintf("%.1f %% of the commands cross shards, the threshold is %.1f %%", 100*in.MPOShare, 100*in.Limits.MPOShare)
	}
	return Pass, fmt.Sprintf("%.1f %% of the commands cross shards, within the threshold of %.1f %%", 100*in.MPOShare, 100*in.Limits.MPOShare)
}

func imbalance(in Input) (Verdict, string) {
	if in.Imbalance > in.Limits.Imbalance {
		return Act, fmt.Sprintf("the busiest shard is %.0f %% over the mean, the threshold is %.0f %%", 100*in.Imbalance, 100*in.Limits.Imbalance)
	}
	return Pass, fmt.Sprintf("the busiest shard is %.0f %% over the mean, within the threshold of %.0f %%", 100*in.Imbalance, 100*in.Limits.Imbalance)
}

func round(d time.Duration) time.Duration { return d.Round(100 * time.Millisecond) }
