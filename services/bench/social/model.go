// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package social

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// The model keeps for each place of each timeline the posts that may be there.
// A write took effect between its start and its end; a write whose outcome is
// not known has no end. Write w is over when another, w', started after w's
// end; a read that began after the end of w' must not return w. This finds
// every violation of real-time order that involves two disjoint writes
// (M. Herlihy and J. Wing, "Linearizability", 1990, section 3.3, on registers
// of which each value is written once), and accuses no linearizable store.

// instant is a time of the monotonic clock in nanoseconds since the model began.
type instant int64

const never instant = math.MaxInt64

type write struct {
	number     uint64
	start, end instant
}

type place struct {
	writes []write
	// floor is when the last forgotten write was known to be over.
	floor instant
}

const (
	// keptWrites is how many writes of a place are remembered before those that
	// are over are forgotten.
	keptWrites = 8
	// maxWrites bounds those that can't be forgotten, because their outcome is
	// unknown. Beyond it the oldest is forgotten and the place no longer judged.
	maxWrites = 64
)

type timeline struct {
	mu     sync.Mutex
	next   int
	places [TimelinePosts]place
}

type model struct {
	began     time.Time
	timelines []timeline
	number    atomic.Uint64
}

func newModel(users int) *model {
	return &model{began: time.Now(), timelines: make([]timeline, users)}
}

func (m *model) now() instant { return instant(time.Since(m.began)) }

// target is one place that a post is written to.
type target struct {
	user  uint32
	place int
}

// begin numbers a post that will be written to the next place of each user's
// timeline. It must be called before the post is sent.
func (m *model) begin(users []uint32) (number uint64, targets []target) {
	number = m.number.Add(1)
	start := m.now()
	targets = make([]target, len(users))
	for i, user := range users {
		t := &m.timelines[user]
		t.mu.Lock()
		targets[i] = target{user, t.next}
		t.places[t.next].add(write{number, start, never})
		t.next = (t.next + 1) % TimelinePosts
		t.mu.Unlock()
	}
	return number, targets
}

// acknowledged notes that a post was acknowledged by now.
func (m *model) acknowledged(number uint64, targets []target) {
	end := m.now()
	for _, at := range targets {
		t := &m.timelines[at.user]
		t.mu.Lock()
		t.places[at.place].ended(number, end)
		t.mu.Unlock()
	}
}

func (p *place) add(w write) {
	p.writes = append(p.writes, w)
	if len(p.writes) <= keptWrites {
		return
	}
	p.forget()
	if len(p.writes) > maxWrites {
		p.floor = never
		p.writes = slices.Delete(p.writes, 0, 1)
	}
}

// forget drops the writes that are over, but for the newest keptWrites.
func (p *place) forget() {
	excess := len(p.writes) - keptWrites
	p.writes = slices.DeleteFunc(p.writes, func(w write) bool {
		over := p.overAt(w)
		if excess <= 0 || over == never {
			return false
		}
		excess--
		p.floor = max(p.floor, over)
		return true
	})
}

// overAt returns from when on no read may return w.
func (p *place) overAt(w write) instant {
	first := never
	for _, other := range p.writes {
		if other.start > w.end && other.end < first {
			first = other.end
		}
	}
	return first
}

func (p *place) ended(number uint64, end instant) {
	for i := range p.writes {
		if p.writes[i].number == number {
			p.writes[i].end = min(p.writes[i].end, end)
			return
		}
	}
}

// verdict on what a read returned.
type verdict uint8

const (
	fine verdict = iota
	// stale: a later write had been acknowledged, or seen, when the read began.
	stale
	// unjudged: too much happened to the place meanwhile to tell.
	unjudged
)

// judge says whether a read from start to end may return a post, or with number
// 0 an absent key, and remembers that the post has been seen.
func (m *model) judge(at target, number uint64, start, end instant) verdict {
	t := &m.timelines[at.user]
	t.mu.Lock()
	defer t.mu.Unlock()
	p := &t.places[at.place]
	i := slices.IndexFunc(p.writes, func(w write) bool { return w.number == number })
	if i >= 0 {
		if p.overAt(p.writes[i]) < start {
			return stale
		}
		p.writes[i].end = min(p.writes[i].end, end)
		return fine
	}
	if p.floor == never {
		return unjudged
	}
	if number == 0 && p.floor == 0 && p.overAt(write{end: -1}) >= start {
		return fine
	}
	if start > p.floor {
		return stale
	}
	return unjudged
}

// precedes says whether what a read returned was surely written, and over,
// before the post of that number and targets began: the reader that sees the
// post elsewhere must then see it, or a later one, here.
func (m *model) precedes(at target, number, post uint64) bool {
	t := &m.timelines[at.user]
	t.mu.Lock()
	defer t.mu.Unlock()
	p := &t.places[at.place]
	of := func(n uint64) int { return slices.IndexFunc(p.writes, func(w write) bool { return w.number == n }) }
	later := of(post)
	if later < 0 {
		return false // long over itself
	}
	if number == 0 {
		return true
	}
	earlier := of(number)
	return earlier >= 0 && p.writes[earlier].end < p.writes[later].start
}
