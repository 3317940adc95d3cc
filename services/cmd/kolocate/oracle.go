// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	edge "github.com/kolocate/kolocate/services/edge/serve"
	"github.com/kolocate/kolocate/services/keyspace"
	oracle "github.com/kolocate/kolocate/services/oracle/serve"
)

func newOracle() *cobra.Command {
	var members memberFlags
	var logs logFlags
	var shards int
	var listener, partitioner, mode, approval string
	var edgeAddresses []string
	policy := &oraclev1.Policy{}
	command := &cobra.Command{
		Use:     "oracle",
		Short:   "Run a replica of the oracle: placement, workload graph, rebalances, Envoy's control plane",
		GroupID: groupRun,
		Args:    cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			log, err := logs.logger()
			if err != nil {
				return err
			}
			m, err := members.parse()
			if err != nil {
				return err
			}
			if shards < 1 || shards > keyspace.MaxShards {
				return fmt.Errorf("--shards %d: expected 1 to %d", shards, keyspace.MaxShards)
			}
			program, ok := strings.CutPrefix(partitioner, "exec:")
			if !ok && partitioner != oracle.PartitionerExternal || program == "" {
				return fmt.Errorf("--partitioner %q: expected exec:PATH, or external when a Kubernetes Job partitions", partitioner)
			}
			if listener == "" {
				return errors.New("--listener is missing: name the address that Envoy shall listen on, as in 0.0.0.0:8080")
			}
			policy.Mode, policy.Approval = mode, approval
			return oracle.Run(command.Context(), oracle.Config{
				Store: members.store, Shards: shards, Replica: m.replica, Peers: m.peers, DataDir: members.data,
				Listen: members.listen, MetricsListen: members.metrics, EnvoyListener: listener, EdgeOracleAddresses: edgeAddresses,
				Policy: policy, Partitioner: program, TickInterval: members.tick, ElectionTimeout: members.election,
				Version: version, Logger: log, NewEdge: newEdge,
			})
		},
	}
	members.add(command, 7100)
	logs.add(command)
	flags := command.Flags()
	flags.IntVar(&shards, "shards", 0, "number of shards of a new store")
	flags.StringVar(&listener, "listener", "", "address that Envoy listens on, given to it by ADS")
	flags.StringSliceVar(&edgeAddresses, "edge-oracle-addresses", nil, "addresses under which Envoy reaches the oracle (default: --peers)")
	flags.StringVar(&partitioner, "partitioner", oracle.PartitionerExternal, "exec:PATH runs kolocate-partitioner as a child process; external waits for a plan")
	flags.StringVar(&mode, "rebalancing", "Manual", "first policy: Auto, Manual or Off")
	flags.StringVar(&approval, "approval", "Automatic", "first policy: Automatic or Manual approval of plans")
	flags.Float64Var(&policy.WindowSeconds, "window", 30, "seconds to watch before a plan is made")
	flags.Float64Var(&policy.CooldownSeconds, "cooldown", 60, "seconds between two rebalances of the trigger")
	flags.Uint64Var(&policy.MinimumCommands, "minimum-commands", 1000, "commands to see before a plan is made")
	flags.Float64Var(&policy.ImbalanceTolerance, "imbalance", 0.1, "tolerated imbalance of load: 0.1 is 10 %")
	flags.StringVar(&policy.Preconfiguration, "preconfiguration", "", "KaHIP's: fast, eco, strong, fastsocial, ecosocial or strongsocial")
	return command
}

// newEdge joins Envoy's control plane to the oracle.
func newEdge(log *slog.Logger, registerer prometheus.Registerer) (oracle.Edge, error) {
	return edge.New(edge.Config{Logger: log, Registerer: registerer})
}
