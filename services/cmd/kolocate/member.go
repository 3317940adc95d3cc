// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// memberFlags say which member of which Raft group a process is.
type memberFlags struct {
	store    string
	replica  uint64
	podName  string
	peers    string
	data     string
	listen   string
	metrics  string
	tick     time.Duration
	election time.Duration
}

func (f *memberFlags) add(command *cobra.Command, port int) {
	flags := command.Flags()
	flags.StringVar(&f.store, "store", "", "name of the store")
	flags.Uint64Var(&f.replica, "replica", 0, "id of this replica, from 1")
	flags.StringVar(&f.podName, "pod-name", "", "take the replica's id from the ordinal of this StatefulSet pod (NAME-0 is replica 1)")
	flags.StringVar(&f.peers, "peers", "", "all replicas, this one included: 1=HOST:PORT,2=HOST:PORT,...")
	flags.StringVar(&f.data, "data", "", "folder for the log and the snapshots")
	flags.StringVar(&f.listen, "listen", fmt.Sprintf(":%d", port), "address of the gRPC server")
	flags.StringVar(&f.metrics, "metrics", fmt.Sprintf(":%d", port+1), "address of the HTTP server with /metrics and /healthz")
	flags.DurationVar(&f.tick, "tick", 100*time.Millisecond, "unit of Raft's time and interval of its heartbeats")
	flags.DurationVar(&f.election, "election-timeout", time.Second, "silence of a leader after which another is elected")
}

// member is what memberFlags say, checked.
type member struct {
	replica uint64
	peers   map[uint64]string
}

func (f *memberFlags) parse() (m member, err error) {
	if f.store == "" {
		return m, errors.New("--store is missing: name the store that this process belongs to")
	}
	if f.data == "" {
		return m, errors.New("--data is missing: name a folder for the log and the snapshots")
	}
	if m.peers, err = parsePeers(f.peers); err != nil {
		return m, err
	}
	m.replica = f.replica
	if f.podName != "" {
		if m.replica, err = replicaOfPod(f.podName); err != nil {
			return m, err
		}
	}
	if _, ok := m.peers[m.replica]; !ok {
		return m, fmt.Errorf("replica %d is not among --peers %q; expected an entry for each replica, this one included", m.replica, f.peers)
	}
	return m, nil
}

func parsePeers(text string) (map[uint64]string, error) {
	peers := map[uint64]string{}
	for part := range strings.SplitSeq(text, ",") {
		name, address, ok := strings.Cut(part, "=")
		id, err := strconv.ParseUint(name, 10, 64)
		if !ok || err != nil || id == 0 {
			return nil, fmt.Errorf("read --peers: %q, expected the form 1=HOST:PORT", part)
		}
		if _, _, err := net.SplitHostPort(address); err != nil {
			return nil, fmt.Errorf("read --peers: address %q of replica %d, expected HOST:PORT", address, id)
		}
		if _, twice := peers[id]; twice {
			return nil, fmt.Errorf("read --peers: replica %d is named twice", id)
		}
		peers[id] = address
	}
	return peers, nil
}

func replicaOfPod(pod string) (uint64, error) {
	dash := strings.LastIndexByte(pod, '-')
	ordinal, err := strconv.ParseUint(pod[dash+1:], 10, 32)
	if dash < 0 || err != nil {
		return 0, fmt.Errorf("read --pod-name %q: expected a StatefulSet pod's name that ends in its ordinal, as in NAME-0", pod)
	}
	return ordinal + 1, nil
}
