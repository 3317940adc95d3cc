// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"time"

	"github.com/kolocate/kolocate/services/keyspace"
)

// Config names a shard and bounds its state. All replicas of a shard must run
// with the same Config: the bounds decide what a log entry does. A bound left
// at 0 takes its default.
type Config struct {
	Store string
	Shard keyspace.ShardID
	// RecordRetention is how long, in log time, the record of an executed
	// update is kept for a client that has not acknowledged it. Default 10 min.
	RecordRetention time.Duration
	// MaxRecords bounds the records, MaxRecordBytes the results they hold; over
	// it the oldest go first. Defaults 1,000,000 and 256 MiB.
	MaxRecords     int
	MaxRecordBytes int
	// MaxQueued bounds commands that wait for held vertices. Default 16,384.
	MaxQueued int
	// MaxPending bounds multi-shard commands begun here and not yet finished.
	// Default 16,384.
	MaxPending int
	// MaxAttemptWindow bounds the distance from the oldest unfinished attempt
	// coordinated here to the newest, and so what participants must remember
	// of finished ones. Default 1,048,576.
	MaxAttemptWindow uint64
	// SweepKeys bounds the keys deleted in the background by one entry. Default 512.
	SweepKeys int
}

func (c Config) withDefaults() Config {
	setDefault(&c.RecordRetention, 10*time.Minute)
	setDefault(&c.MaxRecords, 1_000_000)
	setDefault(&c.MaxRecordBytes, 256<<20)
	setDefault(&c.MaxQueued, 16384)
	setDefault(&c.MaxPending, 16384)
	setDefault(&c.MaxAttemptWindow, 1<<20)
	setDefault(&c.SweepKeys, 512)
	return c
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate returns an error for a Config that no shard can run with.
func (c Config) Validate() error {
	if c.Store == "" {
		return fmt.Errorf("configure a shard: the store has no name; give one")
	}
	if c.Shard == keyspace.NoShard || c.Shard > keyspace.MaxShards {
		return fmt.Errorf("configure a shard of store %q: shard id %d, expected 1 to %d", c.Store, uint32(c.Shard), keyspace.MaxShards)
	}
	if c.RecordRetention < 0 || c.MaxRecords < 0 || c.MaxRecordBytes < 0 || c.MaxQueued < 0 || c.MaxPending < 0 || c.SweepKeys < 0 {
		return fmt.Errorf("configure %v of store %q: a bound is below zero; leave it at 0 for its default", c.Shard, c.Store)
	}
	return nil
}
