// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package drive owns a run of the social workload beside a rebalance: it loads
// the network, keeps the load going, notes in which phase of the rebalance each
// command fell, and checks everything at the end.
// It never touches the store but as a client. The demo and the load Job run it.
package drive

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/services/bench/social"
	"github.com/kolocate/kolocate/services/oracle/directory"
)

// The phases of a run, as the workload records them.
const (
	phaseWarm    = "warm-up"
	phaseBefore  = "before"
	phasePlan    = "planning"
	phaseDuring  = "during"
	phaseSettle  = "settling"
	phaseAfter   = "after"
	pollInterval = 100 * time.Millisecond
	// callTimeout bounds one question to the oracle.
	callTimeout = 5 * time.Second
	// settleTime is left out of "after": the clients learn the last epoch in it.
	settleTime = time.Second
)

// Config is one run.
type Config struct {
	Admin    oraclev1.AdminClient
	Workload *social.Workload
	Graph    *social.Graph
	// Rebalance is the name of the rebalance to start after Before, or, where
	// Await is set, the newest that anybody starts.
	Rebalance string
	Await     bool
	// Warm, Before and After are how long the phases last; Trace is how long the
	// shards watch. Limit bounds the whole run.
	Warm, Before, Trace, After, Limit time.Duration
	// Show is told what happens, several times a second.
	Show func(Progress)
	// Failed ends the run with an error when a part of the store fails.
	Failed <-chan error
}

// Progress is what there is to show.
type Progress struct {
	Phase     string
	Live      social.Measures
	Status    *oraclev1.StoreStatus
	Rebalance *oraclev1.Rebalance
}

// Outcome is what a run came to.
type Outcome struct {
	Phases       map[string]social.Measures
	Totals       social.Totals
	Verification social.Verification
	Status       *oraclev1.StoreStatus
	Rebalance    *oraclev1.Rebalance
	Errors       []string
	Graph        *social.Graph
}

// runner is the state of one run.
type runner struct {
	config    Config
	mu        sync.Mutex
	phase     string
	rebalance *oraclev1.Rebalance
	status    *oraclev1.StoreStatus
}

// Run loads the network, runs the phases and verifies. Errors of the workload's
// commands are counted, not returned.
func Run(ctx context.Context, config Config) (*Outcome, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, config.Limit, fmt.Errorf("the run took longer than %v", config.Limit))
	defer cancel()
	r := &runner{config: config, phase: "loading"}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	go func() {
		select {
		case err := <-config.Failed:
			fail(err)
		case <-ctx.Done():
		}
	}()
	var viewer sync.WaitGroup
	viewing, endView := context.WithCancel(ctx)
	viewer.Go(func() { r.view(viewing) })
	outcome, err := r.run(ctx)
	endView()
	viewer.Wait()
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		err = errors.Join(cause, err)
	}
	return outcome, err
}

func (r *runner) run(ctx context.Context) (*Outcome, error) {
	if err := r.ask(ctx); err != nil {
		return nil, err
	}
	if err := r.config.Workload.Load(ctx); err != nil {
		return nil, fmt.Errorf("load the network: %w", err)
	}
	load, endLoad := context.WithCancel(ctx)
	defer endLoad()
	var group sync.WaitGroup
	r.enter(phaseWarm)
	group.Go(func() { r.config.Workload.Run(load) })
	err := r.phases(ctx)
	endLoad()
	group.Wait()
	if err != nil {
		return nil, err
	}
	r.enter("checking")
	verification, err := r.config.Workload.Verify(ctx)
	if err != nil {
		return nil, fmt.Errorf("check all timelines: %w", err)
	}
	if err := r.ask(ctx); err != nil {
		return nil, err
	}
	outcome := &Outcome{
		Phases: map[string]social.Measures{}, Totals: r.config.Workload.Totals(), Verification: verification,
		Status: r.status, Rebalance: r.rebalance, Errors: r.config.Workload.Errors(), Graph: r.config.Graph,
	}
	for _, m := range r.config.Workload.Phases() {
		outcome.Phases[m.Name] = m
	}
	return outcome, nil
}

