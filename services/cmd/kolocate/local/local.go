// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package local owns a whole store on one machine: the oracle, the shards and
// a real Envoy as child processes on loopback.
// It never takes part in what they do, and ends only what it started.
// The demo and tests of the whole data path start it.
package local

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/services/edge/translate"
)

// Config says what to start.
type Config struct {
	// Dir takes data, logs and Envoy's bootstrap; it must exist.
	Dir   string
	Store string
	// Shards is 1 to 64, Replicas 1 or 3.
	Shards, Replicas int
	// Kolocate, Partitioner and Envoy are paths of programs.
	Kolocate, Partitioner, Envoy string
	// Address is what Envoy listens on; empty: a free port.
	Address string
	// EnvoyThreads is the number of Envoy's worker threads.
	EnvoyThreads int
	// OracleFlags and ShardFlags are added to the command lines.
	OracleFlags, ShardFlags []string
}

// Store is a running store.
type Store struct {
	// Address is Envoy's: what clients dial. Oracle and Admin are the oracle's
	// gRPC server and Envoy's admin server.
	Address, Oracle, Admin string
	config                 Config
	children               []*child
	failed                 chan error
	conn                   *grpc.ClientConn
}

// readyTimeout bounds how long Start waits for all parts to serve.
const readyTimeout = 60 * time.Second

// Start starts a store and returns when Envoy routes to a leader of every
// shard. On an error nothing is left running; it names the part that failed
// and the end of its log.
func Start(ctx context.Context, config Config) (*Store, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	s := &Store{config: config, failed: make(chan error, 1)}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (c *Config) check() error {
	if c.Replicas != 1 && c.Replicas != 3 {
		return fmt.Errorf("start a local store: %d replicas a shard, expected 1 or 3", c.Replicas)
	}
	for _, program := range []struct{ name, path, advice string }{
		{"kolocate", c.Kolocate, "build it with make build"},
		{"the partitioner", c.Partitioner, "build it with make build and name it by --partitioner or KOLOCATE_PARTITIONER"},
		{"Envoy", c.Envoy, "fetch it with hack/deps/envoy.sh and name it by --envoy or KOLOCATE_ENVOY (make demo does both)"},
	} {
		info, err := os.Stat(program.path)
		if program.path == "" || err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			return fmt.Errorf("start a local store: %s is no program at %q; %s", program.name, program.path, program.advice)
		}
	}
	return nil
}

func (s *Store) start(ctx context.Context) error {
	replicas := s.config.Shards * s.config.Replicas
	ports, err := freePorts(ctx, 2+2+2*replicas)
	if err != nil {
		return err
	}
	next := func() string {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[0]))
		ports = ports[1:]
		return address
	}
	s.Address, s.Admin, s.Oracle = next(), next(), next()
	if s.config.Address != "" {
		s.Address = s.config.Address
	}
	if err := s.startOracle(next()); err != nil {
		return err
	}
	for shard := 1; shard <= s.config.Shards; shard++ {
		addresses := make([]string, s.config.Replicas)
		for i := range addresses {
			addresses[i] = next()
		}
		for i := range addresses {
			if err := s.startShard(shard, i+1, addresses, next()); err != nil {
				return err
			}
		}
	}
	if err := s.startEnvoy(); err != nil {
		return err
	}
	if s.conn, err = grpc.NewClient(s.Oracle, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		return err
	}
	return s.waitReady(ctx)
}

func (s *Store) startOracle(metrics string) error {
	arguments := []string{
		"oracle", "--store", s.config.Store, "--replica", "1", "--peers", "1=" + s.Oracle, "--data", filepath.Join(s.config.Dir, "oracle"),
		"--listen", s.Oracle, "--metrics", metrics, "--shards", strconv.Itoa(s.config.Shards), "--listener", s.Address,
		"--partitioner", "exec:" + s.config.Partitioner,
	}
	return s.launch("oracle", s.config.Kolocate, append(arguments, s.config.OracleFlags...))
}

