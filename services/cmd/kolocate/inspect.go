// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/services/keyspace/wire"
	"github.com/kolocate/kolocate/services/oracle/directory"

	"github.com/kolocate/kolocate/services/keyspace"
)

// defaultAddress is where `kolocate demo --keep` and a port-forward serve.
const defaultAddress = "127.0.0.1:8080"

// connectFlags say where the store is and how to print.
type connectFlags struct {
	address string
	timeout time.Duration
	output  string
}

func (f *connectFlags) add(command *cobra.Command) {
	flags := command.PersistentFlags()
	flags.StringVarP(&f.address, "address", "a", cmp.Or(os.Getenv("KOLOCATE_ADDRESS"), defaultAddress), "Envoy's address (or the oracle's); also by KOLOCATE_ADDRESS")
	flags.DurationVar(&f.timeout, "timeout", 10*time.Second, "how long a call may take")
	flags.StringVarP(&f.output, "output", "o", "text", "text or json")
}

// withOracle runs fn with a connection that reaches the oracle.
func (f *connectFlags) withOracle(ctx context.Context, fn func(context.Context, *grpc.ClientConn) error) error {
	if f.output != "text" && f.output != "json" {
		return fmt.Errorf("--output %q: expected text or json", f.output)
	}
	conn, err := grpc.NewClient(f.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connect to %s: %w", f.address, err)
	}
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	err = fn(ctx, conn)
	if s, ok := status.FromError(err); ok && err != nil {
		err = fmt.Errorf("ask the oracle at %s: %s (%s)", f.address, s.Message(), s.Code())
	}
	return errors.Join(err, conn.Close())
}

func printJSON(w io.Writer, m proto.Message) error {
	data, err := protojson.MarshalOptions{Multiline: true, EmitUnpopulated: true}.Marshal(m)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, string(data))
	return err
}

func newStatus() *cobra.Command {
	var connect connectFlags
	command := &cobra.Command{
		Use:     "status",
		Short:   "Show the shards, the epoch, the load and the rebalance under way",
		GroupID: groupUse,
		Args:    cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return connect.withOracle(command.Context(), func(ctx context.Context, conn *grpc.ClientConn) error {
				s, err := oraclev1.NewAdminClient(conn).GetStatus(ctx, &oraclev1.GetStatusRequest{})
				if err != nil {
					return err
				}
				if connect.output == "json" {
					return printJSON(command.OutOrStdout(), s)
				}
				return printStatus(command.OutOrStdout(), s)
			})
		},
	}
	connect.add(command)
	return command
}

func printStatus(w io.Writer, s *oraclev1.StoreStatus) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintf(t, "store\t%s\n", s.GetStore())
	fmt.Fprintf(t, "epoch\t%d (Envoy has %d)\n", s.GetEpoch(), s.GetEdgeAcknowledgedEpoch())
	fmt.Fprintf(t, "overrides\t%d\n", s.GetOverrides())
	fmt.Fprintf(t, "commands\t%.0f/s, %.1f %% over several shards, busiest shard %.0f %% above the mean\n",
		s.GetCommandsPerSecond(), 100*s.GetMpoShare(), 100*s.GetImbalance())
	fmt.Fprintf(t, "graph\t%d vertices, %d edges\n", s.GetGraphVertices(), s.GetGraphEdges())
	fmt.Fprintf(t, "rebalance\t%s\n", cmp.Or(s.GetActiveRebalance(), "none under way"))
	if s.GetTrigger() != "" {
		fmt.Fprintf(t, "trigger\t%s\n", s.GetTrigger())
	}
	fmt.Fprintf(t, "\nSHARD\tREADY\tLEADER\tREPLICAS\tKEYS\tBYTES\tSLOTS\tOVERRIDES\tCOMMANDS/S\t\n")
	for _, shard := range s.GetShards() {
		leader := "-"
		for _, r := range shard.GetReplicas() {
			if r.GetLeader() {
				leader = r.GetAddress()
			}
		}
		fmt.Fprintf(t, "%s\t%v\t%s\t%d\t%d\t%d\t%d\t%d\t%.0f\t%s\n", keyspace.ShardID(shard.GetShard()), shard.GetReady(), leader,
			len(shard.GetReplicas()), shard.GetKeys(), shard.GetBytes(), shard.GetSlots(), shard.GetOverridesIn(), shard.GetCommandsPerSecond(), shard.GetMessage())
	}
	return t.Flush()
}

