// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package keyspace owns the vocabulary of the store: keys, vertices, slots,
// shards, epochs and the placement that maps the first to the last.
// It does no I/O, keeps no state and imports only the standard library.
// Every other package speaks in its types.
package keyspace

import (
	"fmt"
	"strings"
)

// Limits of a command. Sizes are in bytes.
const (
	MaxKeyBytes     = 1 << 10
	MaxValueBytes   = 1 << 20
	MaxCommandBytes = 8 << 20
	// MaxCommandKeys bounds the keys that one command may declare.
	MaxCommandKeys = 4096
	// MaxScanEntries bounds the limit of a scan; DefaultScanEntries stands for a limit of 0.
	MaxScanEntries     = 10000
	DefaultScanEntries = 1000
)

// MaxShards bounds the number of shards of a store.
const MaxShards = 64

// ShardID names a shard, from 1 to MaxShards. Ids are never used again for
// another shard of the same store.
type ShardID uint32

// NoShard is the ShardID of no shard.
const NoShard ShardID = 0

// String returns the name a shard has in headers, Envoy clusters and
// Kubernetes objects: shard-1, shard-2, and so on.
func (s ShardID) String() string { return fmt.Sprintf("shard-%d", uint32(s)) }

// ParseShard reads a shard's name as String writes it.
func ParseShard(name string) (ShardID, error) {
	digits, ok := strings.CutPrefix(name, "shard-")
	if !ok {
		return NoShard, fmt.Errorf("read shard name %q: expected the form shard-N", name)
	}
	n := 0
	for _, c := range []byte(digits) {
		if c < '0' || c > '9' || n > MaxShards {
			return NoShard, fmt.Errorf("read shard name %q: expected a number from 1 to %d after shard-", name, MaxShards)
		}
		n = 10*n + int(c-'0')
	}
	if n < 1 || n > MaxShards || digits[0] == '0' {
		return NoShard, fmt.Errorf("read shard name %q: expected a number from 1 to %d after shard-", name, MaxShards)
	}
	return ShardID(n), nil
}

// Epoch numbers the versions of a store's placement. It only grows.
type Epoch uint64

// KeyError says that a key is outside its limits.
type KeyError struct {
	// Bytes is the length met.
	Bytes int
}

func (e *KeyError) Error() string {
	if e.Bytes == 0 {
		return fmt.Sprintf("key is empty: a key has 1 to %d bytes", MaxKeyBytes)
	}
	return fmt.Sprintf("key of %d bytes is too long: a key has 1 to %d bytes; shorten it or keep the rest in the value", e.Bytes, MaxKeyBytes)
}

// ValueError says that a value is over its limit.
type ValueError struct {
	// Bytes is the length met.
	Bytes int
}

func (e *ValueError) Error() string {
	return fmt.Sprintf("value of %d bytes is too long: a value has at most %d bytes; split it over several keys of one vertex", e.Bytes, MaxValueBytes)
}

// CheckKey returns a *KeyError if key is outside its limits.
func CheckKey(key []byte) error {
	if len(key) == 0 || len(key) > MaxKeyBytes {
		return &KeyError{Bytes: len(key)}
	}
	return nil
}

// CheckValue returns a *ValueError if value is over its limit.
func CheckValue(value []byte) error {
	if len(value) > MaxValueBytes {
		return &ValueError{Bytes: len(value)}
	}
	return nil
}
