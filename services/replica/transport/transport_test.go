// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"bytes"
	"context"
	"errors"
	"hash/crc32"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	replicav1 "github.com/kolocate/kolocate/api/proto/replica/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder is a replica that remembers what it was told.
type recorder struct {
	received    chan *raftpb.Message
	unreachable chan uint64
	sent        chan bool
	file        []byte

	mu        sync.Mutex
	snapshots [][]byte
	aborted   int
}

func newRecorder() *recorder {
	return &recorder{received: make(chan *raftpb.Message, 10_000), unreachable: make(chan uint64, 10_000), sent: make(chan bool, 10)}
}

func (r *recorder) Receive(m *raftpb.Message)      { r.received <- m }
func (r *recorder) SnapshotSent(_ uint64, ok bool) { r.sent <- ok }
func (r *recorder) OpenSnapshot(*raftpb.Message) (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(r.file)), nil
}

func (r *recorder) Unreachable(peer uint64) {
	select {
	case r.unreachable <- peer:
	default:
	}
}

func (r *recorder) ReceiveSnapshot(*raftpb.Message) (SnapshotSink, error) { return &sink{r: r}, nil }

type sink struct {
	bytes.Buffer
	r *recorder
}

func (s *sink) Commit() error {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.r.snapshots = append(s.r.snapshots, s.Bytes())
	return nil
}

func (s *sink) Abort() error {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.r.aborted++
	return nil
}

// pair is two transports, of which the second also has a server.
type pair struct {
	from, to       *Transport
	sender, target *recorder
	server         *grpc.Server
	address        string
}

func newPair(t *testing.T) *pair {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{sender: newRecorder(), target: newRecorder(), address: l.Addr().String()}
	peers := map[uint64]string{1: "127.0.0.1:1", 2: p.address}
	for id, handler := range map[uint64]*recorder{1: p.sender, 2: p.target} {
		tr, err := New(Config{Group: "store/shard-1", ID: id, Peers: peers, Handler: handler, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if id == 1 {
			p.from = tr
		} else {
			p.to = tr
		}
	}
	p.serve(l)
	t.Cleanup(func() {
		p.from.Close()
		p.to.Close()
		p.server.Stop()
	})
	return p
}

func (p *pair) serve(l net.Listener) {
	p.server = grpc.NewServer(ServerOptions()...)
	p.to.Register(p.server)
	go func(s *grpc.Server) { _ = s.Serve(l) }(p.server)
}

func heartbeat(commit uint64) *raftpb.Message {
	return &raftpb.Message{Type: raftpb.MsgHeartbeat.Enum(), From: new(uint64(1)), To: new(uint64(2)), Term: new(uint64(1)), Commit: new(commit)}
}

func await[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(20 * time.Second):
		t.Fatalf("waited too long for %s", what)
		panic("unreachable")
	}
}

func TestMessagesArriveInOrder(t *testing.T) {
	p := newPair(t)
	for i := range uint64(1000) {
		p.from.Enqueue([]*raftpb.Message{heartbeat(i)})
	}
	for i := range uint64(1000) {
		if m := await(t, "a message", p.target.received); m.GetCommit() != i {
			t.Fatalf("message %d arrived as number %d", m.GetCommit(), i)
		}
	}
}

// TestReconnects restarts the peer's server on its address.
func TestReconnects(t *testing.T) {
	p := newPair(t)
	p.from.Enqueue([]*raftpb.Message{heartbeat(1)})
	await(t, "the first message", p.target.received)
	p.server.Stop()
	for gone := false; !gone; {
		p.from.Enqueue([]*raftpb.Message{heartbeat(2)})
		select {
		case <-p.sender.unreachable:
			gone = true
		case <-p.target.received:
		case <-time.After(time.Millisecond):
		}
	}
	l, err := net.Listen("tcp", p.address)
	if err != nil {
		t.Fatal(err)
	}
	p.serve(l)
	deadline := time.After(20 * time.Second)
	for {
		p.from.Enqueue([]*raftpb.Message{heartbeat(3)})
		select {
		case m := <-p.target.received:
			if m.GetCommit() == 3 {
				return
			}
		case <-time.After(5 * time.Millisecond):
		case <-deadline:
			t.Fatal("no message arrived after the restart")
		}
	}
}

// TestQueueIsBounded fills the queue of a peer that takes nothing.
func TestQueueIsBounded(t *testing.T) {
	p := newPair(t)
	p.server.Stop()
	peer := p.from.peers[2]
	for range 3 * maxQueued {
		p.from.Enqueue([]*raftpb.Message{heartbeat(1)})
		peer.mu.Lock()
		if len(peer.queue) > maxQueued {
			t.Errorf("%d messages are queued", len(peer.queue))
		}
		peer.mu.Unlock()
	}
	await(t, "a report", p.sender.unreachable)
}

func snapMessage() *raftpb.Message {
	return &raftpb.Message{
		Type: raftpb.MsgSnap.Enum(), From: new(uint64(1)), To: new(uint64(2)), Term: new(uint64(1)),
		Snapshot: &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{Index: new(uint64(9)), Term: new(uint64(1)), ConfState: &raftpb.ConfState{}}},
	}
}

