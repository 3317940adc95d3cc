// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"
)

// useCommandLine writes and reads by the command line through Envoy, and looks
// at the status as a person would.
func useCommandLine(t *testing.T, k *cluster) {
	address := k.forward(t, storeNamespace, "service/"+storeName+"-edge", 8080)
	k.must(t, 30*time.Second, "", k.kolocate, "kv", "put", "--address", address, "{alice}name", "Alice")
	if got := k.must(t, 30*time.Second, "", k.kolocate, "kv", "get", "--address", address, "{alice}name"); strings.TrimSpace(got) != "Alice" {
		t.Errorf("kolocate kv get printed %q, expected Alice", got)
	}
	k.say(t, "\n%s", k.must(t, 30*time.Second, "", k.kolocate, "status", "--address", address))
	out := k.must(t, 30*time.Second, "", k.kolocate, "placement", "--address", address, "{alice}name", "{bob}name")
	for _, word := range []string{"alice", "bob", "shard-"} {
		if !strings.Contains(out, word) {
			t.Errorf("kolocate placement printed %q without %q", out, word)
		}
	}
}
