// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kolocate is every program of the store but the partitioner: shard,
// oracle, operator, the local demo, and the command line of its users.
// This package only reads flags and wires packages together.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set when the program is linked.
var version = "development"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newRoot().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kolocate:", err)
		os.Exit(1)
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "kolocate",
		Short:         "A key-value store that places together what is used together",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddGroup(&cobra.Group{ID: groupUse, Title: "Use a store:"}, &cobra.Group{ID: groupRun, Title: "Run its parts:"})
	root.AddCommand(
		newKV(), newStatus(), newPlacement(), newRebalance(), newDemo(), newLoad(),
		newShard(), newOracle(), newOperator(),
	)
	return root
}

// The groups of commands in the help text.
const (
	groupUse = "use"
	groupRun = "run"
)

// logFlags chooses how a server logs.
type logFlags struct {
	level  string
	format string
}

func (f *logFlags) add(command *cobra.Command) {
	command.Flags().StringVar(&f.level, "log-level", "info", "debug, info, warn or error")
	command.Flags().StringVar(&f.format, "log-format", "text", "text or json")
}

func (f *logFlags) logger() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.level)); err != nil {
		return nil, fmt.Errorf("read --log-level %q: expected debug, info, warn or error", f.level)
	}
	options := &slog.HandlerOptions{Level: level}
	switch f.format {
	case "text":
		return slog.New(slog.NewTextHandler(os.Stderr, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(os.Stderr, options)), nil
	default:
		return nil, fmt.Errorf("read --log-format %q: expected text or json", f.format)
	}
}
