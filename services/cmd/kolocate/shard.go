// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/kolocate/kolocate/services/keyspace"
	shard "github.com/kolocate/kolocate/services/shard/serve"
)

func newShard() *cobra.Command {
	var members memberFlags
	var logs logFlags
	var id uint32
	var advertise string
	var oracles []string
	var clockError time.Duration
	command := &cobra.Command{
		Use:     "shard",
		Short:   "Run a replica of a shard: the store itself",
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
			if id < 1 || id > keyspace.MaxShards {
				return fmt.Errorf("--shard %d: expected 1 to %d", id, keyspace.MaxShards)
			}
			if len(oracles) == 0 {
				return errors.New("--oracle is missing: name the addresses of the oracle's replicas")
			}
			return shard.Run(command.Context(), shard.Config{
				Store: members.store, Shard: keyspace.ShardID(id), Replica: m.replica, Peers: m.peers, DataDir: members.data,
				Listen: members.listen, MetricsListen: members.metrics, Advertise: advertise, Oracle: oracles,
				TickInterval: members.tick, ElectionTimeout: members.election, MaxClockError: clockError, Version: version, Logger: log,
			})
		},
	}
	members.add(command, 7000)
	logs.add(command)
	flags := command.Flags()
	flags.Uint32Var(&id, "shard", 0, "id of the shard, from 1")
	flags.StringVar(&advertise, "advertise", "", "address under which others reach this replica (default: its entry in --peers)")
	flags.StringSliceVar(&oracles, "oracle", nil, "addresses of the oracle's replicas")
	flags.DurationVar(&clockError, "max-clock-error", 0, "bound on the difference of the replicas' clocks; with it leaders answer reads under a lease")
	return command
}
