// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
)

// Poke makes the next report come at once: leadership has changed.
func (f *Follower) Poke() {
	select {
	case f.poke <- struct{}{}:
	default:
	}
}

// join reports until the stream or ctx ends. Each report is answered before the next.
func (f *Follower) join(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := oraclev1.NewRegistryClient(conn).Join(ctx)
	if err != nil {
		return err
	}
	silence := time.AfterFunc(answerTimeout, cancel)
	defer silence.Stop()
	ticker := time.NewTicker(reportInterval)
	defer ticker.Stop()
	for {
		if err := stream.Send(f.config.Report()); err != nil {
			_, why := stream.Recv() // Send knows only that the stream ended
			return errors.Join(err, why)
		}
		answer, err := stream.Recv()
		if err != nil {
			return err
		}
		silence.Reset(answerTimeout + reportInterval)
		f.config.Heard(answer)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.poke:
		case <-ticker.C:
		}
	}
}

// Trace sends one report to whichever replica of the oracle takes it.
func (f *Follower) Trace(ctx context.Context, report *oraclev1.ReportRequest) error {
	var failures []error
	for _, conn := range f.conns {
		_, err := oraclev1.NewTraceClient(conn).Report(ctx, report)
		if err == nil {
			return nil
		}
		failures = append(failures, err)
	}
	return errors.Join(failures...)
}
