// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package social

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// memory is a linearizable store in one lock, and, with a fault, one that is not.
type memory struct {
	fault  string
	mu     sync.Mutex
	random *rand.Rand
	values map[string][]byte
	old    map[string][]byte // as values a while ago
	calls  int
	enough func() // called when there were enoughCalls
}

// Faults begin after faultyFrom calls, when timelines are filled.
const faultyFrom, enoughCalls = 1000, 6000

func newMemory(fault string) *memory {
	return &memory{fault: fault, random: rand.New(rand.NewPCG(1, 2)), values: map[string][]byte{}, old: map[string][]byte{}}
}

var errLost = errors.New("connection lost")

func (m *memory) Do(_ context.Context, command *kvv1.Command) (*kvv1.Reply, error) {
	runtime.Gosched()
	defer runtime.Gosched()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.calls++; m.calls == enoughCalls {
		m.enough()
	}
	if m.calls%997 == 0 {
		for key, value := range m.values {
			m.old[key] = value
		}
	}
	first := command.GetThenOps()[0]
	switch first.GetKind() {
	case kvv1.OpKind_OP_KIND_SCAN_VERTEX:
		return m.scan(command.GetKeys()[0], first), nil
	case kvv1.OpKind_OP_KIND_GET:
		return m.get(command), nil
	default:
		return m.put(command)
	}
}

func (m *memory) happens(fault string) bool {
	return m.fault == fault && m.calls > faultyFrom && m.random.IntN(50) == 0
}

func (m *memory) scan(start []byte, op *kvv1.Op) *kvv1.Reply {
	from := m.values
	if m.happens("stale read") {
		from = m.old
	}
	vertex := keyspace.VertexOf(string(start))
	result := new(kvv1.OpResult)
	for key, value := range from {
		if keyspace.VertexOf(key) == vertex && key >= string(start) && key < string(op.GetEnd()) {
			result.Entries = append(result.Entries, &kvv1.KeyValue{Key: []byte(key), Value: value})
		}
	}
	slices.SortFunc(result.Entries, func(a, b *kvv1.KeyValue) int { return bytes.Compare(a.GetKey(), b.GetKey()) })
	return &kvv1.Reply{Result: &kvv1.Result{Ops: []*kvv1.OpResult{result}}}
}

func (m *memory) get(command *kvv1.Command) *kvv1.Reply {
	result := new(kvv1.Result)
	for _, key := range command.GetKeys() {
		value, found := m.values[string(key)]
		result.Ops = append(result.Ops, &kvv1.OpResult{Found: found, Value: value})
	}
	return &kvv1.Reply{Result: result}
}

func (m *memory) put(command *kvv1.Command) (*kvv1.Reply, error) {
	if m.happens("error before") {
		return nil, errLost
	}
	skip, damaged, torn := m.happens("lost write"), m.happens("damaged value"), m.fault == "torn write" && m.calls > faultyFrom
	for i, key := range command.GetKeys() {
		value := command.GetThenOps()[i].GetValue()
		switch {
		case skip && i == len(command.GetKeys())-1:
			continue
		case damaged && i == 0:
			value = slices.Concat([]byte{^value[0]}, value[1:])
		case torn && i == len(command.GetKeys())/2:
			m.mu.Unlock()
			for range 20 {
				runtime.Gosched()
			}
			m.mu.Lock()
		}
		m.values[string(key)] = value
	}
	if m.happens("error after") {
		return nil, errLost
	}
	return &kvv1.Reply{MultiShard: len(command.GetKeys()) > 1}, nil
}