func newPlacement() *cobra.Command {
	var connect connectFlags
	command := &cobra.Command{
		Use:     "placement [KEY...]",
		Short:   "Show where keys live, or the whole map",
		GroupID: groupUse,
		RunE: func(command *cobra.Command, keys []string) error {
			return connect.withOracle(command.Context(), func(ctx context.Context, conn *grpc.ClientConn) error {
				// A placement of 50,000 overrides is a few megabytes.
				response, err := oraclev1.NewPlacementClient(conn).Get(ctx, &oraclev1.GetRequest{}, grpc.MaxCallRecvMsgSize(256<<20))
				if err != nil {
					return err
				}
				if len(keys) > 0 {
					return printKeys(command.OutOrStdout(), connect.output, response, keys)
				}
				if connect.output == "json" {
					return printJSON(command.OutOrStdout(), response)
				}
				return printPlacement(command.OutOrStdout(), response)
			})
		},
	}
	connect.add(command)
	return command
}

func printKeys(w io.Writer, output string, response *oraclev1.GetResponse, keys []string) error {
	p, err := wire.DecodePlacement(response.GetPlacement())
	if err != nil {
		return err
	}
	type place struct {
		Key      string `json:"key"`
		Vertex   string `json:"vertex"`
		Slot     int    `json:"slot"`
		Shard    string `json:"shard"`
		Override bool   `json:"override"`
	}
	places := make([]place, len(keys))
	for i, key := range keys {
		v := keyspace.VertexOf(key)
		_, override := p.Override(v)
		places[i] = place{Key: key, Vertex: string(v), Slot: int(keyspace.SlotOf(v)), Shard: p.ShardOf(v).String(), Override: override}
	}
	if output == "json" {
		return json.NewEncoder(w).Encode(places)
	}
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "KEY\tVERTEX\tSLOT\tSHARD\tBY")
	for _, at := range places {
		by := "slot"
		if at.Override {
			by = "override"
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\n", at.Key, at.Vertex, at.Slot, at.Shard, by)
	}
	return t.Flush()
}

func printPlacement(w io.Writer, response *oraclev1.GetResponse) error {
	p := response.GetPlacement()
	fmt.Fprintf(w, "store %s, epoch %d, %d overrides\n\n", p.GetStore(), p.GetEpoch(), len(p.GetOverrides()))
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "SLOTS\tSHARD")
	for _, run := range p.GetSlots() {
		fmt.Fprintf(t, "%d-%d\t%s\n", run.GetFirst(), run.GetLast(), keyspace.ShardID(run.GetShard()))
	}
	if len(p.GetOverrides()) > 0 {
		fmt.Fprintln(t, "\nVERTEX\tSHARD")
	}
	for _, o := range p.GetOverrides() {
		fmt.Fprintf(t, "%s\t%s\n", o.GetVertex(), keyspace.ShardID(o.GetShard()))
	}
	return t.Flush()
}

// summary is one line about a rebalance.
func summary(r *oraclev1.Rebalance) string {
	parts := []string{directory.PhaseName(r.GetPhase())}
	if r.GetStepsTotal() > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d handoffs", r.GetStepsDone(), r.GetStepsTotal()))
	}
	if r.GetPaused() {
		parts = append(parts, "paused")
	}
	return strings.Join(append(parts, r.GetMessage()), ", ")
}
