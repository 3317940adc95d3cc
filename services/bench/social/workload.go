// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package social

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// Store is what the workload needs of a client; *client.Client is one. Do must
// make an update exactly once.
type Store interface {
	Do(ctx context.Context, command *kvv1.Command) (*kvv1.Reply, error)
}

// Config of a Workload. Graph and Store must be set; another zero field takes
// its default. The timelines of a store belong to one Workload at a time.
type Config struct {
	Graph *Graph
	Store Store
	// Workers is the number of commands under way; default 64.
	Workers int
	// PostShare is the share of posts among the commands; default 0.15.
	PostShare float64
	// AuditShare is the share of posts during which their timelines are read at
	// one instant, to see the post in all or in none; default 0.002. Negative: none.
	AuditShare float64
	// Timeout bounds each command; default 10 s.
	Timeout time.Duration
	// Seed makes each worker choose the same users again.
	Seed uint64
}

const (
	defaultWorkers    = 64
	defaultPostShare  = 0.15
	defaultAuditShare = 0.002
	defaultTimeout    = 10 * time.Second
)

// Workload reads timelines and writes posts, and checks every reply against its
// model. Phase, Phases, Live and Totals may be called while Run runs; Load, Run
// and Verify one after the other.
type Workload struct {
	config   Config
	model    *model
	recorder *recorder
	totals   struct{ posts, stale, torn, damaged, unjudged atomic.Uint64 }
}

// Totals count over the life of a Workload.
type Totals struct {
	// Posts that were acknowledged.
	Posts uint64
	// StaleReads returned an older post than one acknowledged, or seen, before they began.
	StaleReads uint64
	// Torn audits saw a post in one timeline and not in another.
	Torn uint64
	// Damaged values were not what any post wrote.
	Damaged uint64
	// Unjudged places had changed too often, or had too many posts of unknown outcome, to be judged.
	Unjudged uint64
}

// New checks the configuration.
func New(config Config) (*Workload, error) {
	config.Workers = cmp.Or(config.Workers, defaultWorkers)
	config.PostShare = cmp.Or(config.PostShare, defaultPostShare)
	config.AuditShare = cmp.Or(config.AuditShare, defaultAuditShare)
	config.Timeout = cmp.Or(config.Timeout, defaultTimeout)
	switch {
	case config.Graph == nil || config.Store == nil:
		return nil, errors.New("start social workload: it needs a graph and a store")
	case config.Workers < 1:
		return nil, fmt.Errorf("start social workload: %d workers, expected 1 or more", config.Workers)
	case config.PostShare < 0 || config.PostShare > 1:
		return nil, fmt.Errorf("start social workload: a share of posts of %v, expected 0 to 1", config.PostShare)
	case config.Timeout < 0:
		return nil, fmt.Errorf("start social workload: a timeout of %v, expected more than 0", config.Timeout)
	}
	return &Workload{config: config, model: newModel(config.Graph.Users()), recorder: newRecorder()}, nil
}

// Load fills every timeline with a first post of its user's own, in one
// single-vertex command for each user. It stops at the first error.
func (w *Workload) Load(ctx context.Context) error {
	return w.forAllUsers(ctx, func(ctx context.Context, user int) error {
		all := make([]uint32, TimelinePosts)
		for i := range all {
			all[i] = uint32(user) //nolint:gosec // bounded by the graph
		}
		if _, err := w.write(ctx, uint32(user), all); err != nil { //nolint:gosec // bounded by the graph
			return fmt.Errorf("load timeline of user %d: %w", w.config.Graph.Name(user), err)
		}
		return nil
	})
}

// Run keeps all workers busy until ctx ends, then waits for the commands that
// are under way.
func (w *Workload) Run(ctx context.Context) {
	var workers sync.WaitGroup
	for worker := range w.config.Workers {
		workers.Go(func() {
			random := rand.New(rand.NewPCG(w.config.Seed, uint64(worker))) //nolint:gosec // never negative
			for ctx.Err() == nil {
				// What was begun is finished, so that its outcome is known.
				w.step(context.WithoutCancel(ctx), random)
			}
		})
	}
	workers.Wait()
}

// kind of a command.
type kind uint8

