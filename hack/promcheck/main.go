// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Command promcheck checks the queries of Grafana dashboards and Prometheus
// rules with Prometheus's own parser, and against a running Prometheus. It never
// changes a file. It is a module of its own because of what the parser needs;
// make verify and the end-to-end test run it.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

const usage = `usage: go run . [flags] PATH...

Checks every query in dashboards (*.json) and rule files (*.yaml); a folder
stands for the files in it. With --url, each query of a panel must also have
given a number in the last --range. Ends with status 1 if a query is bad.

`

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) //nolint:forbidigo // this is main
}

// run gives the exit status: 0 all good, 1 a bad query, 2 called wrongly.
func run(arguments []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("promcheck", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		_, _ = fmt.Fprint(stderr, usage) // nowhere else to say it
		flags.PrintDefaults()
	}
	url := flags.String("url", "", "a running Prometheus, for example http://127.0.0.1:9090; without it queries are only parsed")
	namespace := flags.String("namespace", "default", "namespace of the store to look at")
	store := flags.String("store", "store", "name of the store to look at")
	span := flags.Duration("range", 15*time.Minute, "how far to look back")
	step := flags.Duration("step", 10*time.Second, "distance of the points")
	interval := flags.Duration("interval", time.Minute, "what $__rate_interval stands for: at least four scrapes")
	timeout := flags.Duration("timeout", 2*time.Minute, "bound on the whole check")
	if err := flags.Parse(arguments); err != nil || flags.NArg() == 0 {
		if err == nil {
			flags.Usage()
		}
		return 2
	}
	queries, err := read(flags.Args())
	if err != nil {
		_, _ = fmt.Fprintln(stderr, err) // nowhere else to say it
		return 1
	}
	replace := variables(*namespace, *store, seconds(*interval), seconds(*span))
	if err := check(queries, replace); err != nil {
		_, _ = fmt.Fprintln(stderr, err) // nowhere else to say it
		return 1
	}
	live := 0
	if *url != "" {
		ctx, cancel := context.WithTimeout(context.Background(), *timeout)
		defer cancel()
		s := server{url: *url, span: *span, step: *step, client: &http.Client{}}
		if err := s.check(ctx, queries, replace); err != nil {
			_, _ = fmt.Fprintln(stderr, err) // nowhere else to say it
			return 1
		}
		for _, q := range queries {
			if q.live {
				live++
			}
		}
	}
	_, _ = fmt.Fprintf(stdout, "promcheck: %d queries parse, %d of them gave data\n", len(queries), live)
	return 0
}

// seconds writes a duration as PromQL reads it.
func seconds(d time.Duration) string { return fmt.Sprintf("%ds", int64(d.Seconds())) }
