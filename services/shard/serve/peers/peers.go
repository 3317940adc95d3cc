// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package peers owns the connections from one shard's replica to the leaders of
// the shards: messages of the protocols, and commands passed on for clients.
// It never looks into them and loses what does not fit its bounds. The shard
// server calls it.
package peers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// LeaderTrailer is the trailer in which a replica that does not lead names the leader.
const LeaderTrailer = "x-kolocate-leader"

const (
	// maxQueuedMessages and maxQueuedBytes bound what waits to be delivered to
	// one shard. More is dropped: the protocols repeat it.
	maxQueuedMessages = 16384
	maxQueuedBytes    = 64 << 20
	// maxQueuedCommands bounds what waits to be passed on to one shard, or its answer.
	maxQueuedCommands = 16384
	// maxFrameItems and maxFrameBytes bound one gRPC message.
	maxFrameItems = 512
	maxFrameBytes = 1 << 20
	// maxMessageBytes leaves room for the largest command with its frame, and is
	// below what a server takes (replica.ServerOptions).
	maxMessageBytes = 2*keyspace.MaxCommandBytes - 64<<10

	minPause = 10 * time.Millisecond
	maxPause = 500 * time.Millisecond
)

// Config says whose links these are.
type Config struct {
	Store string
	Shard keyspace.ShardID
	// Self is the address under which others reach this replica: it is never dialled.
	Self string
	// Addresses returns the believed addresses of a shard's replicas, the leader's first.
	Addresses func(keyspace.ShardID) []string
	// Epoch returns the newest epoch known.
	Epoch func() keyspace.Epoch
	// Answered is told the answers to forwarded commands, from one goroutine a
	// shard. A nil reply says that the command may or may not have run.
	Answered    func([]Answer)
	DialOptions []grpc.DialOption
	Logger      *slog.Logger
}

// Answer is what became of a forwarded command.
type Answer struct {
	Origin uint64
	Reply  *kvv1.Reply
}

// Command is one to be passed on.
type Command struct {
	Origin  uint64
	Command *kvv1.Command
	Timeout time.Duration
	// Hops counts the shards it has passed, this one included.
	Hops uint32
}

// Links are the ways to all shards, opened when first used. All methods may be
// called concurrently and never wait.
type Links struct {
	config Config
	ctx    context.Context //nolint:containedctx // the life of the links, ended by Close
	stop   context.CancelFunc
	tasks  sync.WaitGroup

	mu     sync.Mutex
	closed bool
	links  [keyspace.MaxShards + 1]*link
}

// New returns the links of a replica.
func New(config Config) *Links {
	ctx, stop := context.WithCancel(context.Background())
	return &Links{config: config, ctx: ctx, stop: stop}
}

// Close ends all links. What waits is lost.
func (l *Links) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.stop()
	l.tasks.Wait()
}

// Send delivers a message to the leader of a shard, or drops it.
func (l *Links) Send(to keyspace.ShardID, m *shardv1.Message) {
	if k := l.get(to); k != nil {
		k.deliver.push(m)
	}
}

// Forward passes a command on to the leader of a shard. It says false when the
// bound of commands under way is met.
func (l *Links) Forward(to keyspace.ShardID, c Command) bool {
	k := l.get(to)
	return k != nil && k.forward.push(c)
}

// Cancel forgets a forwarded command that nobody waits for any more. It may still run.
func (l *Links) Cancel(to keyspace.ShardID, origin uint64) {
	if k := l.get(to); k != nil {
		k.forward.cancel(origin)
	}
}

func (l *Links) get(to keyspace.ShardID) *link {
	if to == keyspace.NoShard || to > keyspace.MaxShards {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	if l.links[to] == nil {
		k := newLink(l, to)
		l.links[to] = k
		l.tasks.Go(func() { k.run(l.ctx, k.deliver.wake, &k.deliver) })
		l.tasks.Go(func() { k.run(l.ctx, k.forward.wake, &k.forward) })
	}
	return l.links[to]
}

// link is the way to one shard: two streams that find its leader on their own.
type link struct {
	owner   *Links
	to      keyspace.ShardID
	deliver deliverer
	forward forwarder
}

func newLink(owner *Links, to keyspace.ShardID) *link {
	k := &link{owner: owner, to: to}
	k.deliver = deliverer{link: k, wake: make(chan struct{}, 1)}
	k.forward = forwarder{link: k, wake: make(chan struct{}, 1), inFlight: map[uint64]Command{}}
	return k
}

// traffic is what goes over one stream.
type traffic interface {
	empty() bool
	// stream sends what waits until the stream ends. worked says that something was sent.
	stream(context.Context, *grpc.ClientConn) (worked bool, trailer metadata.MD, err error)
	// unreachable is told that no stream could be opened.
	unreachable()
}

// run keeps one stream to the shard's leader while there is something to send.
func (k *link) run(ctx context.Context, wake chan struct{}, t traffic) {
	r := route{link: k}
	defer r.close()
	pause := minPause
	for ctx.Err() == nil {
		if t.empty() {
			select {
			case <-ctx.Done():
				return
			case <-wake:
			}
			continue
		}
		conn, err := r.open()
		if err == nil {
			var worked bool
			var trailer metadata.MD
			if worked, trailer, err = t.stream(ctx, conn); worked {
				pause = minPause
			}
			r.ended(trailer)
		} else {
			t.unreachable()
		}
		if ctx.Err() == nil {
			k.owner.config.Logger.Debug("the stream to a shard ended and will be opened again", "to", k.to, "address", r.address, "reason", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, maxPause)
	}
}

// route finds the leader of a shard.
type route struct {
	link    *link
	conn    *grpc.ClientConn
	address string
	told    string
	tries   int
}

var errNoAddress = errors.New("no address of the shard is known: the oracle has not named one yet")

func (r *route) open() (*grpc.ClientConn, error) {
	address := r.told
	r.told = ""
	if address == "" {
		known := r.link.owner.config.Addresses(r.link.to)
		for range known {
			candidate := known[r.tries%len(known)]
			if candidate != r.link.owner.config.Self {
				address = candidate
				break
			}
			r.tries++
		}
	}
	if address == "" {
		return nil, errNoAddress
	}
	if r.conn != nil && r.address == address {
		return r.conn, nil
	}
	r.close()
	options := append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes), grpc.MaxCallSendMsgSize(maxMessageBytes)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: minPause, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxPause},
			MinConnectTimeout: 2 * time.Second,
		}),
	}, r.link.owner.config.DialOptions...)
	conn, err := grpc.NewClient(address, options...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s at %q: %w", r.link.to, address, err)
	}
	r.conn, r.address = conn, address
	return conn, nil
}

// ended looks at how a stream ended, and from it where to try next.
func (r *route) ended(trailer metadata.MD) {
	r.tries++
	if leaders := trailer.Get(LeaderTrailer); len(leaders) > 0 && leaders[0] != r.link.owner.config.Self && leaders[0] != r.address {
		r.told, r.tries = leaders[0], 0
	}
}

func (r *route) close() {
	if r.conn != nil {
		_ = r.conn.Close() // nothing is lost with it
		r.conn = nil
	}
}

// why tells the reason of a stream's end from its two halves: Send says only EOF.
func why(sendErr, recvErr error) error {
	if sendErr == nil || errors.Is(sendErr, io.EOF) || errors.Is(sendErr, context.Canceled) {
		return recvErr
	}
	return sendErr
}