func run(t *testing.T, fault string) (*Workload, Verification) {
	t.Helper()
	g, err := Generate(GenerateConfig{Users: 60, MeanFriends: 6, Seed: 5})
	if err != nil {
		t.Fatal(err)
	}
	store := newMemory(fault)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	store.enough = cancel
	w, err := New(Config{Graph: g, Store: store, Workers: 8, PostShare: 0.3, AuditShare: 0.2, Seed: 9})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Phase("only")
	w.Run(ctx)
	w.Phase("")
	v, err := w.Verify(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%q: %+v %+v, %d commands", fault, w.Totals(), v, w.Phases()[0].Commands)
	return w, v
}

// Property: a linearizable store is not accused, commands of unknown outcome included.
func TestLinearizableStoreIsNotAccused(t *testing.T) {
	for _, fault := range []string{"", "error before", "error after"} {
		w, v := run(t, fault)
		totals := w.Totals()
		if totals.StaleReads+totals.Torn+totals.Damaged+v.Lost+v.Damaged != 0 {
			t.Errorf("with %q: %+v, %+v; want nothing found", fault, totals, v)
		}
		phase := w.Phases()[0]
		if (fault != "") != (phase.Errors > 0) || (fault != "") != (len(w.Errors()) > 0) {
			t.Errorf("with %q: %d errors, texts %q", fault, phase.Errors, w.Errors())
		}
		if phase.Reads+phase.Posts != phase.Commands || phase.MPOShare() < 0.2 || phase.MPOShare() > 0.4 || phase.Throughput() <= 0 || phase.P99 < phase.P50 {
			t.Errorf("with %q: measures %+v", fault, phase)
		}
	}
}

// Each fault that the check is for is found.
func TestFaultsAreFound(t *testing.T) {
	for fault, found := range map[string]func(Totals, Verification) bool{
		"stale read":    func(s Totals, _ Verification) bool { return s.StaleReads > 0 },
		"lost write":    func(s Totals, v Verification) bool { return v.Lost > 0 && s.StaleReads > 0 },
		"torn write":    func(s Totals, _ Verification) bool { return s.Torn > 0 },
		"damaged value": func(s Totals, _ Verification) bool { return s.Damaged > 0 },
	} {
		if w, v := run(t, fault); !found(w.Totals(), v) {
			t.Errorf("%s was not found: %+v, %+v", fault, w.Totals(), v)
		}
	}
}

// Places with many overwritten posts stay small and are judged all the same.
func TestPlacesForgetOnlyWhatIsOver(t *testing.T) {
	m := newModel(1)
	at := target{0, 0}
	var numbers []uint64
	for range 100 {
		number := m.number.Add(1)
		p := &m.timelines[0].places[0]
		p.add(write{number, m.now(), never})
		m.acknowledged(number, []target{at})
		numbers = append(numbers, number)
	}
	if kept := len(m.timelines[0].places[0].writes); kept > keptWrites+1 {
		t.Errorf("%d writes are kept, want at most %d", kept, keptWrites+1)
	}
	now := m.now() + 1
	for i, number := range append(numbers, 0) {
		want := stale
		if i == len(numbers)-1 {
			want = fine
		}
		if got := m.judge(at, number, now, now); got != want {
			t.Errorf("a read of post %d is judged %d, want %d", number, got, want)
		}
	}
	if got := m.judge(at, numbers[0], 0, now); got != unjudged {
		t.Errorf("a read that began before all is judged %d, want unjudged", got)
	}
	for range 2 * maxWrites {
		m.begin([]uint32{0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	}
	if kept := len(m.timelines[0].places[0].writes); kept > maxWrites {
		t.Errorf("%d writes of unknown outcome are kept, want at most %d", kept, maxWrites)
	}
}

func TestGenerateIsSeededAndHasCommunities(t *testing.T) {
	a, err := Generate(GenerateConfig{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	b, err := Generate(GenerateConfig{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(a.friends, b.friends) {
		t.Error("one seed gave two networks")
	}
	most, total := 0, 0
	for u := range a.Users() {
		friends := a.Friends(u)
		if !slices.IsSorted(friends) || slices.Contains(friends, uint32(u)) {
			t.Fatalf("friends of %d are not ascending, or name the user: %v", u, friends)
		}
		for _, f := range friends {
			if !slices.Contains(a.Friends(int(f)), uint32(u)) {
				t.Fatalf("%d is a friend of %d, not the other way round", f, u)
			}
		}
		most, total = max(most, len(friends)), total+len(friends)
	}
	mean := float64(total) / float64(a.Users())
	if a.Users() != 10_000 || mean < 12 || mean > 24 || most < 80 || total != 2*a.Edges() {
		t.Errorf("%d users with %v friends on average and %d at most", a.Users(), mean, most)
	}
	for _, bad := range []GenerateConfig{{Users: 1}, {Communities: -1}, {MeanFriends: -2}, {Mixing: 2}, {Users: 1 << 30}} {
		if _, err := Generate(bad); err == nil {
			t.Errorf("Generate(%+v) succeeded, want an error", bad)
		}
	}
}

func TestReadGraph(t *testing.T) {
	plain := "# a comment\n7 3\n3 7\n3 3\n\n  3 9  \n"
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write([]byte(plain)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{plain, zipped.String()} {
		g, err := Read("g.txt", strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if g.Users() != 3 || g.Edges() != 2 || g.Name(1) != 3 || !slices.Equal(g.Friends(1), []uint32{0, 2}) {
			t.Errorf("read %d users, %d edges, friends of 3: %v", g.Users(), g.Edges(), g.Friends(1))
		}
	}
	for text, want := range map[string]string{
		"1 2\n1 x\n":              `g.txt": line 2: "1 x": expected two numbers`,
		"1 2 3\n":                 "line 1",
		"":                        "no edge in 0 lines",
		"4 4\n":                   "two different numbers",
		"-1 2\n":                  "expected two numbers from 0 on",
		strings.Repeat("1", 5000): "token too long",
		"\x1f\x8bnot really":      "starts as a gzip file",
		zipped.String()[:20]:      "unexpected EOF",
	} {
		if _, err := Read("g.txt", strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: got %v, want an error with %q", text, err, want)
		}
	}
	if _, err := ReadFile(t.TempDir() + "/none"); err == nil || !strings.Contains(err.Error(), "name an edge list") {
		t.Errorf("got %v, want an error that says what to do", err)
	}
}

func TestNewRefuses(t *testing.T) {
	g, err := Generate(GenerateConfig{Users: 10, MeanFriends: 2})
	if err != nil {
		t.Fatal(err)
	}
	good := Config{Graph: g, Store: newMemory("")}
	for _, spoil := range []func(*Config){
		func(c *Config) { c.Graph = nil },
		func(c *Config) { c.Store = nil },
		func(c *Config) { c.Workers = -1 },
		func(c *Config) { c.PostShare = 1.5 },
		func(c *Config) { c.Timeout = -1 },
	} {
		bad := good
		spoil(&bad)
		if _, err := New(bad); err == nil {
			t.Errorf("New(%+v) succeeded, want an error", bad)
		}
	}
}
