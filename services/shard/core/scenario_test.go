// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// TestScenarios plays the protocol's stories step by step. Rewrite the expected
// output with -rewrite, and commit the change only if you understand its cause.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &cast{t: t, now: time.UnixMilli(1000)}
		datadriven.RunTest(t, path, s.run)
	})
}

// cast is a cast of shards whose entries and messages wait for their cue.
type cast struct {
	t       *testing.T
	now     time.Time
	players []*player
	mail    []packet
	origin  uint64
	out     strings.Builder
}

type player struct {
	id        keyspace.ShardID
	core      *Core
	leader    *Leader
	index     uint64
	term      uint64
	proposals []*shardv1.Entry
}

func (s *cast) run(t *testing.T, d *datadriven.TestData) string {
	s.t = t
	s.out.Reset()
	switch d.Cmd {
	case "shards":
		s.shards(d)
	case "do":
		s.do(d)
	case "log":
		s.log(s.player(d), d)
	case "send":
		s.deliver(d)
	case "drop":
		s.mail = nil
	case "settle":
		s.settle()
	case "wait":
		s.wait(d)
	case "new-leader":
		s.newLeader(s.player(d))
	case "move":
		s.move(d)
	case "abort":
		s.abort(d)
	case "owners":
		s.owners(d)
	default:
		t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
	}
	return s.out.String()
}

func (s *cast) say(format string, args ...any) { fmt.Fprintf(&s.out, format+"\n", args...) }

func number(t *testing.T, d *datadriven.TestData, name string, otherwise int) int {
	t.Helper()
	for _, arg := range d.CmdArgs {
		if arg.Key == name {
			n, err := strconv.Atoi(arg.Vals[0])
			if err != nil {
				t.Fatalf("%s: %s=%q: expected a number", d.Pos, name, arg.Vals[0])
			}
			return n
		}
	}
	return otherwise
}

func (s *cast) player(d *datadriven.TestData) *player {
	return s.players[number(s.t, d, "shard", 1)-1]
}

// shards: n=N, each owning the vertices named "a…", "b…", and so on: the slots
// of single letters are given out in turn.
func (s *cast) shards(d *datadriven.TestData) {
	for i := range number(s.t, d, "n", 2) {
		id := keyspace.ShardID(i + 1)
		p := &player{id: id, core: New(testConfig(id)), term: 1}
		p.leader = NewLeader(p.core, LeaderConfig{Term: 1}, s.now)
		s.players = append(s.players, p)
		slot := uint32(keyspace.SlotOf(keyspace.Vertex(rune('a' + i))))
		p.proposals = []*shardv1.Entry{{Body: &shardv1.Entry_Genesis{Genesis: &shardv1.Genesis{
			Store: "test", Shard: uint32(id), Slots: []*shardv1.SlotRange{{First: slot, Last: slot}},
		}}}}
		s.apply(p, 1)
	}
}

// do: coordinator or shard, then one op a line: get KEY, put KEY VALUE,
// increment KEY, scan START END.
func (s *cast) do(d *datadriven.TestData) {
	p := s.player(d)
	cmd := &kvv1.Command{}
	if id := number(s.t, d, "id", 0); id > 0 {
		cmd.Id = &kvv1.CommandId{Client: 1, Sequence: uint64(id)}
	}
	at := map[keyspace.Vertex]keyspace.ShardID{}
	for _, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
		word := strings.Fields(line)
		key := uint32(len(cmd.Keys))
		cmd.Keys = append(cmd.Keys, []byte(word[1]))
		v := keyspace.VertexOf(word[1])
		at[v] = s.claimed(p, v, d)
		cmd.ThenOps = append(cmd.ThenOps, scenarioOp(word, key))
	}
	s.origin++
	claims := claimsOf(cmd, at)
	if len(claims) == 1 {
		p.proposals = append(p.proposals, &shardv1.Entry{Body: &shardv1.Entry_Commands{Commands: &shardv1.Commands{
			Commands: []*shardv1.Submitted{{Origin: s.origin, Command: cmd}},
		}}})
		s.say("command %d waits for the log of %v", s.origin, p.id)
		return
	}
	p.leader.Submit(s.origin, cmd, claims)
	s.take(p)
}

// claimed says where a vertex is believed to be: claim=SHARD forces all that are
// not at the coordinator to one shard.
func (s *cast) claimed(p *player, v keyspace.Vertex, d *datadriven.TestData) keyspace.ShardID {
	if forced := number(s.t, d, "claim", 0); forced > 0 && !p.core.owner.has(v) {
		return keyspace.ShardID(forced)
	}
	for _, other := range s.players {
		if other.core.owner.has(v) {
			return other.id
		}
	}
	s.t.Fatalf("%s: vertex %q has no owner", d.Pos, v)
	return keyspace.NoShard
}

