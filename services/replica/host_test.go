// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSoleMemberLeadsAtOnce(t *testing.T) {
	state := newHistory()
	cfg := soleConfig(t, vfs.Default, t.TempDir(), state)
	// No tick comes: a sole member that waited for one would never lead.
	cfg.TickInterval, cfg.ElectionTimeout = time.Hour, 10*time.Hour
	h := openSole(t, cfg)
	defer stop(t, h)
	state.waitLeader(t)
}

func TestSoleMemberRestarts(t *testing.T) {
	dir := t.TempDir()
	var want []string
	for round := range 4 {
		state := newHistory()
		cfg := soleConfig(t, vfs.Default, dir, state)
		cfg.SnapshotEveryBytes, cfg.KeepLogBytes = 20_000, 1
		h := openSole(t, cfg)
		state.waitLeader(t)
		if got := state.get(); !slices.Equal(got, want) {
			t.Fatalf("round %d: %d entries after the restart, expected %d", round, len(got), len(want))
		}
		for i := range 200 {
			data := fmt.Sprintf("round %d entry %d", round, i)
			want = append(want, data)
			if err := h.ProposeWait(testContext(t), []byte(data)); err != nil {
				t.Fatal(err)
			}
		}
		var seen int
		if err := h.Read(testContext(t), func() { seen = len(state.applied) }); err != nil || seen != len(want) {
			t.Fatalf("read %d entries and error %v, expected %d", seen, err, len(want))
		}
		if round%2 == 0 {
			stop(t, h)
		} else {
			kill(t, h)
		}
		if err := h.Propose([]byte("x")); !errors.Is(err, ErrStopped) {
			t.Fatalf("a stopped replica answers a proposal with %v", err)
		}
		if err := h.Read(testContext(t), func() {}); !errors.Is(err, ErrStopped) {
			t.Fatalf("a stopped replica answers a read with %v", err)
		}
	}
}
