// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// shardHeader says for which shard a stream of the SDK is.
const shardHeader = "x-kolocate-shard"

// ackEvery is the number of envelopes between two acknowledgements.
const ackEvery = 256

// Execute runs the commands of one client. A stream with x-kolocate-shard is
// told where keys have moved; for one without, commands are passed on.
func (s *service) Execute(stream grpc.BidiStreamingServer[kvv1.ExecuteRequest, kvv1.ExecuteResponse]) error {
	md, _ := metadata.FromIncomingContext(stream.Context())
	names := md.Get(shardHeader)
	for _, name := range names {
		if name != s.engine.config.Shard.String() {
			return status.Errorf(codes.FailedPrecondition, "this is %v of store %q, but the stream is for %s; connect to a replica of that shard", s.engine.config.Shard, s.engine.config.Store, name)
		}
	}
	return s.serveStream(stream, func() (incoming, error) {
		m, err := stream.Recv()
		return incoming{requests: m.GetRequests(), redirects: len(names) > 0}, err
	})
}

// Forward runs commands on behalf of clients that reached another shard.
func (s *service) Forward(stream grpc.BidiStreamingServer[shardv1.ForwardRequest, kvv1.ExecuteResponse]) error {
	return s.serveStream(stream, func() (incoming, error) {
		m, err := stream.Recv()
		return incoming{requests: m.GetRequests(), hops: max(1, m.GetHops())}, err
	})
}

// incoming is one message of commands.
type incoming struct {
	requests  []*kvv1.Request
	hops      uint32
	redirects bool
}

type replyStream interface {
	Context() context.Context
	Send(*kvv1.ExecuteResponse) error
}

// serveStream takes commands from a stream and sends back the replies, until the
// client ends it or this replica ceases to lead.
func (s *service) serveStream(stream replyStream, receive func() (incoming, error)) error {
	term := s.engine.term.Load()
	if !term.leading {
		return s.notLeader(stream.Context())
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	box := newOutbox(&s.engine.config.Limits)
	received := make(chan error, 1)
	go func() { received <- s.receive(ctx, box, receive) }()
	var ended error
	for ended == nil {
		if m := box.next(uint64(s.engine.follower.Epoch())); m != nil {
			if err := stream.Send(m); err != nil {
				return err
			}
			continue
		}
		select {
		case <-box.wake:
		case <-ctx.Done():
			return ctx.Err()
		case err := <-received:
			if !errors.Is(err, io.EOF) {
				return err
			}
			// The client sends no more, but waits for its replies.
			ended = s.drainStream(ctx, stream, box, term)
			if ended == nil {
				return nil
			}
		case <-term.ended:
			ended = s.notLeader(stream.Context())
		}
	}
	// What was under way was answered before the term was ended.
	for m := box.next(uint64(s.engine.follower.Epoch())); m != nil; m = box.next(uint64(s.engine.follower.Epoch())) {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	return ended
}

// drainStream sends the replies that are still to come.
func (s *service) drainStream(ctx context.Context, stream replyStream, box *outbox, term *term) error {
	for {
		for m := box.next(uint64(s.engine.follower.Epoch())); m != nil; m = box.next(uint64(s.engine.follower.Epoch())) {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		if box.idle() {
			return nil
		}
		select {
		case <-box.wake:
		case <-ctx.Done():
			return ctx.Err()
		case <-term.ended:
			return s.notLeader(ctx)
		}
	}
}

// receive takes in what the client sends.
func (s *service) receive(ctx context.Context, box *outbox, receive func() (incoming, error)) error {
	var pointers []*request
	limits := &s.engine.config.Limits
	for {
		if err := box.awaitRoom(ctx); err != nil {
			return err
		}
		in, err := receive()
		if err != nil {
			return err
		}
		now := time.Now()
		slab := make([]request, len(in.requests))
		pointers = pointers[:0]
		for i, m := range in.requests {
			r := &slab[i]
			r.sink, r.tag, r.hops, r.redirects = box, m.GetTag(), in.hops, in.redirects
			r.prepare(m.GetCommand(), proto.Size(m.GetCommand()), time.Duration(m.GetTimeoutMillis())*time.Millisecond, limits, now)
			pointers = append(pointers, r)
		}
		box.began(len(pointers))
		s.engine.accept(pointers)
	}
}

// Deliver takes messages of another shard's leader.
func (s *service) Deliver(stream grpc.BidiStreamingServer[shardv1.Envelope, shardv1.DeliverAck]) error {
	received := uint64(0)
	for envelopes := 1; ; envelopes++ {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		config := s.engine.config
		if m.GetStore() != config.Store || keyspace.ShardID(m.GetToShard()) != config.Shard {
			return status.Errorf(codes.InvalidArgument, "a message for %v of store %q reached %v of store %q; correct the addresses of the shards",
				keyspace.ShardID(m.GetToShard()), m.GetStore(), config.Shard, config.Store)
		}
		if !s.engine.term.Load().leading {
			return s.notLeader(stream.Context())
		}
		s.engine.intake.addMessages(keyspace.ShardID(m.GetFromShard()), m.GetMessages())
		received += uint64(len(m.GetMessages()))
		if envelopes%ackEvery == 0 {
			if err := stream.Send(&shardv1.DeliverAck{Received: received}); err != nil {
				return err
			}
		}
	}
}
