// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	planv1 "github.com/kolocate/kolocate/api/proto/plan/v1"
	"github.com/kolocate/kolocate/services/keyspace"
	"github.com/kolocate/kolocate/services/oracle/graph"
)

func newRebalance() *cobra.Command {
	var connect connectFlags
	command := &cobra.Command{
		Use:     "rebalance",
		Short:   "List, start, approve, pause, resume and stop rebalances, and show their plans",
		GroupID: groupUse,
	}
	connect.add(command)
	command.AddCommand(
		listRebalances(&connect), createRebalance(&connect), showRebalance(&connect),
		controlRebalance(&connect, "approve", "Approve the plan", oraclev1.RebalanceAction_REBALANCE_ACTION_APPROVE),
		controlRebalance(&connect, "pause", "Start no further handoff", oraclev1.RebalanceAction_REBALANCE_ACTION_PAUSE),
		controlRebalance(&connect, "resume", "Go on after a pause", oraclev1.RebalanceAction_REBALANCE_ACTION_RESUME),
		controlRebalance(&connect, "stop", "End it; what was moved stays", oraclev1.RebalanceAction_REBALANCE_ACTION_STOP),
	)
	return command
}

func listRebalances(connect *connectFlags) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List rebalances, oldest first", Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return connect.withOracle(command.Context(), func(ctx context.Context, conn *grpc.ClientConn) error {
				list, err := oraclev1.NewAdminClient(conn).ListRebalances(ctx, &oraclev1.ListRebalancesRequest{})
				if err != nil {
					return err
				}
				if connect.output == "json" {
					return printJSON(command.OutOrStdout(), list)
				}
				t := tabwriter.NewWriter(command.OutOrStdout(), 0, 4, 2, ' ', 0)
				fmt.Fprintln(t, "NAME\tSTATE")
				for _, r := range list.GetRebalances() {
					fmt.Fprintf(t, "%s\t%s\n", r.GetName(), summary(r))
				}
				return t.Flush()
			})
		},
	}
}

func createRebalance(connect *connectFlags) *cobra.Command {
	request := &oraclev1.CreateRebalanceRequest{Reason: "asked for on the command line"}
	command := &cobra.Command{
		Use: "create NAME", Short: "Watch the load, plan and move", Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, names []string) error {
			request.Name = names[0]
			return connect.withOracle(command.Context(), func(ctx context.Context, conn *grpc.ClientConn) error {
				r, err := oraclev1.NewAdminClient(conn).CreateRebalance(ctx, request)
				return connect.print(command.OutOrStdout(), r, err)
			})
		},
	}
	command.Flags().StringVar(&request.Approval, "approval", "", "Automatic or Manual (default: the store's policy)")
	command.Flags().Float64Var(&request.TraceSeconds, "window", 0, "seconds to watch (default: the store's policy)")
	return command
}

func controlRebalance(connect *connectFlags, use, short string, action oraclev1.RebalanceAction) *cobra.Command {
	return &cobra.Command{
		Use: use + " NAME", Short: short, Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, names []string) error {
			return connect.withOracle(command.Context(), func(ctx context.Context, conn *grpc.ClientConn) error {
				r, err := oraclev1.NewAdminClient(conn).ControlRebalance(ctx, &oraclev1.ControlRebalanceRequest{Name: names[0], Action: action})
				return connect.print(command.OutOrStdout(), r, err)
			})
		},
	}
}

func (f *connectFlags) print(w io.Writer, r *oraclev1.Rebalance, err error) error {
	if err != nil {
		return err
	}
	if f.output == "json" {
		return printJSON(w, r)
	}
	_, err = fmt.Fprintf(w, "%s: %s\n", r.GetName(), summary(r))
	return err
}

func showRebalance(connect *connectFlags) *cobra.Command {
	return &cobra.Command{
		Use: "show NAME", Short: "Show a rebalance and its plan with reasons", Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, names []string) error {
			return connect.withOracle(command.Context(), func(ctx context.Context, conn *grpc.ClientConn) error {
				admin := oraclev1.NewAdminClient(conn)
				r, err := admin.GetRebalance(ctx, &oraclev1.GetRebalanceRequest{Name: names[0]})
				if err != nil {
					return err
				}
				if r.GetPrediction() == nil {
					return connect.print(command.OutOrStdout(), r, nil)
				}
				plan, err := fetchPlan(ctx, admin, names[0])
				if err != nil {
					return err
				}
				if connect.output == "json" {
					return printJSON(command.OutOrStdout(), plan)
				}
				return printPlan(command.OutOrStdout(), r, plan)
			})
		},
	}
}

func fetchPlan(ctx context.Context, admin oraclev1.AdminClient, name string) (*planv1.Plan, error) {
	stream, err := admin.GetPlan(ctx, &oraclev1.GetPlanRequest{Rebalance: name})
	if err != nil {
		return nil, err
	}
	var joiner graph.Joiner
	for last := false; !last; {
		chunk, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		last = chunk.GetLast()
		if err := joiner.Add(graph.Chunk{Data: chunk.GetData(), Checksum: chunk.GetChecksum(), Last: last}); err != nil {
			return nil, err
		}
	}
	data, err := joiner.Bytes()
	if err != nil {
		return nil, err
	}
	return graph.DecodePlan(data, "")
}

func printPlan(w io.Writer, r *oraclev1.Rebalance, plan *planv1.Plan) error {
	p := plan.GetPrediction()
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintf(t, "%s: %s\n\n", r.GetName(), summary(r))
	fmt.Fprintf(t, "made by\t%s in %.2f s from %d vertices and %d edges\n", plan.GetPartitioner(), plan.GetPartitionSeconds(), plan.GetGraphVertices(), plan.GetGraphEdges())
	fmt.Fprintf(t, "multi-shard commands\t%.1f %% -> %.1f %% predicted", 100*p.GetMpoShareBefore(), 100*p.GetMpoShareAfter())
	if r.GetAfter() != nil {
		fmt.Fprintf(t, ", %.1f %% measured", 100*r.GetAfter().GetMpoShare())
	}
	fmt.Fprintf(t, "\nimbalance\t%.1f %% -> %.1f %%\n", 100*p.GetImbalanceBefore(), 100*p.GetImbalanceAfter())
	fmt.Fprintf(t, "moves\t%d vertices, %d bytes, %d overrides afterwards\n", p.GetMovedVertices(), p.GetMovedBytes(), p.GetOverridesAfter())
	fmt.Fprintf(t, "\nSTEP\tFROM\tTO\tVERTICES\tSLOTS\tBYTES\tREASON\n")
	for _, s := range plan.GetSteps() {
		fmt.Fprintf(t, "%d\t%s\t%s\t%d\t%d\t%d\t%s\n", s.GetNumber(), keyspace.ShardID(s.GetFrom()), keyspace.ShardID(s.GetTo()),
			len(s.GetVertices()), len(s.GetSlots()), s.GetBytes(), s.GetReason())
	}
	for i, rejected := range plan.GetRejected() {
		if i == 0 {
			fmt.Fprintf(t, "\nNOT TAKEN\tBECAUSE\n")
		}
		fmt.Fprintf(t, "%s\t%s\n", rejected.GetAlternative(), rejected.GetReason())
	}
	return t.Flush()
}