func scenarioOp(word []string, key uint32) *kvv1.Op {
	switch word[0] {
	case "put":
		return &kvv1.Op{Kind: kvv1.OpKind_OP_KIND_PUT, Key: key, Value: []byte(word[2])}
	case "increment":
		return &kvv1.Op{Kind: kvv1.OpKind_OP_KIND_INCREMENT, Key: key, Delta: 1}
	}
	return &kvv1.Op{Kind: kvv1.OpKind_OP_KIND_GET, Key: key}
}

// take shows what a leader wants to propose and to send, and queues it.
func (s *cast) take(p *player) {
	propose, send := p.leader.Output()
	for _, e := range propose {
		p.proposals = append(p.proposals, e)
		s.say("%v proposes %s", p.id, tellEntry(e))
	}
	for _, out := range send {
		s.mail = append(s.mail, packet{from: p.id, to: out.To, message: out.Message})
		s.say("%v to %v: %s", p.id, out.To, tellMessage(out.Message))
	}
}

// apply applies the first n proposals of a shard.
func (s *cast) apply(p *player, n int) {
	for ; n > 0 && len(p.proposals) > 0; n-- {
		e := p.proposals[0]
		p.proposals = p.proposals[1:]
		p.index++
		effects, err := p.core.Apply(p.index, e)
		if err != nil {
			s.t.Fatal(err)
		}
		s.say("%v logs %s", p.id, tellEntry(e))
		for _, effect := range effects {
			switch effect.Kind {
			case EffectReply:
				s.say("%v answers command %d: %s", p.id, effect.Origin, tellReply(effect.Reply))
			case EffectHandoff:
				s.say("%v: handoff %d is %v%s", p.id, effect.Handoff.ID, effect.Handoff.Step, tellReason(effect.Handoff.Reason))
			}
		}
		p.leader.Applied(effects, s.now)
		s.take(p)
	}
	if err := p.core.CheckInvariants(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *cast) log(p *player, d *datadriven.TestData) {
	if d.HasArg("lose") {
		p.proposals = nil
		return
	}
	s.apply(p, number(s.t, d, "n", 1))
}

// send delivers all mail that is under way now (to=SHARD: to that shard alone).
func (s *cast) deliver(d *datadriven.TestData) {
	to := number(s.t, d, "to", 0)
	mail := s.mail
	s.mail = nil
	for _, m := range mail {
		if to > 0 && m.to != keyspace.ShardID(to) {
			s.mail = append(s.mail, m)
			continue
		}
		p := s.players[m.to-1]
		p.leader.Receive(m.from, m.message, s.now)
		s.take(p)
	}
}

// settle goes on until nothing is left to log or deliver.
func (s *cast) settle() {
	for rounds := 0; rounds < 100; rounds++ {
		quiet := len(s.mail) == 0
		for _, p := range s.players {
			quiet = quiet && len(p.proposals) == 0
			s.apply(p, len(p.proposals))
		}
		s.deliver(&datadriven.TestData{})
		if quiet {
			return
		}
	}
	s.t.Fatal("the shards do not come to rest")
}

func (s *cast) wait(d *datadriven.TestData) {
	s.now = s.now.Add(time.Duration(number(s.t, d, "ms", 100)) * time.Millisecond)
	for _, p := range s.players {
		p.leader.Tick(s.now)
		s.take(p)
	}
}

func (s *cast) newLeader(p *player) {
	p.proposals = nil
	p.leader.Close()
	p.term++
	p.leader = NewLeader(p.core, LeaderConfig{Term: p.term}, s.now)
	s.take(p)
}

// move: shard=SOURCE to=DESTINATION id=ID, then vertices, one a line.
func (s *cast) move(d *datadriven.TestData) {
	p := s.player(d)
	h := &shardv1.Handoff{Id: uint64(number(s.t, d, "id", 1)), From: uint32(p.id), To: uint32(number(s.t, d, "to", 2))}
	for _, v := range strings.Fields(d.Input) {
		h.Vertices = append(h.Vertices, []byte(v))
	}
	if err := p.leader.StartMove(&shardv1.MoveRequest{Handoff: h}, s.now); err != nil {
		s.say("%v", err)
	}
	s.take(p)
}

func (s *cast) abort(d *datadriven.TestData) {
	p := s.player(d)
	if err := p.leader.AbortMove(uint64(number(s.t, d, "id", 1)), s.now); err != nil {
		s.say("%v", err)
	}
	s.take(p)
}

// owners shows who serves each vertex, and what its keys hold.
func (s *cast) owners(d *datadriven.TestData) {
	for _, name := range strings.Fields(d.Input) {
		v := keyspace.Vertex(name)
		for _, p := range s.players {
			owned, hint, incoming := p.core.Owns(v)
			switch {
			case owned:
				value := "nothing"
				if c, found := p.core.keys.get(name); found {
					value = fmt.Sprintf("%q at version %d", c.value, c.version)
				}
				s.say("%s: %v serves it and holds %s", name, p.id, value)
			case incoming:
				s.say("%s: %v waits for it", name, p.id)
			case hint != keyspace.NoShard:
				s.say("%s: %v points to %v", name, p.id, hint)
			}
		}
	}
}
