// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package job

import (
	"context"
	"time"

	planv1 "github.com/kolocate/kolocate/api/proto/plan/v1"
	"github.com/kolocate/kolocate/services/partitioner/plan"
)

// stopwatch adds up the time that a partitioner takes. Planning itself is pure
// and reads no clock.
type stopwatch struct {
	plan.Partitioner
	spent time.Duration
}

// Partition implements plan.Partitioner.
func (s *stopwatch) Partition(ctx context.Context, graph *plan.CSR, parts int, options plan.PartitionOptions) ([]int32, error) {
	began := time.Now()
	defer func() { s.spent += time.Since(began) }()
	return s.Partitioner.Partition(ctx, graph, parts, options)
}

// makePlan plans, and notes in the plan how long the partitioner took.
func makePlan(ctx context.Context, g *planv1.Graph, options *planv1.PlanOptions, partitioner plan.Partitioner) (*planv1.Plan, error) {
	timed := &stopwatch{Partitioner: partitioner}
	made, err := plan.Make(ctx, g, options, timed)
	if err != nil {
		return nil, err
	}
	made.PartitionSeconds = timed.spent.Seconds()
	return made, nil
}
