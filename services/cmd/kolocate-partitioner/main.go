// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kolocate-partitioner turns a workload graph into a plan with KaHIP. It
// runs as a Kubernetes Job, or as a child process of the oracle in local mode.
// This package only joins flags, the library and the job.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/kolocate/kolocate/services/partitioner/job"
	"github.com/kolocate/kolocate/services/partitioner/kahip"
)

// version is set when the program is linked.
var version = "development"

func main() {
	os.Exit(run())
}

// run returns the exit status: 0 done, 1 failed, 2 called wrongly.
func run() int {
	config, err := job.Parse(os.Args[1:], os.Stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(os.Stderr, "kolocate-partitioner:", err)
		return 2
	case config.Version:
		fmt.Println("kolocate-partitioner", version, "with", kahip.Partitioner{}.Name())
		return 0
	}
	// The library cannot be interrupted: when the context ends, the exit of the
	// program ends it.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := job.Run(ctx, config, kahip.Partitioner{}, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "kolocate-partitioner:", err)
		return 1
	}
	return 0
}