func (r *runner) enter(phase string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.phase = phase
	r.config.Workload.Phase(phase)
}

// phases leads the load through the rebalance.
func (r *runner) phases(ctx context.Context) error {
	if err := pause(ctx, r.config.Warm); err != nil {
		return err
	}
	r.enter(phaseBefore)
	if err := pause(ctx, r.config.Before); err != nil {
		return err
	}
	if !r.config.Await {
		r.enter(phasePlan)
		if err := r.create(ctx); err != nil {
			return err
		}
	}
	for {
		switch phase := r.newest().GetPhase(); {
		case phase == oraclev1.Phase_PHASE_MIGRATING:
			r.enterOnce(phaseDuring)
		case phase == oraclev1.Phase_PHASE_VERIFYING || phase == oraclev1.Phase_PHASE_SUCCEEDED:
			return r.after(ctx)
		case directory.Ended(phase) && phase != oraclev1.Phase_PHASE_UNSPECIFIED:
			return fmt.Errorf("rebalance %s ended as %s: %s", r.newest().GetName(), directory.PhaseName(phase), r.newest().GetMessage())
		case phase != oraclev1.Phase_PHASE_UNSPECIFIED:
			r.enterOnce(phasePlan)
		}
		if err := pause(ctx, pollInterval/2); err != nil {
			return err
		}
		if err := r.ask(ctx); err != nil && status.Code(err) != codes.Unavailable {
			return err
		}
	}
}

// after measures the new placement until its time is over and the rebalance has ended.
func (r *runner) after(ctx context.Context) error {
	r.enter(phaseSettle)
	if err := pause(ctx, settleTime); err != nil {
		return err
	}
	r.enter(phaseAfter)
	if err := pause(ctx, r.config.After); err != nil {
		return err
	}
	for !directory.Ended(r.newest().GetPhase()) {
		if err := pause(ctx, pollInterval); err != nil {
			return err
		}
		if err := r.ask(ctx); err != nil && status.Code(err) != codes.Unavailable {
			return err
		}
	}
	return nil
}

func (r *runner) enterOnce(phase string) {
	r.mu.Lock()
	same := r.phase == phase
	r.mu.Unlock()
	if !same {
		r.enter(phase)
	}
}

func (r *runner) create(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := r.config.Admin.CreateRebalance(ctx, &oraclev1.CreateRebalanceRequest{
		Name: r.config.Rebalance, Approval: directory.ApprovalAutomatic, TraceSeconds: r.config.Trace.Seconds(), Reason: "asked for by the demo",
	})
	if err != nil {
		return fmt.Errorf("start the rebalance: %w", err)
	}
	return r.ask(ctx)
}

func (r *runner) newest() *oraclev1.Rebalance {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rebalance
}

// ask reads the newest rebalance and the store's status from the oracle.
func (r *runner) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := r.config.Admin.ListRebalances(ctx, &oraclev1.ListRebalancesRequest{})
	if err != nil {
		return fmt.Errorf("ask for the rebalance: %w", err)
	}
	store, err := r.config.Admin.GetStatus(ctx, &oraclev1.GetStatusRequest{})
	if err != nil {
		return fmt.Errorf("ask for the store's status: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status = store
	if all := list.GetRebalances(); len(all) > 0 {
		r.rebalance = all[len(all)-1]
	}
	return nil
}

// view shows the progress until the context ends.
func (r *runner) view(ctx context.Context) {
	ticker := time.NewTicker(time.Second / 2)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		r.mu.Lock()
		p := Progress{Phase: r.phase, Status: r.status, Rebalance: r.rebalance}
		r.mu.Unlock()
		p.Live = r.config.Workload.Live()
		r.config.Show(p)
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