func (s *Store) startShard(shard, replica int, addresses []string, metrics string) error {
	peers := make([]string, len(addresses))
	for i, address := range addresses {
		peers[i] = fmt.Sprintf("%d=%s", i+1, address)
	}
	name := fmt.Sprintf("shard-%d-%d", shard, replica)
	arguments := []string{
		"shard", "--store", s.config.Store, "--shard", strconv.Itoa(shard), "--replica", strconv.Itoa(replica),
		"--peers", strings.Join(peers, ","), "--data", filepath.Join(s.config.Dir, name), "--listen", addresses[replica-1],
		"--metrics", metrics, "--advertise", addresses[replica-1], "--oracle", s.Oracle,
	}
	return s.launch(name, s.config.Kolocate, append(arguments, s.config.ShardFlags...))
}

func (s *Store) startEnvoy() error {
	bootstrap, err := translate.Bootstrap(translate.BootstrapConfig{
		Store: s.config.Store, NodeID: s.config.Store + "-local", ControlPlane: []string{s.Oracle}, Admin: s.Admin,
	})
	if err != nil {
		return err
	}
	file := filepath.Join(s.config.Dir, "envoy.yaml")
	if err := os.WriteFile(file, bootstrap, 0o600); err != nil {
		return fmt.Errorf("write Envoy's bootstrap: %w", err)
	}
	return s.launch("envoy", s.config.Envoy, translate.Arguments(file, s.config.EnvoyThreads))
}

// Status asks the oracle for the state of the store.
func (s *Store) Status(ctx context.Context) (*oraclev1.StoreStatus, error) {
	return s.AdminClient().GetStatus(ctx, &oraclev1.GetStatusRequest{})
}

// AdminClient is a client of the oracle's admin calls.
func (s *Store) AdminClient() oraclev1.AdminClient { return oraclev1.NewAdminClient(s.conn) }

// waitReady returns when every shard serves and Envoy has the placement.
func (s *Store) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	missing := "the oracle does not answer yet"
	for {
		if status, err := s.Status(ctx); err == nil {
			if missing = notReady(status); missing == "" {
				return nil
			}
		}
		select {
		case err := <-s.failed:
			return err
		case <-ctx.Done():
			return fmt.Errorf("start a local store: not ready within %v: %s; logs are in %s", readyTimeout, missing, s.config.Dir)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func notReady(status *oraclev1.StoreStatus) string {
	for _, shard := range status.GetShards() {
		if !shard.GetReady() {
			return fmt.Sprintf("shard-%d: %s", shard.GetShard(), shard.GetMessage())
		}
	}
	if status.GetEpoch() == 0 || status.GetEdgeAcknowledgedEpoch() < status.GetEpoch() {
		return fmt.Sprintf("Envoy has epoch %d of %d", status.GetEdgeAcknowledgedEpoch(), status.GetEpoch())
	}
	return ""
}

// Failed receives the first failure of a part while the store runs.
func (s *Store) Failed() <-chan error { return s.failed }

// Stop ends all parts, Envoy first, and waits for them.
func (s *Store) Stop() error {
	var faults []error
	for i := len(s.children) - 1; i >= 0; i-- {
		faults = append(faults, s.children[i].stop())
	}
	if s.conn != nil {
		faults = append(faults, s.conn.Close())
	}
	return errors.Join(faults...)
}

// freePorts asks the system for ports that are free now.
func freePorts(ctx context.Context, count int) (ports []int, err error) {
	var listeners []net.Listener
	defer func() {
		for _, l := range listeners {
			err = errors.Join(err, l.Close())
		}
	}()
	for range count {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		listeners = append(listeners, l)
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			return nil, err
		}
		number, err := strconv.Atoi(port)
		if err != nil {
			return nil, err
		}
		ports = append(ports, number)
	}
	return ports, nil
}
