// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
	"github.com/kolocate/kolocate/services/replica"
	"github.com/kolocate/kolocate/services/shard/core"
	"github.com/kolocate/kolocate/services/shard/serve/follow"
	"github.com/kolocate/kolocate/services/shard/serve/peers"
)

// engine drives the core, and the Leader while this replica leads, and finds for
// each command the way to its answer. It is the replica's state machine: unless
// said otherwise its fields and methods belong to the apply goroutine, which it
// never blocks.
type engine struct {
	config   *Config
	log      *slog.Logger
	host     *replica.Host
	opened   chan struct{} // closed when host is set
	core     *core.Core
	leader   *core.Leader // nil while this replica does not lead
	follower *follow.Follower
	peers    *peers.Links
	metrics  *metrics
	tracer   *tracer
	random   *rand.Rand

	// intake and reads are filled by other goroutines, live is the number of
	// requests under way, and term is read by them.
	intake intake
	reads  readQueue
	live   atomic.Int64
	term   atomic.Pointer[term]
	// draining: the process stops and takes no more commands.
	draining atomic.Bool
	// known is read by the registry's reports.
	known atomic.Pointer[report]
	// heardEpoch is the epoch known everywhere, as the oracle said last.
	heardEpoch atomic.Uint64

	requests   map[uint64]*request
	nextOrigin uint64
	batch      batch
	own        ownEntries
	paused     pausedRequests
	parked     []*request
	guesses    guesses
	dirty      []sink
	at         map[keyspace.Vertex]keyspace.ShardID // scratch of classify
	old        map[uint64]endedHandoff              // ended handoffs that are remembered
	ended      []uint64                             // handoffs of this source that ended and are not counted yet
	lastSweep  time.Time
	lastKeep   time.Time
}

// term is one leadership of this replica.
type term struct {
	leading  bool
	number   uint64
	leaderID uint64
	// ended is closed when the term ends.
	ended chan struct{}
	once  sync.Once
}

func (t *term) end() { t.once.Do(func() { close(t.ended) }) }

func newEngine(config *Config, m *metrics, seed [2]uint64, firstOrigin uint64) *engine {
	e := &engine{
		config: config, log: config.Logger, opened: make(chan struct{}), core: core.New(config.Bounds), metrics: m,
		random:   rand.New(rand.NewPCG(seed[0], seed[1])),
		intake:   intake{wake: make(chan struct{}, 1), maxInbox: config.Limits.MaxInbox},
		reads:    readQueue{wake: make(chan struct{}, 1)},
		requests: map[uint64]*request{}, nextOrigin: firstOrigin,
		at: map[keyspace.Vertex]keyspace.ShardID{},
	}
	e.guesses = guesses{limit: config.Limits.MaxHints, at: map[keyspace.Vertex]keyspace.ShardID{}}
	e.tracer = newTracer(config, seed[0]^seed[1])
	e.term.Store(&term{ended: make(chan struct{})})
	e.known.Store(&report{})
	return e
}

// Apply implements replica.StateMachine.
func (e *engine) Apply(entries []replica.Entry) error {
	now := time.Now()
	for i := range entries {
		entry, err := e.decode(&entries[i])
		if err != nil {
			return err
		}
		effects, err := e.core.Apply(entries[i].Index, entry)
		if err != nil {
			return err
		}
		for k := range effects {
			e.effect(&effects[k], now)
		}
		if e.leader != nil {
			e.leader.Applied(effects, now)
		}
	}
	e.announceGenesis()
	e.finishRound(now)
	return nil
}

// decode returns an entry's content: the very one that was proposed, if it was proposed here.
func (e *engine) decode(entry *replica.Entry) (*shardv1.Entry, error) {
	if own := e.own.pop(entry.Data); own != nil {
		return own, nil
	}
	decoded := &shardv1.Entry{}
	if err := proto.Unmarshal(entry.Data, decoded); err != nil {
		return nil, fmt.Errorf("apply entry %d of %v: it is no valid log entry (%w); restore the data directory from a healthy replica", entry.Index, e.config.Shard, err)
	}
	return decoded, nil
}

func (e *engine) effect(f *core.Effect, now time.Time) {
	switch f.Kind {
	case core.EffectReply:
		if r, ok := e.requests[f.Origin]; ok && r.place == placeLog {
			e.settle(r, f.Reply, now)
		}
	case core.EffectExecuted:
		if e.leader != nil && f.Executed.Coordinator {
			e.tracer.observe(f.Executed.Vertices, f.Executed.BytesWritten)
		}
	case core.EffectHandoff:
		e.handoff(f.Handoff, now)
	default:
		// The Leader acts on the others.
	}
}

// announceGenesis reports at once that the shard knows who it is.
func (e *engine) announceGenesis() {
	if e.core.HasGenesis() == e.known.Load().genesis {
		return
	}
	e.report()
	if e.follower != nil {
		e.follower.Poke()
	}
}

