// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/services/oracle/directory"
	"github.com/kolocate/kolocate/services/replica"
)

// machine replicates the directory: it applies committed entries and tells the
// proposers and watchers. It is safe for concurrent use.
type machine struct {
	mu      sync.RWMutex
	dir     *directory.Directory
	changed chan struct{}
	// waiting holds who wants to know what became of an entry, by its origin.
	waiting map[uint64]chan error
}

func newMachine() *machine {
	return &machine{dir: directory.New(), changed: make(chan struct{}), waiting: map[uint64]chan error{}}
}

// Apply implements replica.StateMachine.
func (m *machine) Apply(entries []replica.Entry) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, entry := range entries {
		var e oraclev1.LogEntry
		if err := proto.Unmarshal(entry.Data, &e); err != nil {
			return fmt.Errorf("apply entry %d of the oracle's log: it is no valid entry (%w); restore the data directory from a healthy replica", entry.Index, err)
		}
		outcome := m.dir.Apply(&e)
		if waiter, ok := m.waiting[e.GetOrigin()]; ok {
			waiter <- outcome
			delete(m.waiting, e.GetOrigin())
		}
	}
	m.announce()
	return nil
}

func (m *machine) announce() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// Snapshot implements replica.StateMachine.
func (m *machine) Snapshot() (replica.SnapshotWriter, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return stateWriter{state: m.dir.State()}, nil
}

type stateWriter struct{ state *oraclev1.DirectoryState }

// WriteTo implements io.WriterTo.
func (s stateWriter) WriteTo(w io.Writer) (int64, error) {
	data, err := proto.Marshal(s.state)
	if err != nil {
		return 0, fmt.Errorf("encode the oracle's state: %w", err)
	}
	n, err := w.Write(data)
	return int64(n), err
}

// Close implements replica.SnapshotWriter.
func (s stateWriter) Close() {}

// Restore implements replica.StateMachine.
func (m *machine) Restore(r io.Reader) error {
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	var state oraclev1.DirectoryState
	if err := proto.Unmarshal(data, &state); err != nil {
		return fmt.Errorf("read the oracle's snapshot: %w", err)
	}
	dir, err := directory.FromState(&state)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dir = dir
	m.announce()
	return nil
}

// view runs fn with the directory, which fn must not keep or change.
func (m *machine) view(fn func(*directory.Directory)) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	fn(m.dir)
}

// changes returns a channel that is closed at the next change.
func (m *machine) changes() <-chan struct{} {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.changed
}

// expect registers interest in the outcome of the entry with an origin.
func (m *machine) expect(origin uint64) <-chan error {
	waiter := make(chan error, 1)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting[origin] = waiter
	return waiter
}

func (m *machine) forget(origin uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.waiting, origin)
}

// proposeTimeout bounds how long an entry may take to be applied.
const proposeTimeout = 5 * time.Second

// propose replicates an entry and returns what the directory made of it: nil, a
// *directory.RefusalError, or an error of the replication.
func (o *Oracle) propose(ctx context.Context, e *oraclev1.LogEntry) error {
	e.TimeMillis, e.Origin = time.Now().UnixMilli(), rand.Uint64() //nolint:forbidigo // it only tells proposals apart, and decides nothing
	data, err := proto.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode log entry: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	outcome := o.machine.expect(e.GetOrigin())
	defer o.machine.forget(e.GetOrigin())
	if err := o.host.ProposeWait(ctx, data); err != nil {
		return err
	}
	select {
	case err := <-outcome:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
