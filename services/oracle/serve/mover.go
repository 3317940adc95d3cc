// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	planv1 "github.com/kolocate/kolocate/api/proto/plan/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/oracle/directory"
)

const (
	// moveTimeout is how long a handoff may take, beside what its bytes need at
	// the permitted rate, before it is taken back.
	moveTimeout = 60 * time.Second
	// moveRetry is the pause before a shard is asked again.
	moveRetry = 100 * time.Millisecond
	// abortTimeout bounds one request to take a handoff back.
	abortTimeout = 5 * time.Second
)

// mover carries out handoffs, each in a goroutine of its own that asks the
// source shard's leader until the handoff has ended one way or the other.
type mover struct {
	oracle *Oracle
	// ended wakes the conductor after each handoff.
	ended chan struct{}

	mu      sync.Mutex
	running map[uint64]*handoff
	group   sync.WaitGroup
}

// handoff is one that is being carried out.
type handoff struct {
	id       uint64
	name     string
	step     *planv1.Step
	rate     uint64
	progress *shardv1.MoveProgress
	waits    string
}

func newMover(o *Oracle) *mover {
	return &mover{oracle: o, ended: make(chan struct{}, 1), running: map[uint64]*handoff{}}
}

// workload is what is to be done for the active rebalance.
type workload struct {
	moving      []*handoff
	startable   []uint32
	waiting     int
	done        int
	failed      int
	lastFailure string
}

func (m *mover) gather() (w workload) {
	m.oracle.machine.view(func(d *directory.Directory) {
		state := d.Active()
		if state == nil {
			return
		}
		policy := d.Policy()
		limit := int(policy.GetConcurrentHandoffs())
		for i, step := range state.GetSteps() {
			switch step.GetPhase() {
			case oraclev1.StepPhase_STEP_PHASE_MOVING:
				w.moving = append(w.moving, &handoff{
					id: step.GetHandoff(), name: state.GetRebalance().GetName(), step: state.GetMoves()[i],
					rate: max(1, policy.GetRateBytesPerSecond()/uint64(limit)), //nolint:gosec // at least 1, by CheckPolicy
				})
			case oraclev1.StepPhase_STEP_PHASE_WAITING:
				// A slot takes along every vertex of it that has no override, so the
				// steps before it, which place vertices elsewhere, must have ended.
				if len(state.GetMoves()[i].GetSlots()) > 0 && len(w.startable)+len(w.moving)+w.waiting > 0 {
					w.waiting++
				} else {
					w.startable = append(w.startable, uint32(i))
				}
			case oraclev1.StepPhase_STEP_PHASE_DONE:
				w.done++
			default:
				w.failed++
				w.lastFailure = step.GetMessage()
			}
		}
		room := max(0, limit-len(w.moving))
		if len(w.startable) > room {
			w.waiting += len(w.startable) - room
			w.startable = w.startable[:room]
		}
	})
	return w
}

// resume starts a goroutine for each handoff that is recorded as under way and
// has none.
func (m *mover) resume(ctx context.Context, name string, moving []*handoff) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range moving {
		if _, ok := m.running[h.id]; ok {
			continue
		}
		h.name = name
		m.running[h.id] = h
		m.group.Add(1)
		go func() {
			defer m.group.Done()
			m.carryOut(ctx, h)
			m.mu.Lock()
			delete(m.running, h.id)
			m.mu.Unlock()
			select {
			case m.ended <- struct{}{}:
			default:
			}
		}()
	}
}

// wait returns when all goroutines have ended.
func (m *mover) wait() { m.group.Wait() }

