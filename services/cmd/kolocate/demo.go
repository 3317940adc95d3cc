// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kolocate/kolocate/api/client"
	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/services/bench/social"
	"github.com/kolocate/kolocate/services/cmd/kolocate/drive"
	"github.com/kolocate/kolocate/services/cmd/kolocate/local"
)

// loadFlags describe the network and the load.
type loadFlags struct {
	graph              string
	users, workers     int
	seed               uint64
	before, after      time.Duration
	warm, trace, limit time.Duration
	postShare          float64
	json               bool
}

func (f *loadFlags) add(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVar(&f.graph, "graph", "", "network to load: a file with one \"a b\" pair a line, plain or gzipped (default: a generated one)")
	flags.IntVar(&f.users, "users", 10_000, "users of a generated network")
	flags.IntVar(&f.workers, "workers", 64, "commands under way at once")
	flags.Uint64Var(&f.seed, "seed", 1, "seed of the network and the load")
	flags.Float64Var(&f.postShare, "post-share", 0.15, "share of posts among the commands; the rest read timelines")
	flags.DurationVar(&f.warm, "warm-up", 3*time.Second, "load before anything is measured")
	flags.DurationVar(&f.before, "before", 10*time.Second, "how long the load is measured before the rebalance")
	flags.DurationVar(&f.after, "after", 12*time.Second, "how long it is measured afterwards")
	flags.DurationVar(&f.trace, "window", 10*time.Second, "how long the shards watch before a plan is made")
	flags.DurationVar(&f.limit, "limit", 5*time.Minute, "longest the whole run may take")
	flags.BoolVar(&f.json, "json", false, "print the result as one JSON object in the last line")
}

// network reads or generates the network.
func (f *loadFlags) network() (*social.Graph, error) {
	if f.graph != "" {
		return social.ReadFile(f.graph)
	}
	return social.Generate(social.GenerateConfig{Users: f.users, Seed: f.seed})
}

// run drives the load at an address and prints the outcome.
func (f *loadFlags) run(command *cobra.Command, address string, graph *social.Graph, config drive.Config) error {
	ctx := command.Context()
	store, err := client.Dial(ctx, client.Config{Target: address})
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }() // nothing is under way any more
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connect to %s: %w", address, err)
	}
	defer func() { _ = conn.Close() }() // nothing is under way any more
	workload, err := social.New(social.Config{Graph: graph, Store: store, Workers: f.workers, PostShare: f.postShare, Seed: f.seed})
	if err != nil {
		return err
	}
	out := command.OutOrStdout()
	screen := drive.NewScreen(os.Stderr, isTerminal(os.Stderr))
	config.Admin, config.Workload, config.Graph, config.Show = oraclev1.NewAdminClient(conn), workload, graph, screen.Show
	config.Warm, config.Before, config.After, config.Trace, config.Limit = f.warm, f.before, f.after, f.trace, f.limit
	outcome, err := drive.Run(ctx, config)
	if err != nil {
		return err
	}
	if err := outcome.WriteTable(out); err != nil {
		return err
	}
	if f.json {
		if err := outcome.WriteJSON(out); err != nil {
			return err
		}
	}
	if faults := outcome.Faults(); len(faults) > 0 {
		return fmt.Errorf("the run found faults: %v", faults)
	}
	return nil
}

func isTerminal(file *os.File) bool {
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func newLoad() *cobra.Command {
	var load loadFlags
	var connect connectFlags
	command := &cobra.Command{
		Use:     "load",
		Short:   "Drive the social workload at a store through a rebalance that somebody starts, and check everything",
		GroupID: groupUse,
		Args:    cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			graph, err := load.network()
			if err != nil {
				return err
			}
			return load.run(command, connect.address, graph, drive.Config{Await: true})
		},
	}
	connect.add(command)
	load.add(command)
	return command
}

func newDemo() *cobra.Command {
	var load loadFlags
	var shards, replicas int
	var partitioner, envoy, dir, address string
	var keep bool
	command := &cobra.Command{
		Use:     "demo",
		Short:   "Run a store on this machine, load a social network and watch the store rebalance",
		GroupID: groupUse,
		Args:    cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) (err error) {
			graph, err := load.network()
			if err != nil {
				return err
			}
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program: %w", err)
			}
			if dir == "" {
				if dir, err = os.MkdirTemp("", "kolocate-demo-"); err != nil {
					return fmt.Errorf("make a folder for the demo: %w", err)
				}
				defer func() {
					if err == nil {
						err = os.RemoveAll(dir)
					} else {
						_ = os.Remove(dir) // it stays unless nothing was written there
					}
				}()
			}
			say := func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
			say("starting an oracle, %d shards and Envoy; data and logs in %s", shards, dir)
			store, err := local.Start(command.Context(), local.Config{
				Dir: dir, Store: "demo", Shards: shards, Replicas: replicas, Kolocate: self, Partitioner: partitioner, Envoy: envoy,
				EnvoyThreads: 1, Address: address,
			})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, store.Stop()) }()
			say("the store serves at %s\nloading %d users with %d friendships; then 85 %% timeline reads, 15 %% posts to all friends at once", store.Address, graph.Users(), graph.Edges())
			if err := load.run(command, store.Address, graph, drive.Config{Rebalance: "demo", Failed: store.Failed()}); err != nil {
				return err
			}
			if keep {
				say("\nthe store stays up until you press Ctrl-C. In another terminal:\n  export KOLOCATE_ADDRESS=%s\n  %s status", store.Address, filepath.Clean(self))
				select {
				case <-command.Context().Done():
				case err := <-store.Failed():
					return err
				}
			}
			return nil
		},
	}
	load.add(command)
	flags := command.Flags()
	flags.IntVar(&shards, "shards", 4, "number of shards")
	flags.IntVar(&replicas, "replicas", 1, "replicas of each shard: 1 or 3")
	flags.StringVar(&partitioner, "partitioner", os.Getenv("KOLOCATE_PARTITIONER"), "the program kolocate-partitioner; also by KOLOCATE_PARTITIONER")
	flags.StringVar(&envoy, "envoy", os.Getenv("KOLOCATE_ENVOY"), "the program Envoy; also by KOLOCATE_ENVOY")
	flags.StringVar(&dir, "data", "", "existing folder for data and logs, which stays (default: a temporary one, removed after success)")
	flags.StringVar(&address, "listen", "", "address that Envoy listens on (default: a free port)")
	flags.BoolVar(&keep, "keep", false, "let the store run until it is interrupted")
	return command
}
