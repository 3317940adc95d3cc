// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"sync"
	"sync/atomic"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/kolocate/kolocate/services/replica/snapshot"
)

// waiter is someone who waits for a proposal to be applied. Index and term are set by the Raft
// goroutine before the waiter is passed on.
type waiter struct {
	index, term uint64
	done        chan error
}

// pendingRead is a function that waits to be run on the apply goroutine.
type pendingRead struct {
	fn   func()
	done chan error
	// state is claimed by whoever comes first: the apply goroutine to run fn, or the caller to give up.
	state atomic.Int32
}

const (
	readWaits int32 = iota
	readRuns
	readGivenUp
)

// newPendingRead makes a read.
func newPendingRead(fn func()) *pendingRead {
	return &pendingRead{fn: fn, done: make(chan error, 1)}
}

// run runs the function, unless its caller has given up.
func (r *pendingRead) run() {
	if r.state.CompareAndSwap(readWaits, readRuns) {
		r.fn()
		r.done <- nil
	}
}

// refuse ends the wait without running the function.
func (r *pendingRead) refuse(err error) {
	if r.state.CompareAndSwap(readWaits, readGivenUp) {
		r.done <- err
	}
}

// work is one item for the apply goroutine. Its parts are done in the order of the fields.
type work struct {
	restore  snapshot.Position
	entries  []*raftpb.Entry
	bytes    int64
	waiters  []*waiter
	announce *Leadership
	// failed are waiters whose proposals may or may not be applied.
	failed []*waiter
	reads  []*pendingRead
	// readIndex is what must be applied before the reads run.
	readIndex uint64
}

// workQueue passes work to the apply goroutine. Its length is bounded by what fills it: entries by the
// backlog at which the Raft goroutine stops taking in more, the rest by the inbox.
type workQueue struct {
	wake chan struct{}
	// backlog is the bytes of entries not applied yet.
	backlog atomic.Int64

	mu    sync.Mutex
	items []work
	// runs counts the functions in the queue that did not pass the inbox.
	runs, maxRuns int
	closed        bool
}

func newWorkQueue(maxRuns int) *workQueue {
	return &workQueue{wake: make(chan struct{}, 1), maxRuns: maxRuns}
}

func (q *workQueue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// push appends work of the Raft goroutine.
func (q *workQueue) push(w work) {
	q.backlog.Add(w.bytes)
	q.mu.Lock()
	first := len(q.items) == 0
	q.items = append(q.items, w)
	q.mu.Unlock()
	if first {
		q.signal()
	}
}

// run appends a function that needs no point of the log.
func (q *workQueue) run(r *pendingRead, bound string) error {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return ErrStopped
	}
	if q.runs >= q.maxRuns {
		q.mu.Unlock()
		return ErrQueueFull{Bound: bound, Limit: int64(q.maxRuns)}
	}
	first := len(q.items) == 0
	q.runs++
	if last := len(q.items) - 1; last >= 0 && q.items[last].readIndex == 0 && q.items[last].reads != nil {
		q.items[last].reads = append(q.items[last].reads, r)
	} else {
		q.items = append(q.items, work{reads: []*pendingRead{r}})
	}
	q.mu.Unlock()
	if first {
		q.signal()
	}
	return nil
}

// take moves out all items into the slice, which is reused.
func (q *workQueue) take(reuse []work) []work {
	clear(reuse)
	q.mu.Lock()
	defer q.mu.Unlock()
	items := q.items
	q.items = reuse[:0]
	q.runs = 0
	return items
}

// close refuses functions from now on and returns what is left.
func (q *workQueue) close() []work {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	items := q.items
	q.items = nil
	return items
}
