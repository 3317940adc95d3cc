// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/api/v1alpha1"
)

// smallest stands for 0 in a policy, where the oracle takes 0 for unset.
const smallest = 1e-9

// policy gives the oracle's form of the rebalancing policy of a store.
func policy(store *v1alpha1.Store) (*oraclev1.Policy, error) {
	spec := store.Spec.Rebalancing
	mode := spec.Mode
	if store.Spec.Placement.Policy == v1alpha1.PlacementStatic {
		// Keys never move, whatever else the spec says.
		mode = v1alpha1.RebalancingOff
	}
	p := &oraclev1.Policy{
		Mode:               string(mode),
		Approval:           string(spec.Approval),
		CooldownSeconds:    seconds(spec.Cooldown),
		WindowSeconds:      seconds(spec.Window),
		Preconfiguration:   spec.Preconfiguration,
		MaxMoves:           uint32(spec.MaxMoves), //nolint:gosec // validated: from 1
		MaxBytes:           bytes(spec.MaxBytes),
		RateBytesPerSecond: bytes(spec.Rate),
		ConcurrentHandoffs: uint32(spec.ConcurrentHandoffs), //nolint:gosec // validated: from 1
		MaxOverrides:       uint32(spec.MaxOverrides),       //nolint:gosec // validated: from 1
		MinimumCommands:    uint64(spec.MinimumCommands),    //nolint:gosec // validated: from 1
		StepVertices:       uint32(spec.StepVertices),       //nolint:gosec // validated: from 1
	}
	for _, share := range []struct {
		field string
		text  string
		into  *float64
	}{
		{"mpoShareThreshold", string(spec.MPOShareThreshold), &p.MpoShareThreshold},
		{"imbalanceThreshold", string(spec.ImbalanceThreshold), &p.ImbalanceThreshold},
		{"minimumGain", string(spec.MinimumGain), &p.MinimumGain},
		{"imbalanceTolerance", string(spec.ImbalanceTolerance), &p.ImbalanceTolerance},
	} {
		value, err := v1alpha1.ParsePercent(share.text)
		if err != nil {
			return nil, fmt.Errorf("spec.rebalancing.%s: %w", share.field, err)
		}
		*share.into = max(value, smallest)
	}
	return p, nil
}

func seconds(d *metav1.Duration) float64 {
	if d == nil {
		return 0
	}
	return d.Seconds()
}

func bytes(q *resource.Quantity) uint64 {
	if q == nil || q.Sign() <= 0 {
		return 0
	}
	return uint64(max(q.Value(), 1))
}

// samePolicy says whether the oracle runs by the wanted policy. Fields that are
// not set in wanted are the oracle's to choose.
func samePolicy(wanted, actual *oraclev1.Policy) bool {
	merged := proto.CloneOf(actual)
	if merged == nil {
		merged = &oraclev1.Policy{}
	}
	proto.Merge(merged, wanted)
	return proto.Equal(merged, actual)
}