func TestSnapshotIsStreamed(t *testing.T) {
	for _, size := range []int{0, 1, chunkBytes, 5*chunkBytes + 3} {
		p := newPair(t)
		p.sender.file = bytes.Repeat([]byte("0123456789"), size)[:size]
		p.from.Enqueue([]*raftpb.Message{snapMessage()})
		if !await(t, "the end of the snapshot", p.sender.sent) {
			t.Fatalf("a snapshot of %d bytes was not sent", size)
		}
		p.target.mu.Lock()
		if len(p.target.snapshots) != 1 || !bytes.Equal(p.target.snapshots[0], p.sender.file) {
			t.Errorf("a snapshot of %d bytes arrived otherwise", size)
		}
		p.target.mu.Unlock()
	}
}

// TestBadStreamsAreRefused sends what no member would.
func TestBadStreamsAreRefused(t *testing.T) {
	p := newPair(t)
	conn, err := grpc.NewClient(p.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	client := replicav1.NewReplicaClient(conn)
	encode := func(m *raftpb.Message) []byte {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	local := heartbeat(1)
	local.Type = raftpb.MsgHup.Enum()
	stranger := heartbeat(1)
	stranger.From = new(uint64(7))
	for name, request := range map[string]*replicav1.SendRequest{
		"another group":    {Group: "store/shard-2", To: 2},
		"another replica":  {Group: "store/shard-1", To: 1},
		"garbage":          {Group: "store/shard-1", To: 2, Messages: [][]byte{{0xff, 1, 2}}},
		"a local message":  {Group: "store/shard-1", To: 2, Messages: [][]byte{encode(local)}},
		"a stranger":       {Group: "store/shard-1", To: 2, Messages: [][]byte{encode(stranger)}},
		"a snapshot alone": {Group: "store/shard-1", To: 2, Messages: [][]byte{encode(snapMessage())}},
	} {
		stream, err := client.Send(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(request); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		_, err = stream.CloseAndRecv()
		if c := status.Code(err); c != codes.FailedPrecondition && c != codes.InvalidArgument {
			t.Errorf("%s was answered by %v", name, err)
		}
	}
	sum := crc32.Checksum([]byte("data"), castagnoli)
	for name, chunk := range map[string]*replicav1.SnapshotChunk{
		"a wrong checksum": {Group: "store/shard-1", To: 2, Message: encode(snapMessage()), Data: []byte("data"), Checksum: sum + 1},
		"another group":    {Group: "store/shard-2", To: 2, Message: encode(snapMessage()), Data: []byte("data"), Checksum: sum},
		"no snapshot":      {Group: "store/shard-1", To: 2, Message: encode(heartbeat(1)), Data: []byte("data"), Checksum: sum, Last: true},
		"an early end":     {Group: "store/shard-1", To: 2, Message: encode(snapMessage()), Data: []byte("data"), Checksum: sum},
	} {
		stream, err := client.SendSnapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(chunk); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if _, err := stream.CloseAndRecv(); status.Code(err) == codes.OK {
			t.Errorf("%s was accepted", name)
		}
	}
	p.target.mu.Lock()
	defer p.target.mu.Unlock()
	if len(p.target.snapshots) != 0 || p.target.aborted != 2 {
		t.Errorf("%d snapshots were kept, %d taken back, expected 0 and 2", len(p.target.snapshots), p.target.aborted)
	}
}

// TestCloseEndsStreams: an open stream does not outlive the transport.
func TestCloseEndsStreams(t *testing.T) {
	p := newPair(t)
	conn, err := grpc.NewClient(p.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stream, err := replicav1.NewReplicaClient(conn).Send(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&replicav1.SendRequest{Group: "store/shard-1", To: 2}); err != nil {
		t.Fatal(err)
	}
	p.to.Close()
	if err := stream.RecvMsg(&replicav1.SendResponse{}); status.Code(err) != codes.Unavailable {
		t.Errorf("after Close the stream gives %v", err)
	}
}
