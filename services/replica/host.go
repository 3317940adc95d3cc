// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"context"
	"errors"

	"google.golang.org/grpc"
)

// Host runs one replica: it owns its goroutines, its files and its connections. All methods may be
// called concurrently, but Read, Run, ProposeWait and Stop not from the apply goroutine, for which
// they wait.
type Host struct{}

var errUnfinished = errors.New("unfinished")

// Open recovers the replica from cfg.Dir, or founds it if the directory is empty, and starts it.
// Errors name the file and what to do. Ctx bounds the opening only.
func Open(_ context.Context, cfg Config) (*Host, error) {
	if _, err := cfg.withDefaults(); err != nil {
		return nil, err
	}
	return nil, errUnfinished
}

// Propose enqueues data to be appended to the group's log and returns at once. The result is seen
// through StateMachine.Apply; if leadership is lost before, Config.OnLeadership says so. The data
// belongs to the host from then on. Errors: ErrNotLeader, ErrQueueFull, ErrTooLarge, ErrStopped.
func (h *Host) Propose(_ []byte) error { return errUnfinished }

// ProposeWait proposes data and returns when it has been applied here. Errors are those of Propose,
// ErrLeadershipLost, and that of ctx; after the last two it may still be applied.
func (h *Host) ProposeWait(_ context.Context, _ []byte) error { return errUnfinished }

// Read runs fn on the apply goroutine when everything is applied that was committed before the call.
// Reads waiting at the same time share one round to a quorum, or none while a lease holds. If an error
// is returned, fn was not run and will not be. Errors: ErrNotLeader, ErrQueueFull, ErrStopped, that of ctx.
func (h *Host) Read(_ context.Context, _ func()) error { return errUnfinished }

// Run runs fn on the apply goroutine and returns when it is done. What fn sees may be stale. If an
// error is returned, fn was not run. Errors: ErrQueueFull, ErrStopped.
func (h *Host) Run(_ func()) error { return errUnfinished }

// Status returns the replica's present status. It never blocks on the disk or on Apply.
func (h *Host) Status() Status { return Status{} }

// TransferLeadership moves leadership to the member that is closest to the leader's log and returns
// when this replica leads no longer. Errors: ErrNotLeader, ErrNoTransferee, ErrStopped, that of ctx.
func (h *Host) TransferLeadership(_ context.Context) error { return errUnfinished }

// RegisterOn registers the service by which the other members reach this one (kolocate.replica.v1.Replica).
// The server must have been made with ServerOptions.
func (h *Host) RegisterOn(_ grpc.ServiceRegistrar) {}

// Stop moves leadership away if this replica leads, for as long as ctx allows, and then stops the
// replica and closes its files. A ctx that has ended stops it at once. What was proposed and not
// applied stays unknown. After it no method of the state machine is called.
func (h *Host) Stop(_ context.Context) error { return errUnfinished }

// Done is closed when the replica has stopped, by Stop or by a fatal failure.
func (h *Host) Done() <-chan struct{} { return nil }

// Err returns the fatal failure (full disk, corrupt log, an error of the state machine) that stopped
// the replica, nil while it runs and after Stop. The process should exit with this message.
func (h *Host) Err() error { return nil }