// finishRound proposes and sends what the round gave, and wakes those who wait for replies.
func (e *engine) finishRound(now time.Time) {
	if e.leader != nil {
		e.proposeBatch(now)
		entries, sends := e.leader.Output()
		for _, entry := range entries {
			// A refused entry is made again by the Leader when its time comes.
			if err := e.propose(entry); err != nil {
				e.metrics.refusedProposals.Inc()
				e.refuseBegin(entry, now)
			}
		}
		for i := range sends {
			e.peers.Send(sends[i].To, sends[i].Message)
		}
	}
	for i, s := range e.dirty {
		s.flush()
		e.dirty[i] = nil
	}
	e.dirty = e.dirty[:0]
}

// propose encodes an entry and puts it on its way into the log.
func (e *engine) propose(entry *shardv1.Entry) error {
	data, err := proto.Marshal(entry)
	if err != nil {
		return fmt.Errorf("encode a log entry: %w", err)
	}
	if err := e.host.Propose(data); err != nil {
		return err
	}
	e.own.push(data, entry)
	return nil
}

// refuseBegin tries a multi-shard command again whose Begin did not enter the log.
func (e *engine) refuseBegin(entry *shardv1.Entry, now time.Time) {
	begin := entry.GetBegin()
	if begin == nil || begin.GetPropose().GetAttempt().GetNumber() != 0 {
		return
	}
	if r, ok := e.requests[begin.GetOrigin()]; ok && r.place == placeLog {
		e.settle(r, retryReply("the queue of proposals is full"), now)
	}
}

// Snapshot implements replica.StateMachine.
func (e *engine) Snapshot() (replica.SnapshotWriter, error) { return e.core.Snapshot(), nil }

// Restore implements replica.StateMachine.
func (e *engine) Restore(r io.Reader) error {
	restored, err := core.Restore(e.config.Bounds, r)
	if err != nil {
		return err
	}
	e.core = restored
	return nil
}

// onLeadership is told by the host, in order with Apply, who leads.
func (e *engine) onLeadership(l replica.Leadership) {
	// The host may elect itself before Open has returned it.
	if l.Leader {
		<-e.opened
	}
	now := time.Now()
	before := e.term.Load()
	e.term.Store(&term{leading: l.Leader, number: l.Term, leaderID: l.LeaderID, ended: make(chan struct{})})
	if e.leader != nil {
		e.leader.Close()
		e.leader = nil
		e.endLeadership(now)
	}
	before.end()
	if l.Leader {
		e.log.Info("this replica leads its shard", "term", l.Term)
		e.leader = core.NewLeader(e.core, core.LeaderConfig{Term: l.Term}, now)
		e.core.SetTracing(e.tracer.on())
	} else {
		e.core.SetTracing(false)
	}
	e.report()
	if e.follower != nil {
		e.follower.Poke()
	}
	e.finishRound(now)
}

// endLeadership answers, or takes elsewhere, what was under way: whether what was
// proposed will be applied is unknown now.
func (e *engine) endLeadership(now time.Time) {
	e.log.Info("this replica leads its shard no longer")
	e.own.reset()
	e.batch.reset()
	for _, origin := range slices.Sorted(maps.Keys(e.requests)) {
		r := e.requests[origin]
		switch r.place {
		case placeLog:
			r.uncertain = true
			e.settle(r, unknownReply("leadership of "+e.config.Shard.String()+" was lost before the command was applied"), now)
		case placeParked:
			e.settle(r, retryReply("leadership of "+e.config.Shard.String()+" was lost"), now)
		case placePause, placePeer:
			// The stream that these came by ends now: their clients go to the next leader.
			if r.redirects || r.hops > 0 {
				r.uncertain = r.uncertain || r.place == placePeer
				e.finish(r, unknownReply("leadership of "+e.config.Shard.String()+" was lost"), now)
			}
		default:
		}
	}
	e.parked = e.parked[:0]
}

// takeIn takes in what other goroutines brought.
func (e *engine) takeIn(in *taken, now time.Time) {
	// Before its genesis a shard owns nothing, and its log may hold nothing else.
	if e.leader != nil && e.core.HasGenesis() {
		for _, m := range in.messages {
			e.leader.Receive(m.from, m.message, now)
		}
	}
	for _, a := range in.answers {
		e.forwardAnswered(a, now)
	}
	for _, r := range in.requests {
		if r.place == placeRead {
			e.settle(r, retryReply("a linearizable read could not be had now"), now)
			continue
		}
		e.dispatch(r, now)
	}
}

// runReads runs reads on a state that is fresh enough.
func (e *engine) runReads(batch []*request, now time.Time) {
	for _, r := range batch {
		if r.place == placeDone {
			continue
		}
		reply, ok := e.core.Read(r.command)
		switch {
		case !ok:
			e.propose1(r, now)
		case reply.GetOutcome() == kvv1.Outcome_OUTCOME_OK:
			e.tracer.observe(r.vertices, 0)
			e.finish(r, reply, now)
		case reply.GetOutcome() == kvv1.Outcome_OUTCOME_REJECTED:
			e.finish(r, reply, now)
		default:
			e.classify(r, now)
		}
	}
	e.finishRound(now)
}
