// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// Metadata names of the store's protocol.
const (
	shardHeader   = "x-kolocate-shard"
	leaderTrailer = "x-kolocate-leader"
)

// dialer opens Execute streams to one shard: through the configured target, or
// straight to the replica that is believed to lead. One goroutine uses it.
type dialer struct {
	client  *Client
	shard   keyspace.ShardID
	conn    *grpc.ClientConn
	address string
	// told is where the last replica said the leader is; tries counts the
	// replicas tried since one served.
	told  string
	tries int
}

// open opens a stream. ctx bounds the stream's life.
func (d *dialer) open(ctx context.Context) (kvv1.KV_ExecuteClient, error) {
	address, err := d.choose()
	if err != nil {
		return nil, err
	}
	if d.conn == nil || d.address != address {
		d.close()
		if d.conn, err = d.client.config.dial(address); err != nil {
			return nil, fmt.Errorf("connect to %s at %q: %w", d.shard, address, err)
		}
		d.address = address
	}
	ctx = metadata.AppendToOutgoingContext(ctx, shardHeader, d.shard.String())
	stream, err := kvv1.NewKVClient(d.conn).Execute(ctx)
	if err != nil {
		d.tries++
		return nil, fmt.Errorf("open a stream to %s at %q: %w", d.shard, address, err)
	}
	return stream, nil
}

func (d *dialer) choose() (string, error) {
	if !d.client.config.Direct {
		return d.client.config.Target, nil
	}
	if told := d.told; told != "" {
		d.told = ""
		return told, nil
	}
	replicas := d.client.cache.replicas(d.shard)
	if len(replicas) == 0 {
		return "", fmt.Errorf("connect to %s: the oracle knows no replica of it", d.shard)
	}
	return replicas[d.tries%len(replicas)], nil
}

// ended looks at how a stream ended, and from it where to try next.
func (d *dialer) ended(stream kvv1.KV_ExecuteClient, err error) {
	d.tries++
	if err == nil {
		return
	}
	if leaders := stream.Trailer().Get(leaderTrailer); len(leaders) > 0 && leaders[0] != "" && leaders[0] != d.address {
		d.told, d.tries = leaders[0], 0
	}
}

func (d *dialer) close() {
	if d.conn != nil {
		_ = d.conn.Close() // nothing is lost by a failed close
		d.conn = nil
	}
}

// links are the ways to all shards, opened when first used.
type links struct {
	client *Client

	mu     sync.Mutex
	byID   [keyspace.MaxShards + 1]*link
	closed bool
}

func newLinks(c *Client) *links { return &links{client: c} }

func (l *links) get(shard keyspace.ShardID) (*link, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errClosed
	}
	if l.byID[shard] == nil {
		opened := newLink(l.client, shard)
		l.byID[shard] = opened
		l.client.goDo(opened.run)
	}
	return l.byID[shard], nil
}

func (l *links) all() []*link {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []*link
	for _, k := range &l.byID {
		if k != nil {
			all = append(all, k)
		}
	}
	return all
}

func (l *links) sweep(now time.Time) {
	for _, k := range l.all() {
		k.sweep(now)
	}
}

// shut makes get fail from now on.
func (l *links) shut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

func (l *links) failAll() {
	for _, k := range l.all() {
		k.failAll()
	}
}

func (l *links) close() error {
	var failures []error
	for _, k := range l.all() {
		if k.dialer.conn != nil {
			failures = append(failures, k.dialer.conn.Close())
		}
	}
	return errors.Join(failures...)
}
