// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// TransferLeadership moves leadership to the member that is closest to the leader's log and returns
// when this replica leads no longer. Errors: ErrNotLeader, ErrNoTransferee after an election timeout
// without one, ErrStopped, that of ctx.
func (h *Host) TransferLeadership(ctx context.Context) error {
	term, ok := h.inbox.canLead()
	if !ok {
		return h.whyNotLeader()
	}
	for none := 0; ; {
		offer := make(chan error, 1)
		h.inbox.control(func(n *Node) error {
			offer <- n.TransferLeadership()
			return nil
		})
		wait := h.cfg.ElectionTimeout // then Raft has given the offer up
		select {
		case err := <-offer:
			if errors.Is(err, ErrNoTransferee) {
				if none++; h.sole || none > h.cfg.electionTicks() {
					return err
				}
				wait = h.cfg.TickInterval
			}
		case <-h.stop:
			return ErrStopped
		case <-ctx.Done():
			return h.notMoved(ctx)
		}
		if moved, err := h.awaitLoss(ctx, term, wait); moved || err != nil {
			return err
		}
	}
}

// awaitLoss waits until this replica no longer leads in the term, or until the time is over.
func (h *Host) awaitLoss(ctx context.Context, term uint64, wait time.Duration) (lost bool, err error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		changed := h.viewChanged()
		if now, leads := h.inbox.canLead(); !leads || now != term {
			return true, nil
		}
		select {
		case <-changed:
		case <-timer.C:
			return false, nil
		case <-h.stop:
			return false, ErrStopped
		case <-ctx.Done():
			return false, h.notMoved(ctx)
		}
	}
}

func (h *Host) notMoved(ctx context.Context) error {
	return fmt.Errorf("move the leadership of %q away from replica %d: %w", h.cfg.Group, h.cfg.ID, ctx.Err())
}

// viewChanged returns a channel that is closed when leadership changes.
func (h *Host) viewChanged() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed
}

// Stop moves leadership away if this replica leads, for as long as ctx allows, and then stops the
// replica and closes its files. A ctx that has ended stops it at once. What was proposed and not
// applied stays unknown. After it no method of the state machine is called. It may be called again.
func (h *Host) Stop(ctx context.Context) error {
	if _, leads := h.inbox.canLead(); leads && !h.sole && ctx.Err() == nil {
		if err := h.TransferLeadership(ctx); err != nil && !errors.Is(err, ErrNotLeader) && !errors.Is(err, ErrStopped) {
			h.cfg.Logger.Warn("stopping without having moved leadership away", "error", err)
		}
	}
	h.beginStop()
	if err := h.join(); err != nil {
		return err
	}
	h.doneOnce.Do(func() { close(h.done) })
	return h.closeErr
}

// join waits for the goroutines and closes the files. A disk that does not answer is not waited for.
func (h *Host) join() error {
	ended := make(chan struct{})
	go func() {
		h.wg.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(diskStall):
		return fmt.Errorf("stop replica %d of %q: %w within %v", h.cfg.ID, h.cfg.Group, ErrDiskStalled, diskStall)
	}
	h.closeOnce.Do(func() {
		h.transport.Close()
		h.metrics.unregister()
		if err := h.node.Close(); err != nil {
			h.closeErr = fmt.Errorf("stop replica %d of %q: %w", h.cfg.ID, h.cfg.Group, err)
		}
	})
	return nil
}

// observeSync measures the log's syncs; the node calls it around each.
func (h *Host) observeSync(begin bool) {
	now := int64(h.now())
	if begin {
		h.syncBegan.Store(now)
		return
	}
	began := h.syncBegan.Swap(0)
	h.metrics.fsyncLatency.Observe(time.Duration(now - began).Seconds())
}

// watchDisk fails the replica when a sync takes too long: its leadership would be a hindrance.
func (h *Host) watchDisk() {
	ticker := time.NewTicker(diskStall / 20)
	defer ticker.Stop()
	for {
		select {
		case <-h.stop:
			return
		case <-ticker.C:
		}
		if began := h.syncBegan.Load(); began > 0 && h.now()-time.Duration(began) > diskStall {
			h.fail(fmt.Errorf("sync the log in %s: %w within %v: check the disk", h.cfg.Dir, ErrDiskStalled, diskStall))
			return
		}
	}
}
