// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	planv1 "github.com/kolocate/kolocate/api/proto/plan/v1"
	"github.com/kolocate/kolocate/services/oracle/directory"
	"github.com/kolocate/kolocate/services/oracle/graph"
)

// maxPartitionerOutput bounds how much of a failed partitioner's words is passed on.
const maxPartitionerOutput = 2000

// runPartitioner plans with a child process: files in, a file out.
func (o *Oracle) runPartitioner(ctx context.Context, name string, snapshot *planv1.Graph) error {
	ctx, cancel := context.WithTimeout(ctx, partitionTimeout)
	defer cancel()
	dir, err := os.MkdirTemp(o.config.DataDir, "partition-")
	if err != nil {
		return fmt.Errorf("make a folder for the partitioner's files: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // what stays behind is found under the data directory
	graphFile, optionsFile, planFile := filepath.Join(dir, "graph"), filepath.Join(dir, "options"), filepath.Join(dir, "plan")
	if err := errors.Join(writeMessage(graphFile, snapshot), writeMessage(optionsFile, o.planOptions())); err != nil {
		return err
	}
	command := exec.CommandContext(ctx, o.config.Partitioner, "--graph", graphFile, "--options", optionsFile, "--plan", planFile) //nolint:gosec // the operator of the store names the program
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	command.WaitDelay = time.Second
	if err := command.Run(); err != nil {
		words := strings.TrimSpace(output.String())
		return fmt.Errorf("run %s: %w: %s", o.config.Partitioner, err, words[max(0, len(words)-maxPartitionerOutput):])
	}
	data, err := os.ReadFile(planFile)
	if err != nil {
		return fmt.Errorf("read the partitioner's plan: %w", err)
	}
	plan, err := graph.DecodePlan(data, o.config.Store)
	if err != nil {
		return fmt.Errorf("read the partitioner's plan: %w", err)
	}
	return o.acceptPlan(ctx, name, plan)
}

func writeMessage(file string, m proto.Message) error {
	data, err := proto.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode %s: %w", filepath.Base(file), err)
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		return fmt.Errorf("write the partitioner's input: %w; free space under the data directory", err)
	}
	return nil
}

// acceptPlan records a plan, if it fits.
func (o *Oracle) acceptPlan(ctx context.Context, name string, plan *planv1.Plan) error {
	return o.propose(ctx, &oraclev1.LogEntry{Body: &oraclev1.LogEntry_PlanAccepted{PlanAccepted: &oraclev1.PlanAccepted{Name: name, Plan: plan}}})
}

// planOptions are what the policy asks of a plan.
func (o *Oracle) planOptions() (options *planv1.PlanOptions) {
	o.machine.view(func(d *directory.Directory) {
		p := d.Policy()
		options = &planv1.PlanOptions{
			Imbalance: p.GetImbalanceTolerance(), Preconfiguration: p.GetPreconfiguration(), Seed: 1,
			MaxMoves: p.GetMaxMoves(), MaxBytes: p.GetMaxBytes(), StepVertices: p.GetStepVertices(),
			MinimumGain: p.GetMinimumGain(), TimeLimitSeconds: partitionTimeout.Seconds() / 3, MaxOverrides: p.GetMaxOverrides(),
		}
	})
	return options
}
