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
// when this replica leads no longer. Errors: ErrNotLeader, ErrNoTransferee, ErrStopped, that of ctx.
func (h *Host) TransferLeadership(ctx context.Context) error {
	term, ok := h.inbox.canLead()
	if !ok {
		return h.whyNotLeader()
	}
	offer := make(chan error, 1)
	// Raft gives an offer up after an election timeout: then it is made again.
	ticker := time.NewTicker(h.cfg.ElectionTimeout)
	defer ticker.Stop()
	for {
		h.inbox.control(func(n *Node) error {
			err := n.TransferLeadership()
			select {
			case offer <- err:
			default:
			}
			return nil
		})
		again := false
		for !again {
			changed := h.viewChanged()
			if now, leads := h.inbox.canLead(); !leads || now != term {
				return nil
			}
			select {
			case err := <-offer:
				// Without a transferee now there may be one at the next try; ctx says how long to wait.
				if err != nil && !errors.Is(err, ErrNoTransferee) {
					return nil
				}
				if err != nil && h.sole {
					return err
				}
			case <-changed:
			case <-ticker.C:
				again = true
			case <-h.stop:
				return ErrStopped
			case <-ctx.Done():
				return fmt.Errorf("move the leadership of %q away from replica %d: %w", h.cfg.Group, h.cfg.ID, ctx.Err())
			}
		}
	}
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
