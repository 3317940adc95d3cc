// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// leader is a shard's leader as far as its peers can tell: it answers a forwarded
// command with its key, and breaks a stream when told so.
type leader struct {
	shardv1.UnimplementedPeerServer
	address string
	// elsewhere is the address of the leader, if this is not it.
	elsewhere string

	mu       sync.Mutex
	messages []*shardv1.Message
	hops     []uint32
	silent   bool
}

func newLeader(t *testing.T) *leader {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &leader{address: listener.Addr().String()}
	server := grpc.NewServer()
	shardv1.RegisterPeerServer(server, l)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return l
}

func (l *leader) refuse(stream grpc.ServerStream) error {
	stream.SetTrailer(metadata.Pairs(LeaderTrailer, l.elsewhere))
	return status.Error(codes.FailedPrecondition, "not the leader")
}

func (l *leader) Deliver(stream grpc.BidiStreamingServer[shardv1.Envelope, shardv1.DeliverAck]) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if l.elsewhere != "" {
			return l.refuse(stream)
		}
		l.mu.Lock()
		l.messages = append(l.messages, m.GetMessages()...)
		l.mu.Unlock()
	}
}

func (l *leader) Forward(stream grpc.BidiStreamingServer[shardv1.ForwardRequest, kvv1.ExecuteResponse]) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		l.mu.Lock()
		silent := l.silent
		l.hops = append(l.hops, m.GetHops())
		l.mu.Unlock()
		if silent {
			return status.Error(codes.Unavailable, "gone")
		}
		out := &kvv1.ExecuteResponse{}
		for _, r := range m.GetRequests() {
			out.Replies = append(out.Replies, &kvv1.Reply{Tag: r.GetTag(), Outcome: kvv1.Outcome_OUTCOME_OK, Message: string(r.GetCommand().GetKeys()[0])})
		}
		if err := stream.Send(out); err != nil {
			return err
		}
	}
}

func newLinks(t *testing.T, addresses ...string) (*Links, chan Answer) {
	t.Helper()
	answers := make(chan Answer, 100)
	l := New(Config{
		Store: "test", Shard: 1, Self: "self:1", Addresses: func(keyspace.ShardID) []string { return addresses },
		Epoch: func() keyspace.Epoch { return 7 }, Logger: slog.New(slog.DiscardHandler),
		Answered: func(got []Answer) {
			for _, a := range got {
				answers <- a
			}
		},
	})
	t.Cleanup(l.Close)
	return l, answers
}

func next(t *testing.T, answers chan Answer) Answer {
	t.Helper()
	select {
	case a := <-answers:
		return a
	case <-time.After(20 * time.Second):
		t.Fatal("no answer within 20 s")
		return Answer{}
	}
}

func command(origin uint64, hops uint32) Command {
	return Command{Origin: origin, Command: &kvv1.Command{Keys: [][]byte{[]byte("k")}}, Timeout: time.Second, Hops: hops}
}

func TestForwardFollowsTheLeaderAndReportsLostStreams(t *testing.T) {
	is := newLeader(t)
	links, answers := newLinks(t, "self:1", is.address)
	for i := range uint64(5) {
		if !links.Forward(2, command(i+1, uint32(i/2+1))) {
			t.Fatal("refused")
		}
	}
	seen := map[uint64]bool{}
	for range 5 {
		a := next(t, answers)
		if a.Reply.GetOutcome() != kvv1.Outcome_OUTCOME_OK || a.Reply.GetMessage() != "k" {
			t.Fatalf("answer %+v", a)
		}
		seen[a.Origin] = true
	}
	if len(seen) != 5 {
		t.Fatalf("answers to %v", seen)
	}
	is.mu.Lock()
	is.silent = true
	is.mu.Unlock()
	links.Forward(2, command(9, 1))
	if a := next(t, answers); a.Origin != 9 || a.Reply != nil {
		t.Fatalf("a command on a stream that broke: %+v, want no reply", a)
	}
}

func TestForwardToNobodyAnswersRetry(t *testing.T) {
	links, answers := newLinks(t)
	links.Forward(2, command(1, 1))
	if a := next(t, answers); a.Origin != 1 || a.Reply.GetOutcome() != kvv1.Outcome_OUTCOME_RETRY {
		t.Fatalf("answer %+v", a)
	}
	links, answers = newLinks(t, "127.0.0.1:1")
	links.Forward(2, command(2, 1))
	if a := next(t, answers); a.Origin != 2 || a.Reply.GetOutcome() != kvv1.Outcome_OUTCOME_RETRY {
		t.Fatalf("answer %+v", a)
	}
}

func TestDeliverGoesWhereTheTrailerSays(t *testing.T) {
	is, was := newLeader(t), newLeader(t)
	was.elsewhere = is.address
	links, _ := newLinks(t, was.address)
	deadline := time.Now().Add(20 * time.Second)
	for {
		// The protocols repeat what is lost with a stream.
		links.Send(2, &shardv1.Message{Body: &shardv1.Message_HandoffCommitted{HandoffCommitted: &shardv1.HandoffCommitted{Id: 3}}})
		is.mu.Lock()
		n := len(is.messages)
		is.mu.Unlock()
		if n > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the leader got nothing within 20 s")
		}
		<-time.After(time.Millisecond)
	}
	if is.messages[0].GetHandoffCommitted().GetId() != 3 {
		t.Fatalf("delivered %v", is.messages)
	}
}

func TestBounds(t *testing.T) {
	links, _ := newLinks(t) // no address: nothing leaves
	links.config.Answered = func([]Answer) {}
	k := &link{owner: links, to: 2}
	f := forwarder{link: k, wake: make(chan struct{}, 1), inFlight: map[uint64]Command{}}
	taken := 0
	for i := range uint64(maxQueuedCommands + 5) {
		if f.push(command(i+1, 1)) {
			taken++
		}
	}
	if taken != maxQueuedCommands {
		t.Errorf("%d commands were taken, the bound is %d", taken, maxQueuedCommands)
	}
	f.cancel(1)
	if !f.push(command(1, 1)) {
		t.Error("a cancelled command still takes its place")
	}
	d := deliverer{link: k, wake: make(chan struct{}, 1)}
	for range maxQueuedMessages + 5 {
		d.push(&shardv1.Message{})
	}
	if len(d.queue) != maxQueuedMessages {
		t.Errorf("%d messages wait, the bound is %d", len(d.queue), maxQueuedMessages)
	}
	d = deliverer{link: k, wake: make(chan struct{}, 1)}
	d.push(&shardv1.Message{Body: &shardv1.Message_HandoffChunk{HandoffChunk: &shardv1.HandoffChunk{Keys: []*shardv1.StagedKey{{Value: make([]byte, maxMessageBytes)}}}}})
	if len(d.queue) != 0 {
		t.Error("a message too large for any stream was queued")
	}
}
