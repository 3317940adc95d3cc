// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/kolocate/kolocate/services/replica/transport"
)

// Host runs one replica: it owns its goroutines, its files and its connections. All methods may be
// called concurrently, but Read, Run, ProposeWait, TransferLeadership and Stop not from the apply
// goroutine, for which they wait.
//
// Three goroutines do the work. The Raft goroutine owns the Node: it takes in what waits in the inbox,
// makes it durable with one sync and passes on what is committed. The apply goroutine drives the state
// machine. The watchdog sees when the disk does not answer. Beside them each peer has a sender.
type Host struct {
	cfg       Config
	node      *Node
	transport *transport.Transport
	metrics   *metrics
	inbox     *inbox
	queue     *workQueue
	sole      bool

	// began is the zero of the monotonic time given to the node.
	began time.Time
	// syncBegan is when the sync under way began, in nanoseconds since began; 0 when there is none.
	syncBegan atomic.Int64
	applied   atomic.Uint64

	mu       sync.Mutex
	view     View
	position uint64
	walBytes int64
	// changed is closed and made anew whenever the view changes.
	changed chan struct{}
	err     error

	// stop is closed to end the goroutines, done when the replica has stopped or failed.
	stop, done         chan struct{}
	stopOnce, doneOnce sync.Once
	// closeOnce guards the closing of the files after the goroutines have ended.
	closeOnce sync.Once
	closeErr  error
	raftDone  chan struct{}
	wg        sync.WaitGroup

	snapshotting atomic.Bool
	// restoring is the index of the last snapshot passed to the apply goroutine to be restored.
	restoring atomic.Uint64
	// unreachable says of each peer that its reports wait in the inbox already.
	unreachable map[uint64]*atomic.Bool
}

// diskStall is how long a sync may take before the replica gives up: long enough for a slow disk to
// recover, in which time the other members have long elected another leader.
const diskStall = 20 * time.Second

// Open recovers the replica from cfg.Dir, or founds it if the directory is empty, and starts it.
// Errors name the file and what to do. Ctx bounds the opening only.
func Open(ctx context.Context, cfg Config) (*Host, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("open replica %d of %q: %w", cfg.ID, cfg.Group, err)
	}
	cfg.Logger = cfg.Logger.With("group", cfg.Group, "replica", cfg.ID)
	h := &Host{
		cfg: cfg, inbox: newInbox(cfg.MaxPendingProposals, cfg.MaxPendingBytes), queue: newWorkQueue(cfg.MaxPendingProposals),
		began: time.Now(), changed: make(chan struct{}), sole: len(cfg.Peers) == 1,
		stop: make(chan struct{}), done: make(chan struct{}), raftDone: make(chan struct{}),
	}
	h.unreachable = make(map[uint64]*atomic.Bool, len(cfg.Peers))
	for id := range cfg.Peers {
		h.unreachable[id] = &atomic.Bool{}
	}
	if h.metrics, err = newMetrics(cfg.Group, cfg.Registerer, func() float64 { return float64(h.inbox.length()) }); err != nil {
		return nil, err
	}
	if err := h.start(); err != nil { //nolint:contextcheck // what it starts outlives ctx, until Stop
		h.metrics.unregister()
		return nil, err
	}
	return h, nil
}

// start opens the node, restores the state machine and starts the goroutines.
func (h *Host) start() error {
	node, err := OpenNode(NodeConfig{
		Group: h.cfg.Group, ID: h.cfg.ID, Members: h.cfg.members(), FS: h.cfg.FS, Dir: h.cfg.Dir,
		ElectionTicks: h.cfg.electionTicks(), TickInterval: h.cfg.TickInterval, MaxClockError: h.cfg.MaxClockError,
		KeepLogBytes: h.cfg.KeepLogBytes, Seed: h.cfg.Seed, OnSync: h.observeSync, Logger: h.cfg.Logger,
	})
	if err != nil {
		return err
	}
	h.node = node
	if p := node.Snapshot(); p.Index > 0 {
		if err := h.restore(p); err != nil {
			return errors.Join(err, node.Close())
		}
	}
	h.transport, err = transport.New(transport.Config{
		Group: h.cfg.Group, ID: h.cfg.ID, Peers: h.cfg.Peers, Handler: (*peerHandler)(h),
		DialOptions: h.cfg.DialOptions, Logger: h.cfg.Logger,
	})
	if err != nil {
		return errors.Join(err, node.Close())
	}
	h.wg.Go(h.raftLoop)
	h.wg.Go(h.applyLoop)
	h.wg.Go(h.watchDisk)
	return nil
}

