// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ir owns the description of what an Envoy in front of a store must know.
// It knows nothing of Envoy's own resources, and does no I/O.
// The oracle builds an Edge from its placement; translate turns it into xDS.
package ir

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/kolocate/kolocate/services/keyspace"
)

// DefaultMaxOverrides bounds the override table where Edge.MaxOverrides is 0.
// Envoy 1.40 holds that many in about 80 MB.
const DefaultMaxOverrides = 50_000

// DefaultHealthInterval is how often Envoy asks each replica whether it leads
// where Edge.HealthInterval is 0.
const DefaultHealthInterval = 250 * time.Millisecond

// Edge is what Envoy must know of one store at one epoch.
type Edge struct {
	Epoch keyspace.Epoch
	Store string
	// Slots names the home of each slot.
	Slots [keyspace.Slots]keyspace.ShardID
	// Overrides lists the vertices placed elsewhere, hottest first.
	Overrides []Override
	// MaxOverrides bounds how many of Overrides Envoy is given; 0 means
	// DefaultMaxOverrides. Vertices beyond it are routed by their slot, and the
	// shard there forwards them.
	MaxOverrides int
	// Shards lists every shard, with or without known replicas.
	Shards []Shard
	// Oracle lists the gRPC addresses (host:port) of the oracle's replicas.
	Oracle []string
	// Listener is the host:port that Envoy listens on; the host is an IP address.
	Listener string
	// HealthInterval is the time between two health checks of a replica; 0 means
	// DefaultHealthInterval.
	HealthInterval time.Duration
	// AccessLog makes Envoy write a line on standard output for each request.
	AccessLog bool
}

// Override places one vertex elsewhere than its slot says.
type Override struct {
	Vertex keyspace.Vertex
	Shard  keyspace.ShardID
}

// Shard is one shard and where its replicas serve.
type Shard struct {
	ID       keyspace.ShardID
	Replicas []Endpoint
}

// Endpoint is one replica's gRPC server.
type Endpoint struct {
	// Address is host:port. With IP addresses alone a shard's endpoints are sent
	// by EDS; one host name among them makes Envoy resolve the shard's by DNS.
	Address string
	// Leader is what the oracle last heard. Envoy goes by its own health checks,
	// and by this where several replicas of a shard pass them.
	Leader bool
}

// Kept returns the overrides within the bound, hottest first. The caller must
// not change them.
func (e *Edge) Kept() []Override {
	return e.Overrides[:min(len(e.Overrides), e.maxOverrides())]
}

// Dropped returns how many overrides are beyond the bound.
func (e *Edge) Dropped() int { return len(e.Overrides) - len(e.Kept()) }

func (e *Edge) maxOverrides() int {
	if e.MaxOverrides == 0 {
		return DefaultMaxOverrides
	}
	return e.MaxOverrides
}

// Validate returns every fault that would make Envoy route wrongly or refuse
// its configuration, joined; nil if there is none. Too many overrides are no
// fault: see Kept and Dropped.
func (e *Edge) Validate() error {
	known, err := e.validateShards()
	faults := []error{err, e.validateSlots(known), e.validateOverrides(known), e.validateAddresses()}
	if e.Epoch == 0 {
		faults = append(faults, errors.New("epoch is 0: expected 1 or more, as the oracle numbers placements"))
	}
	if e.MaxOverrides < 0 {
		faults = append(faults, fmt.Errorf("bound of overrides is %d: expected 0 (the default) or more", e.MaxOverrides))
	}
	if e.HealthInterval < 0 {
		faults = append(faults, fmt.Errorf("health check interval is %v: expected 0 (the default) or more", e.HealthInterval))
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("check edge of store %q at epoch %d: %w", e.Store, e.Epoch, err)
	}
	return nil
}

func (e *Edge) validateShards() (map[keyspace.ShardID]bool, error) {
	if len(e.Shards) == 0 {
		return nil, errors.New("no shards: expected at least one")
	}
	var faults []error
	known := make(map[keyspace.ShardID]bool, len(e.Shards))
	for _, shard := range e.Shards {
		if shard.ID == keyspace.NoShard || shard.ID > keyspace.MaxShards {
			faults = append(faults, fmt.Errorf("shard id %d: expected 1 to %d", shard.ID, keyspace.MaxShards))
		}
		if known[shard.ID] {
			faults = append(faults, fmt.Errorf("%v is listed twice", shard.ID))
		}
		known[shard.ID] = true
		seen := make(map[string]bool, len(shard.Replicas))
		for _, replica := range shard.Replicas {
			if err := checkAddress(replica.Address); err != nil {
				faults = append(faults, fmt.Errorf("replica of %v: %w", shard.ID, err))
			}
			if seen[replica.Address] {
				faults = append(faults, fmt.Errorf("replica of %v: address %q is listed twice", shard.ID, replica.Address))
			}
			seen[replica.Address] = true
		}
	}
	return known, errors.Join(faults...)
}

// validateSlots names the first slot of each unknown shard only.
func (e *Edge) validateSlots(known map[keyspace.ShardID]bool) error {
	var faults []error
	reported := make(map[keyspace.ShardID]bool)
	for slot := range e.Slots {
		shard := e.Slots[slot]
		if known[shard] || reported[shard] {
			continue
		}
		reported[shard] = true
		if shard == keyspace.NoShard {
			faults = append(faults, fmt.Errorf("slot %d has no shard", slot))
			continue
		}
		faults = append(faults, fmt.Errorf("slot %d is at %v, which is not listed", slot, shard))
	}
	return errors.Join(faults...)
}

// validateOverrides stops at the first fault of each kind.
func (e *Edge) validateOverrides(known map[keyspace.ShardID]bool) error {
	seen := make(map[keyspace.Vertex]bool, len(e.Overrides))
	for _, override := range e.Overrides {
		if err := keyspace.CheckKey([]byte(override.Vertex)); err != nil {
			return fmt.Errorf("override of vertex %q: %w", override.Vertex, err)
		}
		if !known[override.Shard] {
			return fmt.Errorf("override of vertex %q names shard %d, which is not listed", override.Vertex, override.Shard)
		}
		if seen[override.Vertex] {
			return fmt.Errorf("override of vertex %q is listed twice", override.Vertex)
		}
		seen[override.Vertex] = true
	}
	return nil
}

func (e *Edge) validateAddresses() error {
	var faults []error
	if host, _, err := net.SplitHostPort(e.Listener); err == nil && net.ParseIP(host) == nil {
		faults = append(faults, fmt.Errorf("listener %q: expected an IP address before the port, such as 0.0.0.0", e.Listener))
	}
	if err := checkAddress(e.Listener); err != nil {
		faults = append(faults, fmt.Errorf("listener: %w", err))
	}
	if len(e.Oracle) == 0 {
		faults = append(faults, errors.New("no oracle address: expected at least one"))
	}
	for i, address := range e.Oracle {
		if err := checkAddress(address); err != nil {
			faults = append(faults, fmt.Errorf("oracle: %w", err))
		}
		if slices.Contains(e.Oracle[:i], address) {
			faults = append(faults, fmt.Errorf("oracle: address %q is listed twice", address))
		}
	}
	return errors.Join(faults...)
}

func checkAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		return fmt.Errorf("address %q: expected host:port", address)
	}
	if number, err := strconv.ParseUint(port, 10, 16); err != nil || number == 0 {
		return fmt.Errorf("address %q: expected a port from 1 to 65535", address)
	}
	return nil
}
