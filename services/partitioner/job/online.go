// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package job

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	planv1 "github.com/kolocate/kolocate/api/proto/plan/v1"
	"github.com/kolocate/kolocate/services/oracle/graph"
	"github.com/kolocate/kolocate/services/partitioner/plan"
)

const (
	// callTimeout bounds one try of a call, transfer included.
	callTimeout = 2 * time.Minute
	// tries bounds how often a call is made, over all replicas of the oracle;
	// between them it waits for firstPause, then longer, up to longestPause.
	tries        = 12
	firstPause   = 200 * time.Millisecond
	longestPause = 5 * time.Second
	// reportTimeout bounds the report of a failure.
	reportTimeout = 20 * time.Second
)

// oracle calls the replica that leads, whichever it is.
type oracle struct {
	connections []*grpc.ClientConn
	clients     []oraclev1.AdminClient
	// The replica that answered last.
	current int
}

func (o *oracle) close() {
	for _, conn := range o.connections {
		_ = conn.Close() // every call has ended: nothing is left to lose
	}
}

// runOnline plans for a rebalance. A failure that another try cannot mend is
// reported to the oracle; any other is left to whoever runs the program again.
func runOnline(ctx context.Context, c Config, partitioner plan.Partitioner) (*planv1.Plan, error) {
	o := &oracle{}
	defer o.close()
	for _, address := range c.Oracle {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, fmt.Errorf("connect to the oracle at %s: %w; expected host:port", address, err)
		}
		o.connections = append(o.connections, conn)
		o.clients = append(o.clients, oraclev1.NewAdminClient(conn))
	}
	g, options, err := o.fetch(ctx, c.Rebalance)
	if err != nil {
		return nil, err
	}
	made, err := makePlan(ctx, g, options, partitioner)
	if err == nil {
		err = o.submit(ctx, c.Rebalance, made)
	}
	if err != nil {
		if final(err) {
			err = errors.Join(err, o.fail(ctx, c.Rebalance, err))
		}
		return nil, err
	}
	return made, nil
}

// final says that another try would end in the same way.
func final(err error) bool {
	for _, named := range []error{plan.ErrGraph, plan.ErrOptions, plan.ErrVersion, context.DeadlineExceeded} {
		if errors.Is(err, named) {
			return true
		}
	}
	switch status.Code(err) {
	case codes.InvalidArgument, codes.FailedPrecondition, codes.NotFound, codes.DataLoss, codes.Unimplemented, codes.PermissionDenied, codes.Unauthenticated:
		return true
	default:
		return false
	}
}

// retry calls until an answer comes that another replica, or more time, could
// not change, or until tries are used up.
func (o *oracle) retry(ctx context.Context, doing string, call func(context.Context, oraclev1.AdminClient) error) error {
	pause := firstPause
	var err error
	for try := range tries {
		if try > 0 {
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return fmt.Errorf("%s: %w (last answer: %w)", doing, context.Cause(ctx), err)
			}
			o.current = (o.current + 1) % len(o.clients)
			if o.current == 0 || len(o.clients) == 1 {
				pause = min(2*pause, longestPause)
			}
		}
		attempt, cancel := context.WithTimeout(ctx, callTimeout)
		err = call(attempt, o.clients[o.current])
		cancel()
		if err == nil {
			return nil
		}
		if code := status.Code(err); code != codes.Unavailable && code != codes.DeadlineExceeded && code != codes.Aborted && !errors.Is(err, graph.ErrTorn) {
			return fmt.Errorf("%s: %w", doing, err)
		}
	}
	return fmt.Errorf("%s: given up after %d tries: %w", doing, tries, err)
}

// fetch gets the graph of a rebalance and the options to plan with.
func (o *oracle) fetch(ctx context.Context, rebalance string) (g *planv1.Graph, options *planv1.PlanOptions, err error) {
	err = o.retry(ctx, fmt.Sprintf("fetch the graph of rebalance %q", rebalance), func(ctx context.Context, client oraclev1.AdminClient) error {
		stream, err := client.FetchGraph(ctx, &oraclev1.FetchGraphRequest{Rebalance: rebalance})
		if err != nil {
			return err
		}
		var joiner graph.Joiner
		options = &planv1.PlanOptions{}
		for {
			chunk, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			if chunk.GetOptions() != nil {
				options = chunk.GetOptions()
			}
			if err := joiner.Add(graph.Chunk{Data: chunk.GetData(), Checksum: chunk.GetChecksum(), Last: chunk.GetLast()}); err != nil {
				return err
			}
		}
		data, err := joiner.Bytes()
		if err != nil {
			return err
		}
		g, err = graph.Decode(data, "")
		return err
	})
	return g, options, err
}

// submit hands a plan to the oracle. When an answer got lost the oracle refuses
// the next try, because it has moved on with the plan: then it is asked for the
// plan it has.
func (o *oracle) submit(ctx context.Context, rebalance string, made *planv1.Plan) error {
	data, err := graph.EncodePlan(made)
	if err != nil {
		return err
	}
	sent := 0
	return o.retry(ctx, fmt.Sprintf("submit the plan of rebalance %q", rebalance), func(ctx context.Context, client oraclev1.AdminClient) error {
		sent++
		err := send(ctx, client, rebalance, data)
		if sent > 1 && status.Code(err) == codes.FailedPrecondition && holds(ctx, client, rebalance, data) {
			return nil
		}
		return err
	})
}

func send(ctx context.Context, client oraclev1.AdminClient, rebalance string, data []byte) error {
	stream, err := client.SubmitPlan(ctx)
	if err != nil {
		return err
	}
	for _, chunk := range graph.Split(data, 0) {
		message := &oraclev1.PlanChunk{Rebalance: rebalance, Data: chunk.Data, Checksum: chunk.Checksum, Last: chunk.Last}
		if err := stream.Send(message); err != nil {
			if errors.Is(err, io.EOF) {
				break // the oracle has answered already: CloseAndRecv says what
			}
			return err
		}
	}
	_, err = stream.CloseAndRecv()
	return err
}

// holds says whether the oracle has this very plan for the rebalance.
func holds(ctx context.Context, client oraclev1.AdminClient, rebalance string, data []byte) bool {
	stream, err := client.GetPlan(ctx, &oraclev1.GetPlanRequest{Rebalance: rebalance})
	if err != nil {
		return false
	}
	var joiner graph.Joiner
	for {
		chunk, err := stream.Recv()
		if err != nil {
			break // its end, or a failure: Bytes tells them apart
		}
		if joiner.Add(graph.Chunk{Data: chunk.GetData(), Checksum: chunk.GetChecksum(), Last: chunk.GetLast()}) != nil {
			return false
		}
	}
	held, err := joiner.Bytes()
	return err == nil && bytes.Equal(held, data)
}

// fail tells the oracle why there will be no plan. It is tried for a while even
// when ctx has ended.
func (o *oracle) fail(ctx context.Context, rebalance string, why error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportTimeout)
	defer cancel()
	return o.retry(ctx, "report the failure", func(ctx context.Context, client oraclev1.AdminClient) error {
		_, err := client.ControlRebalance(ctx, &oraclev1.ControlRebalanceRequest{
			Name: rebalance, Action: oraclev1.RebalanceAction_REBALANCE_ACTION_FAIL, Message: why.Error(),
		})
		return err
	})
}
