// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"bytes"
	"io"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

type empty struct{}

func (empty) WriteTo(io.Writer) (int64, error) { return 0, nil }
func (empty) Close()                           {}

// BenchmarkHostPropose measures proposals of 200 bytes by 64, 256 and 1024 callers that each wait for
// their own, on a group of one with a real disk.
func BenchmarkHostPropose(b *testing.B) {
	for _, callers := range []int{1, 64, 256, 1024} {
		b.Run("callers="+strconv.Itoa(callers), func(b *testing.B) {
			state := newHistory()
			cfg := soleConfig(b, vfs.Default, b.TempDir(), state)
			cfg.StateMachine = &echo{}
			h := openSole(b, cfg)
			defer stop(b, h)
			state.waitLeader(b)
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			each := (b.N + callers - 1) / callers
			for range callers {
				wg.Go(func() {
					for range each {
						if err := h.ProposeWait(b.Context(), bytes.Repeat([]byte{1}, 200)); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(each*callers)/b.Elapsed().Seconds(), "proposals/s")
		})
	}
}

// echo applies nothing.
type echo struct{}

func (*echo) Apply([]Entry) error               { return nil }
func (*echo) Snapshot() (SnapshotWriter, error) { return empty{}, nil }
func (*echo) Restore(io.Reader) error           { return nil }

// BenchmarkClusterPropose measures the same on a group of three, over loopback, each with a real disk.
func BenchmarkClusterPropose(b *testing.B) {
	const callers = 256
	c := newCluster(b, 3, func(cfg *Config) {
		cfg.StateMachine = &echo{}
		cfg.TickInterval, cfg.ElectionTimeout = 100*time.Millisecond, time.Second
	})
	_, leader := c.leader()
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	each := (b.N + callers - 1) / callers
	for range callers {
		wg.Go(func() {
			for range each {
				if err := leader.ProposeWait(b.Context(), bytes.Repeat([]byte{1}, 200)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(each*callers)/b.Elapsed().Seconds(), "proposals/s")
}