// carryOut asks the source until the handoff is done or aborted, then records that.
func (m *mover) carryOut(ctx context.Context, h *handoff) {
	deadline := time.Now().Add(moveTimeout + time.Duration(float64(h.step.GetBytes())/float64(h.rate)*float64(time.Second)))
	for ctx.Err() == nil {
		var final *shardv1.MoveProgress
		var err error
		if time.Now().Before(deadline) {
			final, err = m.move(ctx, h, deadline)
		} else {
			final, err = m.abort(ctx, h)
		}
		if err == nil && ended(final) {
			err = m.record(ctx, h, final)
			if err == nil {
				return
			}
		}
		if err != nil && ctx.Err() == nil {
			m.note(h, fmt.Sprintf("waits for shard-%d: %v", h.step.GetFrom(), err))
			m.oracle.log.Debug("handoff waits", "handoff", h.id, "from", h.step.GetFrom(), "to", h.step.GetTo(), "reason", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(moveRetry):
		}
	}
}

func ended(p *shardv1.MoveProgress) bool {
	return p.GetPhase() == shardv1.HandoffPhase_HANDOFF_PHASE_DONE || p.GetPhase() == shardv1.HandoffPhase_HANDOFF_PHASE_ABORTED
}

// source returns a client of the leader of the shard that hands over.
func (m *mover) source(h *handoff) (shardv1.ControlClient, error) {
	leader, ok := m.oracle.registry.leader(h.step.GetFrom())
	if !ok {
		return nil, fmt.Errorf("no leader of shard-%d has reported yet", h.step.GetFrom())
	}
	conn, err := m.oracle.conns.to(leader.address)
	if err != nil {
		return nil, err
	}
	return shardv1.NewControlClient(conn), nil
}

func (m *mover) move(ctx context.Context, h *handoff, deadline time.Time) (*shardv1.MoveProgress, error) {
	client, err := m.source(h)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	stream, err := client.Move(ctx, &shardv1.MoveRequest{RateBytesPerSecond: h.rate, Handoff: &shardv1.Handoff{
		Id: h.id, From: h.step.GetFrom(), To: h.step.GetTo(), Vertices: h.step.GetVertices(), Slots: h.step.GetSlots(),
	}})
	if err != nil {
		return nil, err
	}
	var last *shardv1.MoveProgress
	for {
		p, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return last, nil
		}
		if err != nil {
			return nil, err
		}
		last = p
		m.mu.Lock()
		h.progress, h.waits = p, p.GetMessage()
		m.mu.Unlock()
		if ended(p) {
			return p, nil
		}
	}
}

func (m *mover) abort(ctx context.Context, h *handoff) (*shardv1.MoveProgress, error) {
	client, err := m.source(h)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, abortTimeout)
	defer cancel()
	return client.AbortMove(ctx, &shardv1.AbortMoveRequest{Id: h.id})
}

func (m *mover) record(ctx context.Context, h *handoff, p *shardv1.MoveProgress) error {
	done := p.GetPhase() == shardv1.HandoffPhase_HANDOFF_PHASE_DONE
	err := m.oracle.propose(ctx, &oraclev1.LogEntry{Body: &oraclev1.LogEntry_StepEnded{StepEnded: &oraclev1.StepEnded{
		Name: h.name, Handoff: h.id, Done: done, Bytes: p.GetBytesCopied(), PauseMicros: p.GetPauseMicros(), Message: p.GetMessage(),
	}}})
	if err == nil && done {
		m.oracle.metrics.moved(p)
	}
	return unlessRefused(err) // refused: it has been recorded before
}

func (m *mover) note(h *handoff, waits string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h.waits = waits
}

// addProgress adds to a step what its source said last.
func (m *mover) addProgress(name string, step *oraclev1.StepProgress) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range m.running {
		if h.name != name || h.step.GetNumber() != step.GetNumber() {
			continue
		}
		step.BytesCopied = h.progress.GetBytesCopied()
		switch {
		case h.waits != "":
			step.State = h.waits
		case h.progress.GetPhase() == shardv1.HandoffPhase_HANDOFF_PHASE_SEALED:
			step.State = "sealed"
		default:
			step.State = "copying"
		}
	}
}

// connections keeps one connection for each address, and closes those that
// were not asked for lately when it holds too many.
type connections struct {
	mu    sync.Mutex
	conns map[string]*grpc.ClientConn
	order []string
}

// maxConnections bounds them: every replica of every shard.
const maxConnections = 512

func newConnections() *connections { return &connections{conns: map[string]*grpc.ClientConn{}} }

func (c *connections) to(address string) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn, ok := c.conns[address]; ok {
		c.order = append(slices.DeleteFunc(c.order, func(a string) bool { return a == address }), address)
		return conn, nil
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	c.conns[address], c.order = conn, append(c.order, address)
	if len(c.order) > maxConnections {
		oldest := c.order[0]
		c.order = c.order[1:]
		_ = c.conns[oldest].Close() // it is not used any more: nothing is lost with it
		delete(c.conns, oldest)
	}
	return conn, nil
}

func (c *connections) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, address := range c.order {
		_ = c.conns[address].Close() // the process ends
	}
	c.conns, c.order = map[string]*grpc.ClientConn{}, nil
}
