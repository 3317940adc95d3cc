// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"errors"
	"fmt"
)

var (
	// ErrNotLeader is returned for what only the leader can do. Status says who leads.
	ErrNotLeader = errors.New("this replica does not lead its group: ask the leader")
	// ErrStopped is returned after Stop or a fatal failure; Err says which.
	ErrStopped = errors.New("the replica is stopped")
	// ErrLeadershipLost is returned by ProposeWait when the replica ceased to lead before the proposal
	// was applied: it may or may not be applied later.
	ErrLeadershipLost = errors.New("the replica ceased to lead before the proposal was applied: whether it will be is unknown")
	// ErrTooLarge is returned for a proposal of more than MaxProposalBytes, or an empty one.
	ErrTooLarge = fmt.Errorf("the size of a proposal must be from 1 to %d bytes", MaxProposalBytes)
	// ErrNoTransferee is returned by TransferLeadership when no other member is fit to lead.
	ErrNoTransferee = errors.New("no other member of the group is connected and close enough to the leader's log to take over")
	// ErrDiskStalled is the fatal error of a replica whose disk did not answer in time.
	ErrDiskStalled = errors.New("the disk does not answer")
)

// ErrQueueFull is returned when a bounded queue of the replica is full. The caller may try again later.
type ErrQueueFull struct { //nolint:errname // the name is the one of the contract between the packages
	// Bound names the bound that was met, such as "max-pending-proposals".
	Bound string
	// Limit is its value, in items or bytes.
	Limit int64
}

// Error names the bound and its value.
func (e ErrQueueFull) Error() string {
	return fmt.Sprintf("the replica's queue is full: bound %s = %d is reached: try again later", e.Bound, e.Limit)
}
