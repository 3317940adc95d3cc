// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"slices"

	"google.golang.org/protobuf/proto"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/services/oracle/trigger"
)

// The approvals of a policy. Its modes are those of the trigger.
const (
	ApprovalAutomatic = "Automatic"
	ApprovalManual    = "Manual"
)

// Preconfigurations are those of KaHIP's kaffpa.
var Preconfigurations = []string{"fast", "eco", "strong", "fastsocial", "ecosocial", "strongsocial"}

// WithDefaults returns a copy of the policy with every unset field at its default.
func WithDefaults(p *oraclev1.Policy) *oraclev1.Policy {
	p = proto.CloneOf(p)
	if p == nil {
		p = &oraclev1.Policy{}
	}
	setDefault(&p.Mode, trigger.ModeManual)
	setDefault(&p.Approval, ApprovalAutomatic)
	setDefault(&p.MpoShareThreshold, 0.05)
	setDefault(&p.ImbalanceThreshold, 0.5)
	setDefault(&p.MinimumGain, 0.01)
	setDefault(&p.CooldownSeconds, 60)
	setDefault(&p.WindowSeconds, 30)
	setDefault(&p.ImbalanceTolerance, 0.1)
	setDefault(&p.Preconfiguration, "fastsocial")
	setDefault(&p.MaxMoves, 100_000)
	setDefault(&p.MaxBytes, 64<<30)
	setDefault(&p.RateBytesPerSecond, 64<<20)
	setDefault(&p.ConcurrentHandoffs, 2)
	setDefault(&p.MaxOverrides, 50_000)
	setDefault(&p.MinimumCommands, 1000)
	setDefault(&p.StepVertices, 64)
	return p
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// CheckPolicy returns a *RefusalError that names the first field out of its bounds.
func CheckPolicy(p *oraclev1.Policy) error {
	if !slices.Contains([]string{trigger.ModeAuto, trigger.ModeManual, trigger.ModeOff}, p.GetMode()) {
		return refuse("policy: mode %q is unknown; use %s, %s or %s", p.GetMode(), trigger.ModeAuto, trigger.ModeManual, trigger.ModeOff)
	}
	if err := checkApproval(p.GetApproval()); err != nil {
		return err
	}
	if !slices.Contains(Preconfigurations, p.GetPreconfiguration()) {
		return refuse("policy: preconfiguration %q is unknown; use one of %v", p.GetPreconfiguration(), Preconfigurations)
	}
	for _, bound := range []struct {
		name             string
		value, low, high float64
	}{
		{"mpo share threshold", p.GetMpoShareThreshold(), 0, 1},
		{"imbalance threshold", p.GetImbalanceThreshold(), 0, 64},
		{"minimum gain", p.GetMinimumGain(), 0, 1},
		{"cooldown in seconds", p.GetCooldownSeconds(), 0, 86_400 * 30},
		{"window in seconds", p.GetWindowSeconds(), 0.1, 86_400},
		{"imbalance tolerance", p.GetImbalanceTolerance(), 0.001, 1},
		{"concurrent handoffs", float64(p.GetConcurrentHandoffs()), 1, 64},
		{"overrides", float64(p.GetMaxOverrides()), 1, 1_000_000},
		{"vertices in a step", float64(p.GetStepVertices()), 1, 4096},
	} {
		// Written so that a NaN is refused too.
		if !(bound.value >= bound.low && bound.value <= bound.high) {
			return refuse("policy: %s is %g, expected %g to %g", bound.name, bound.value, bound.low, bound.high)
		}
	}
	return nil
}

func checkApproval(approval string) error {
	if approval != ApprovalAutomatic && approval != ApprovalManual {
		return refuse("approval %q is unknown; use %s or %s", approval, ApprovalAutomatic, ApprovalManual)
	}
	return nil
}
