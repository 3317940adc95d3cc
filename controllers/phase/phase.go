// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package phase owns the way a reconcile is written down: a list of named
// phases, each ending in one of four ways with a message. It never talks to
// Kubernetes. The controllers call Run once a reconcile.
package phase

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// End is a way in which a phase ends.
type End int

// Ways to end. All but EndDone end the pass: the phases after it are skipped,
// but for those marked Always.
const (
	// EndDone lets the next phase run.
	EndDone End = iota
	// EndWait ends the pass; a watch starts the next one.
	EndWait
	// EndAfter ends the pass; the next one starts after a time.
	EndAfter
	// EndFail ends the pass with an error; the next one starts after a growing time.
	EndFail
)

// String names the end as Run's table shows it.
func (e End) String() string {
	switch e {
	case EndDone:
		return "done"
	case EndWait:
		return "wait"
	case EndAfter:
		return "after"
	case EndFail:
		return "fail"
	default:
		return fmt.Sprintf("end(%d)", int(e))
	}
}

// Result is how a phase ended.
type Result struct {
	End     End
	Message string
	// Delay until the next pass, with EndAfter.
	Delay time.Duration
	// Err is why, with EndFail.
	Err error
}

// Done says that the phase has nothing left to do.
func Done(format string, args ...any) Result {
	return Result{End: EndDone, Message: fmt.Sprintf(format, args...)}
}

// Wait says that the phase waits for a change that a watch will see.
func Wait(format string, args ...any) Result {
	return Result{End: EndWait, Message: fmt.Sprintf(format, args...)}
}

// After says that the phase waits for something that no watch sees, and looks
// again after delay.
func After(delay time.Duration, format string, args ...any) Result {
	return Result{End: EndAfter, Delay: delay, Message: fmt.Sprintf(format, args...)}
}

// Fail says that the phase met an error. The message is put before err.
func Fail(err error, format string, args ...any) Result {
	message := fmt.Sprintf(format, args...)
	return Result{End: EndFail, Message: message, Err: fmt.Errorf("%s: %w", message, err)}
}

// Phase is one step of a reconcile.
type Phase struct {
	Name string
	Run  func(context.Context) Result
	// Always runs the phase even if an earlier one ended the pass, as for the
	// phase that writes the status.
	Always bool
}

// Run runs the phases in order and gives what controller-runtime wants to know:
// the first end that is not Done decides, and an error of any phase wins over a
// delay. With verbosity 1 it logs a table of the phases and how they ended.
func Run(ctx context.Context, phases ...Phase) (reconcile.Result, error) {
	var (
		out   reconcile.Result
		errs  []error
		ended bool
		table strings.Builder
	)
	for _, p := range phases {
		if ended && !p.Always {
			fmt.Fprintf(&table, "\n  %-12s skipped", p.Name)
			continue
		}
		result := p.Run(ctx)
		fmt.Fprintf(&table, "\n  %-12s %-5s %s", p.Name, result.End, describe(result))
		if result.End != EndDone {
			ended = true
		}
		if result.End == EndAfter && (out.RequeueAfter == 0 || result.Delay < out.RequeueAfter) {
			out.RequeueAfter = result.Delay
		}
		if result.Err != nil {
			errs = append(errs, fmt.Errorf("phase %s: %w", p.Name, result.Err))
		}
	}
	logr.FromContextOrDiscard(ctx).V(1).Info("reconciled" + table.String())
	if err := errors.Join(errs...); err != nil {
		// controller-runtime ignores a delay that comes with an error.
		return reconcile.Result{}, err
	}
	return out, nil
}

func describe(r Result) string {
	switch {
	case r.Err != nil:
		return r.Err.Error()
	case r.End == EndAfter:
		return fmt.Sprintf("%s (again in %s)", r.Message, r.Delay)
	default:
		return r.Message
	}
}
