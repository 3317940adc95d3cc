// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package social

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
)

// seen is what a read found at the places of one timeline; 0 is an absent key.
type seen [TimelinePosts]uint64

// read reads a user's timeline and judges each place.
func (w *Workload) read(ctx context.Context, user int) (*kvv1.Reply, error) {
	start := w.model.now()
	reply, err := w.config.Store.Do(ctx, readCommand(w.config.Graph.Name(user)))
	if err != nil {
		return nil, err
	}
	found, damaged, err := w.entries(user, reply.GetResult())
	if err != nil {
		return nil, err
	}
	w.totals.damaged.Add(damaged)
	if late, unjudged := w.judgeAll(user, found, start); late+unjudged > 0 {
		w.totals.unjudged.Add(unjudged)
		if late > 0 {
			w.totals.stale.Add(1)
		}
	}
	return reply, nil
}

// judgeAll returns how many places of a timeline were stale and unjudged.
func (w *Workload) judgeAll(user int, found seen, start instant) (late, undecided uint64) {
	end := w.model.now()
	for place, number := range found {
		switch w.model.judge(target{uint32(user), place}, number, start, end) { //nolint:gosec // bounded by the graph
		case stale:
			late++
		case unjudged:
			undecided++
		case fine:
		}
	}
	return late, undecided
}

// entries reads the posts out of a scan of one timeline. A post by someone who
// is no friend of the user's is damage too.
func (w *Workload) entries(user int, result *kvv1.Result) (found seen, damaged uint64, _ error) {
	if len(result.GetOps()) != 1 {
		return found, 0, fmt.Errorf("a timeline read was answered with %d results, expected 1", len(result.GetOps()))
	}
	for _, entry := range result.GetOps()[0].GetEntries() {
		number, poster, ok := decodePost(entry.GetValue())
		place := placeOf(entry.GetKey())
		if place < 0 || !ok || number > w.model.number.Load() || !w.follows(user, poster) {
			damaged++
			continue
		}
		found[place] = number
	}
	return found, damaged, nil
}

func (w *Workload) follows(user int, poster uint32) bool {
	_, friend := slices.BinarySearch(w.config.Graph.Friends(user), poster)
	return friend || int(poster) == user
}

// audited posts, and meanwhile reads all its places at one instant: the post
// must be, or have been, in all of them or in none.
func (w *Workload) audited(ctx context.Context, poster uint32, reached []uint32) {
	began := time.Now()
	number, targets := w.model.begin(reached)
	var audit sync.WaitGroup
	audit.Go(func() { w.audit(ctx, number, targets) })
	reply, err := w.send(ctx, number, poster, targets)
	w.recorder.add(kindPost, time.Since(began), reply.GetMultiShard(), err)
	audit.Wait()
}

func (w *Workload) audit(ctx context.Context, post uint64, targets []target) {
	command := &kvv1.Command{Keys: w.keysOf(targets), ThenOps: make([]*kvv1.Op, len(targets))}
	for i := range targets {
		command.ThenOps[i] = &kvv1.Op{Key: uint32(i), Kind: kvv1.OpKind_OP_KIND_GET}
	}
	reply, err := w.config.Store.Do(ctx, command)
	if err != nil || len(reply.GetResult().GetOps()) != len(targets) {
		return // an audit that fails says nothing; the workload's own commands count errors
	}
	numbers := make([]uint64, len(targets))
	present, torn := false, false
	for i, result := range reply.GetResult().GetOps() {
		if number, _, ok := decodePost(result.GetValue()); ok {
			numbers[i] = number
		}
		present = present || numbers[i] == post
	}
	for i, at := range targets {
		torn = torn || (present && w.model.precedes(at, numbers[i], post))
	}
	if torn {
		w.totals.torn.Add(1)
	}
}

// Verification is the result of the full check.
type Verification struct {
	Users, Places int
	// Lost places hold an older post than one that was acknowledged, or none.
	Lost uint64
	// Damaged and Unjudged as in Totals.
	Damaged, Unjudged uint64
}

// Verify reads every timeline and checks that each acknowledged post is there
// or was written over by a later or concurrent one. Run must have ended.
func (w *Workload) Verify(ctx context.Context) (Verification, error) {
	var lost, damaged, undecided atomic.Uint64
	err := w.forAllUsers(ctx, func(ctx context.Context, user int) error {
		start := w.model.now()
		reply, err := w.config.Store.Do(ctx, readCommand(w.config.Graph.Name(user)))
		if err != nil {
			return fmt.Errorf("verify timeline of user %d: %w", w.config.Graph.Name(user), err)
		}
		found, broken, err := w.entries(user, reply.GetResult())
		if err != nil {
			return fmt.Errorf("verify timeline of user %d: %w", w.config.Graph.Name(user), err)
		}
		late, unjudged := w.judgeAll(user, found, start)
		lost.Add(late)
		undecided.Add(unjudged)
		damaged.Add(broken)
		return nil
	})
	users := w.config.Graph.Users()
	return Verification{
		Users: users, Places: users * TimelinePosts,
		Lost: lost.Load(), Damaged: damaged.Load(), Unjudged: undecided.Load(),
	}, err
}
