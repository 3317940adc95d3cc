// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"testing"

	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
)

// TestRandom runs shards and clients under faults, lets the faults stop, and
// checks that all ends and that clients saw a strictly serializable store in
// which each update ran exactly once. KOLOCATE_SEEDS and KOLOCATE_FIRST_SEED
// choose other seeds.
func TestRandom(t *testing.T) {
	first, count := envNumber(t, "KOLOCATE_FIRST_SEED", 0), envNumber(t, "KOLOCATE_SEEDS", 300)
	failed := 0
	for seed := first; seed < first+count && failed < 5; seed++ {
		if err := runWorld(seed); err != nil {
			failed++
			t.Errorf("seed %d: %v\nto run it alone: KOLOCATE_FIRST_SEED=%d KOLOCATE_SEEDS=1 go test -run TestRandom ./services/shard/core", seed, err, seed)
		}
	}
}

// trace prints each entry as it is applied, with KOLOCATE_TRACE=1.
func (n *node) trace(e *shardv1.Entry) {
	if os.Getenv("KOLOCATE_TRACE") != "" {
		fmt.Printf("%v #%d clock=%d term=%d: %v\n", n.id, n.index, n.core.clock, n.term, e)
	}
}

func envNumber(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text, set := os.LookupEnv(name)
	if !set {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s=%q: expected a number", name, text)
	}
	return n
}

func runWorld(seed uint64) (err error) {
	w := newWorld(seed)
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	for steps := 0; w.err == nil && (w.todo > 0 || w.moves > 0) && steps < 20000; steps++ {
		w.step()
		if steps%100 == 0 {
			w.checkNow()
		}
	}
	w.calm, w.faults = true, faults{}
	for steps := 0; w.err == nil && !w.ended(); steps++ {
		if steps > 60000 {
			return fmt.Errorf("faults have stopped, but not all ends: %s", w.left())
		}
		w.step()
		if steps%400 == 0 {
			w.checkNow()
		}
	}
	w.checkNow()
	if w.err != nil {
		return w.err
	}
	return w.check()
}

// checkNow checks what must hold at any moment.
func (w *world) checkNow() {
	for _, n := range w.nodes {
		if err := n.core.CheckInvariants(); err != nil {
			w.fail("%v", err)
		}
		if a, b := n.core.StateHash(), n.twin.StateHash(); a != b {
			w.fail("%v: two replicas at entry %d have the state hashes %x and %x", n.id, n.index, a, b)
		}
	}
	for _, v := range w.vertices {
		owners := 0
		for _, n := range w.nodes {
			if owned, _, _ := n.core.Owns(v); owned {
				owners++
			}
		}
		if owners > 1 {
			w.fail("vertex %q is served by %d shards", v, owners)
		}
	}
}

func (w *world) ended() bool {
	for _, c := range w.clients {
		if c.op != nil {
			return false
		}
	}
	if w.todo > 0 {
		return false
	}
	for _, n := range w.nodes {
		if len(n.core.pending) > 0 || len(n.core.sources) > 0 || len(n.core.stagings) > 0 || len(n.core.sweeps) > 0 || n.core.queues.live > 0 {
			return false
		}
	}
	return true
}

func (w *world) left() string {
	s := fmt.Sprintf("%d to do;", w.todo)
	for _, c := range w.clients {
		if c.op != nil {
			s += fmt.Sprintf(" operation %d of client %d (%d outstanding)", c.op.number, c.id, c.op.outstanding)
			for _, n := range w.nodes {
				class := n.core.Classify(c.op.command, believes{w}, w.shards, false)
				s += fmt.Sprintf(" %v classes it %d to %v with hints %v;", n.id, class.Class, class.Target, class.Hints)
			}
		}
	}
	for _, n := range w.nodes {
		s += fmt.Sprintf(" %v:", n.id)
		for _, a := range n.core.pendingSorted() {
			s += fmt.Sprintf(" attempt %v %v", a.key, a.phase)
		}
		for _, o := range n.core.sources {
			s += fmt.Sprintf(" handoff %d out in phase %d drained %v", o.handoff.Id, o.phase, o.drained)
		}
		for _, in := range n.core.stagings {
			s += fmt.Sprintf(" handoff %d in at %d/%d", in.handoff.Id, in.attempt, in.next)
		}
		s += fmt.Sprintf(" %d sweeps, %d units;", len(n.core.sweeps), n.core.queues.live)
	}
	return s
}

// describe tells of some operations, for a failure's text.
func (w *world) describe(numbers []int) string {
	s := ""
	for _, n := range numbers {
		op := w.ops[n-1]
		s += fmt.Sprintf("\n  %d: called %d returned %d: %v => %v", n, op.called, op.returned, op.command, op.result)
	}
	return s
}
