// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"strings"
	"testing"
	"time"
)

// ready is a store where everything asks for a rebalance.
func ready() Input {
	return Input{
		Mode: ModeAuto, Commands: 5000, Observed: time.Minute, MPOShare: 0.15, Imbalance: 0.1,
		SinceLast: time.Hour, HadRebalance: true,
		Limits: Limits{MPOShare: 0.05, Imbalance: 0.3, MinimumGain: 0.02, MinimumCommands: 1000, Cooldown: 5 * time.Minute, Window: 30 * time.Second},
	}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*Input)
		act    bool
		reason string
	}{
		"multi-shard commands": {func(*Input) {}, true, "15.0 % of the commands cross shards"},
		"imbalance alone":      {func(in *Input) { in.MPOShare, in.Imbalance = 0, 0.5 }, true, "50 % over the mean"},
		"both":                 {func(in *Input) { in.Imbalance = 0.5 }, true, "; "},
		"nothing to gain":      {func(in *Input) { in.MPOShare = 0.01 }, false, "1.0 % of the commands cross shards, within"},
		"off":                  {func(in *Input) { in.Mode = ModeOff }, false, "off"},
		"manual":               {func(in *Input) { in.Mode = ModeManual }, false, "create a Rebalance"},
		"unknown mode":         {func(in *Input) { in.Mode = "Sometimes" }, false, "unknown"},
		"active":               {func(in *Input) { in.Active = "r1" }, false, "r1 is under way"},
		"window":               {func(in *Input) { in.Observed = 3 * time.Second }, false, "3s of the window of 30s"},
		"few commands":         {func(in *Input) { in.Commands = 10 }, false, "10 commands"},
		"cooldown":             {func(in *Input) { in.SinceLast = time.Second }, false, "cooldown"},
		"first rebalance":      {func(in *Input) { in.SinceLast, in.HadRebalance = 0, false }, true, "cross shards"},
		"no gain":              {func(in *Input) { in.GainKnown, in.PredictedGain = true, 0.01 }, false, "promised a gain of 1.0 %"},
		"gain":                 {func(in *Input) { in.GainKnown, in.PredictedGain = true, 0.03 }, true, "cross shards"},
		"shard down":           {func(in *Input) { in.UnreadyShards = 1 }, false, "1 shards are not ready"},
	} {
		in := ready()
		c.change(&in)
		d := Decide(in)
		if d.Act != c.act || !strings.Contains(d.Reason(), c.reason) {
			t.Errorf("%s: act %v because %q; expected %v because of %q", name, d.Act, d.Reason(), c.act, c.reason)
		}
		if len(d.Answers) != len(Chain()) {
			t.Errorf("%s: %d answers of %d policies", name, len(d.Answers), len(Chain()))
		}
	}
}

// TestARefusalWins: whatever else is said, one refusal keeps the chain from acting.
func TestARefusalWins(t *testing.T) {
	t.Parallel()
	says := func(v Verdict) Policy {
		return Policy{Decide: func(Input) (Verdict, string) { return v, "because" }}
	}
	for bits := range 27 {
		var chain []Policy
		refused, wanted := false, false
		for rest, i := bits, 0; i < 3; rest, i = rest/3, i+1 {
			v := Verdict(rest % 3)
			refused, wanted = refused || v == Refuse, wanted || v == Act
			chain = append(chain, says(v))
		}
		if d := decide(chain, Input{}); d.Act != (wanted && !refused) {
			t.Errorf("chain %d acts: %v", bits, d.Act)
		}
	}
}

func TestWorthTracing(t *testing.T) {
	t.Parallel()
	in := ready()
	if worth, _ := WorthTracing(in); !worth {
		t.Error("multi-shard commands are not worth tracing")
	}
	in.Mode = ModeManual
	if worth, _ := WorthTracing(in); !worth {
		t.Error("manual mode must still trace: a person may ask for a plan")
	}
	in.MPOShare = 0
	if worth, reason := WorthTracing(in); worth || reason == "" {
		t.Error("nothing to gain is worth tracing")
	}
	in.Active = "r"
	if worth, _ := WorthTracing(in); !worth {
		t.Error("an active rebalance is not worth tracing")
	}
	in.Mode = ModeOff
	if worth, _ := WorthTracing(in); worth {
		t.Error("off, and tracing")
	}
}