// Propose enqueues data to be appended to the group's log and returns at once. The result is seen
// through StateMachine.Apply; if leadership is lost before, Config.OnLeadership says so. The data
// belongs to the host from then on. Errors: ErrNotLeader (also before this replica's leadership has
// been announced by OnLeadership), ErrQueueFull, ErrTooLarge, ErrStopped.
func (h *Host) Propose(data []byte) error {
	if len(data) == 0 || len(data) > MaxProposalBytes {
		return ErrTooLarge
	}
	return h.inbox.propose(proposal{data: data})
}

// ProposeWait proposes data and returns when it has been applied here. Errors are those of Propose,
// ErrLeadershipLost, and that of ctx; after the last two it may still be applied.
func (h *Host) ProposeWait(ctx context.Context, data []byte) error {
	if len(data) == 0 || len(data) > MaxProposalBytes {
		return ErrTooLarge
	}
	w := &waiter{done: make(chan error, 1)}
	if err := h.inbox.propose(proposal{data: data, waiter: w}); err != nil {
		return err
	}
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("wait until a proposal of %d bytes is applied: %w", len(data), ctx.Err())
	case <-h.done:
		select {
		case err := <-w.done:
			return err
		default:
			return ErrLeadershipLost
		}
	}
}

// Read runs fn on the apply goroutine when everything is applied that was committed before the call.
// Reads waiting at the same time share one round to a quorum, or none while a lease holds. If an error
// is returned, fn was not run and will not be. Errors: ErrNotLeader, ErrQueueFull, ErrStopped, that of ctx.
func (h *Host) Read(ctx context.Context, fn func()) error {
	r := newPendingRead(fn)
	if h.sole {
		// What was acknowledged is applied already: nobody else can have committed anything.
		if _, ok := h.inbox.canLead(); !ok {
			return h.whyNotLeader()
		}
		if err := h.queue.run(r, boundReads); err != nil {
			return err
		}
		return h.await(ctx, r)
	}
	if err := h.inbox.read(r); err != nil {
		return err
	}
	return h.await(ctx, r)
}

// whyNotLeader tells a stopped replica from a follower.
func (h *Host) whyNotLeader() error {
	select {
	case <-h.stop:
		return ErrStopped
	default:
		return ErrNotLeader
	}
}

// Run runs fn on the apply goroutine and returns when it is done. What fn sees may be stale. If an
// error is returned, fn was not run. Errors: ErrQueueFull, ErrStopped.
func (h *Host) Run(fn func()) error {
	r := newPendingRead(fn)
	if err := h.queue.run(r, boundRuns); err != nil {
		return err
	}
	return h.await(context.Background(), r)
}

// await waits until the function has run, or takes it back.
func (h *Host) await(ctx context.Context, r *pendingRead) error {
	var why error
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		why = fmt.Errorf("wait for a read: %w", ctx.Err())
	case <-h.done:
		why = ErrStopped
	}
	if r.state.CompareAndSwap(readWaits, readGivenUp) {
		return why
	}
	// It runs at this moment, or was refused.
	return <-r.done
}

// Status returns the replica's present status. It never blocks on the disk or on Apply.
func (h *Host) Status() Status {
	_, leads := h.inbox.canLead()
	h.mu.Lock()
	defer h.mu.Unlock()
	return Status{
		Leadership:    Leadership{Leader: leads, Term: h.view.Term, LeaderID: h.view.Lead},
		Applied:       h.applied.Load(),
		Committed:     h.view.Commit,
		WALBytes:      h.walBytes,
		SnapshotIndex: h.position,
	}
}

// RegisterOn registers the service by which the other members reach this one (kolocate.replica.v1.Replica).
// The server must have been made with ServerOptions.
func (h *Host) RegisterOn(s grpc.ServiceRegistrar) { h.transport.Register(s) }

// Done is closed when the replica has stopped, by Stop or by a fatal failure.
func (h *Host) Done() <-chan struct{} { return h.done }

// Err returns the fatal failure (full disk, corrupt log, an error of the state machine) that stopped
// the replica, nil while it runs and after Stop. The process should exit with this message.
func (h *Host) Err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// fail ends the replica with its first failure.
func (h *Host) fail(err error) {
	h.mu.Lock()
	if h.err != nil {
		h.mu.Unlock()
		return
	}
	h.err = err
	h.mu.Unlock()
	h.cfg.Logger.Error("the replica failed and stops", "error", err)
	h.beginStop()
	h.doneOnce.Do(func() { close(h.done) })
}

// beginStop tells the goroutines to end. Nothing is taken in any more, even if the Raft goroutine hangs.
func (h *Host) beginStop() {
	h.stopOnce.Do(func() {
		close(h.stop)
		h.inbox.refuse()
	})
}

// now is the monotonic time given to the node.
func (h *Host) now() time.Duration { return time.Since(h.began) }