const (
	kindRead kind = iota
	kindPost
)

// String returns its name.
func (k kind) String() string {
	if k == kindPost {
		return "post"
	}
	return "timeline read"
}

func (w *Workload) step(ctx context.Context, random *rand.Rand) {
	ctx, cancel := context.WithTimeout(ctx, w.config.Timeout)
	defer cancel()
	user := random.IntN(w.config.Graph.Users())
	began := time.Now()
	if random.Float64() >= w.config.PostShare {
		reply, err := w.read(ctx, user)
		w.recorder.add(kindRead, time.Since(began), reply.GetMultiShard(), err)
		return
	}
	poster := uint32(user) //nolint:gosec // bounded by the graph
	reached := w.reach(user)
	if random.Float64() < w.config.AuditShare {
		w.audited(ctx, poster, reached)
		return
	}
	reply, err := w.write(ctx, poster, reached)
	w.recorder.add(kindPost, time.Since(began), reply.GetMultiShard(), err)
}

// reach returns the user and all friends, as many as one command may declare.
func (w *Workload) reach(user int) []uint32 {
	friends := w.config.Graph.Friends(user)
	reached := make([]uint32, 0, len(friends)+1)
	reached = append(reached, uint32(user)) //nolint:gosec // bounded by the graph
	return append(reached, friends[:min(len(friends), keyspace.MaxCommandKeys-1)]...)
}

func (w *Workload) write(ctx context.Context, poster uint32, reached []uint32) (*kvv1.Reply, error) {
	number, targets := w.model.begin(reached)
	return w.send(ctx, number, poster, targets)
}

// send writes a post that the model knows to all its places, atomically.
func (w *Workload) send(ctx context.Context, number uint64, poster uint32, targets []target) (*kvv1.Reply, error) {
	value := encodePost(number, poster)
	command := &kvv1.Command{Keys: w.keysOf(targets), ThenOps: make([]*kvv1.Op, len(targets))}
	for i := range targets {
		command.ThenOps[i] = &kvv1.Op{Key: uint32(i), Kind: kvv1.OpKind_OP_KIND_PUT, Value: value}
	}
	reply, err := w.config.Store.Do(ctx, command)
	if err != nil {
		return nil, err
	}
	w.model.acknowledged(number, targets)
	w.totals.posts.Add(1)
	return reply, nil
}

func (w *Workload) keysOf(targets []target) [][]byte {
	keys := make([][]byte, len(targets))
	for i, at := range targets {
		keys[i] = ringKey(w.config.Graph.Name(int(at.user)), at.place)
	}
	return keys
}

// Phase ends the phase that is being recorded and starts the one of this name;
// an empty name only ends.
func (w *Workload) Phase(name string) { w.recorder.begin(name) }

// Phases returns the measures of all phases in their order, the open one too.
func (w *Workload) Phases() []Measures { return w.recorder.all() }

// Live returns the measures since the last call of Live.
func (w *Workload) Live() Measures { return w.recorder.takeLive() }

// Errors returns the texts of the first errors.
func (w *Workload) Errors() []string { return w.recorder.firstErrors() }

// Totals returns the counts so far.
func (w *Workload) Totals() Totals {
	t := &w.totals
	return Totals{
		Posts: t.posts.Load(), StaleReads: t.stale.Load(), Torn: t.torn.Load(),
		Damaged: t.damaged.Load(), Unjudged: t.unjudged.Load(),
	}
}

// forAllUsers calls f for every user from all workers; the first error ends it.
func (w *Workload) forAllUsers(ctx context.Context, f func(ctx context.Context, user int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range w.config.Workers {
		workers.Go(func() {
			for ctx.Err() == nil {
				user := int(next.Add(1)) - 1
				if user >= w.config.Graph.Users() {
					return
				}
				if err := w.bounded(ctx, user, f); err != nil {
					cancel(err)
				}
			}
		})
	}
	workers.Wait()
	return context.Cause(ctx)
}

func (w *Workload) bounded(ctx context.Context, user int, f func(ctx context.Context, user int) error) error {
	ctx, cancel := context.WithTimeout(ctx, w.config.Timeout)
	defer cancel()
	return f(ctx, user)
}
