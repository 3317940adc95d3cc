// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package job owns the run of the partitioner program: it gets a graph and
// options from files or from the oracle, has the plan made, and hands it back.
// It decides nothing about the plan. The program kolocate-partitioner calls it.
package job

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/proto"

	planv1 "github.com/kolocate/kolocate/api/proto/plan/v1"
	"github.com/kolocate/kolocate/services/oracle/graph"
	"github.com/kolocate/kolocate/services/partitioner/plan"
)

// ErrUsage says that the program was called with flags that do not go together.
var ErrUsage = errors.New("usage")

// Config says where the graph comes from and where the plan goes.
type Config struct {
	// Files: encoded planv1.Graph and planv1.PlanOptions in (no OptionsFile: the
	// defaults), planv1.Plan out.
	GraphFile, OptionsFile, PlanFile string
	// Or the oracle: addresses (host:port) of its replicas, and the rebalance.
	Oracle    []string
	Rebalance string
	// Version stops after printing it.
	Version bool
}

// Parse reads the program's arguments. Its errors are flag.ErrHelp, after the
// help was printed to out, or ErrUsage.
func Parse(arguments []string, out io.Writer) (Config, error) {
	var c Config
	var oracle string
	flags := flag.NewFlagSet("kolocate-partitioner", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&c.GraphFile, "graph", "", "`file` with the encoded graph to plan for")
	flags.StringVar(&c.OptionsFile, "options", "", "`file` with the encoded options; without it the defaults")
	flags.StringVar(&c.PlanFile, "plan", "", "`file` that the encoded plan is written to")
	flags.StringVar(&oracle, "oracle", "", "`addresses` (host:port, separated by commas) of the oracle's replicas, instead of files")
	flags.StringVar(&c.Rebalance, "rebalance", "", "`name` of the rebalance to plan, with --oracle")
	flags.BoolVar(&c.Version, "version", false, "print the version and stop")
	if err := flags.Parse(arguments); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			_, _ = fmt.Fprintln(out, "kolocate-partitioner turns a workload graph into a plan: from files (--graph, --options, --plan)\nor for a rebalance at the oracle (--oracle, --rebalance).")
			flags.SetOutput(out)
			flags.PrintDefaults()
			return c, flag.ErrHelp
		}
		return c, fmt.Errorf("%w: %w; --help lists the flags", ErrUsage, err)
	}
	if flags.NArg() > 0 {
		return c, fmt.Errorf("%w: unexpected argument %q; --help lists the flags", ErrUsage, flags.Arg(0))
	}
	for address := range strings.SplitSeq(oracle, ",") {
		if address = strings.TrimSpace(address); address != "" {
			c.Oracle = append(c.Oracle, address)
		}
	}
	return c, c.check()
}

func (c Config) check() error {
	files := c.GraphFile != "" || c.OptionsFile != "" || c.PlanFile != ""
	online := len(c.Oracle) > 0 || c.Rebalance != ""
	switch {
	case c.Version:
		return nil
	case files == online:
		return fmt.Errorf("%w: give either --graph and --plan (and --options), or --oracle and --rebalance", ErrUsage)
	case files && (c.GraphFile == "" || c.PlanFile == ""):
		return fmt.Errorf("%w: --graph and --plan are both needed", ErrUsage)
	case online && (len(c.Oracle) == 0 || c.Rebalance == ""):
		return fmt.Errorf("%w: --oracle and --rebalance are both needed", ErrUsage)
	}
	return nil
}

// Run makes one plan. When it returns because ctx ended, the partitioner may
// still be at work in the background: the program should exit.
func Run(ctx context.Context, c Config, partitioner plan.Partitioner, out io.Writer) error {
	var made *planv1.Plan
	var err error
	if len(c.Oracle) > 0 {
		made, err = runOnline(ctx, c, partitioner)
	} else {
		made, err = runFiles(ctx, c, partitioner)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, Summary(made))
	if err != nil {
		return fmt.Errorf("print the summary of the plan: %w", err)
	}
	return nil
}

func runFiles(ctx context.Context, c Config, partitioner plan.Partitioner) (*planv1.Plan, error) {
	data, err := os.ReadFile(c.GraphFile)
	if err != nil {
		return nil, fmt.Errorf("read the graph: %w", err)
	}
	g, err := graph.Decode(data, "")
	if err != nil {
		return nil, fmt.Errorf("read the graph %s: %w", c.GraphFile, err)
	}
	options := &planv1.PlanOptions{}
	if c.OptionsFile != "" {
		if data, err = os.ReadFile(c.OptionsFile); err != nil {
			return nil, fmt.Errorf("read the options: %w", err)
		}
		if err := proto.Unmarshal(data, options); err != nil {
			return nil, fmt.Errorf("read the options %s: expected an encoded PlanOptions: %w", c.OptionsFile, err)
		}
	}
	made, err := makePlan(ctx, g, options, partitioner)
	if err != nil {
		return nil, err
	}
	return made, writePlan(c.PlanFile, made)
}

// writePlan writes the whole plan or nothing: to a file beside it, then renamed.
func writePlan(path string, made *planv1.Plan) error {
	data, err := graph.EncodePlan(made)
	if err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".plan-*")
	if err != nil {
		return fmt.Errorf("write the plan %s: %w", path, err)
	}
	_, err = file.Write(data)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write the plan %s: %w", path, errors.Join(err, os.Remove(file.Name())))
	}
	return nil
}

// Summary is a plan in one line.
func Summary(p *planv1.Plan) string {
	size := fmt.Sprintf("graph of %d vertices and %d edges, %.2f s in %s", p.GetGraphVertices(), p.GetGraphEdges(), p.GetPartitionSeconds(), p.GetPartitioner())
	if len(p.GetSteps()) == 0 {
		return fmt.Sprintf("no steps: %s (%s)", p.GetReason(), size)
	}
	e := p.GetPrediction()
	return fmt.Sprintf("%d steps move %d vertices and slots (%d bytes): multi-shard share %.2f %% to %.2f %%, imbalance %.1f %% to %.1f %%, %d overrides (%s)",
		len(p.GetSteps()), e.GetMovedVertices(), e.GetMovedBytes(), 100*e.GetMpoShareBefore(), 100*e.GetMpoShareAfter(),
		100*e.GetImbalanceBefore(), 100*e.GetImbalanceAfter(), e.GetOverridesAfter(), size)
}
