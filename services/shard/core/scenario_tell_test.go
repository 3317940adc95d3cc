// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"strings"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
)

// What follows tells entries and messages in words that stay the same whatever
// the encoding does.

func tellAttempt(a *shardv1.Attempt) string {
	return fmt.Sprintf("attempt %d of shard-%d", a.GetNumber(), a.GetCoordinator())
}

func tellDecision(d *shardv1.Decision) string {
	if !d.Ok {
		return fmt.Sprintf("retry %s", tellAttempt(d.Attempt))
	}
	return fmt.Sprintf("run %s at %d.%d", tellAttempt(d.Attempt), d.Timestamp.GetClock(), d.Timestamp.GetShard())
}

func tellStates(states []*shardv1.KeyState) string {
	var parts []string
	for _, s := range states {
		if s.Found {
			parts = append(parts, fmt.Sprintf("key %d = %q (%d)", s.Key, s.Value, s.Version))
		} else {
			parts = append(parts, fmt.Sprintf("key %d absent (%d)", s.Key, s.Version))
		}
	}
	return strings.Join(parts, ", ")
}

func tellEntry(e *shardv1.Entry) string {
	switch b := e.Body.(type) {
	case *shardv1.Entry_Genesis:
		return "genesis"
	case *shardv1.Entry_Commands:
		return fmt.Sprintf("%d command", len(b.Commands.Commands))
	case *shardv1.Entry_Begin:
		if b.Begin.Propose.Attempt.GetNumber() == 0 {
			return fmt.Sprintf("begin command %d", b.Begin.Origin)
		}
		return "begin " + tellAttempt(b.Begin.Propose.Attempt)
	case *shardv1.Entry_Decide:
		return "decide: " + tellDecision(b.Decide.Decision)
	case *shardv1.Entry_Inputs:
		return "inputs of " + tellAttempt(b.Inputs.Attempt)
	case *shardv1.Entry_Return:
		return "return of " + tellAttempt(b.Return.Attempt)
	case *shardv1.Entry_Finish:
		return fmt.Sprintf("finish %d attempt", len(b.Finish.Attempts))
	case *shardv1.Entry_HandoffBegin:
		return fmt.Sprintf("handoff %d begin", b.HandoffBegin.Handoff.Id)
	case *shardv1.Entry_HandoffSeal:
		return fmt.Sprintf("handoff %d seal", b.HandoffSeal.Id)
	case *shardv1.Entry_HandoffDone:
		return fmt.Sprintf("handoff %d done", b.HandoffDone.Id)
	case *shardv1.Entry_HandoffRevoke:
		return fmt.Sprintf("handoff %d revoke", b.HandoffRevoke.Id)
	case *shardv1.Entry_HandoffTombstone:
		return fmt.Sprintf("handoff %d tombstone", b.HandoffTombstone.Id)
	case *shardv1.Entry_HandoffCommit:
		return fmt.Sprintf("handoff %d commit", b.HandoffCommit.Id)
	case *shardv1.Entry_HandoffStage:
		if o := b.HandoffStage.Offer; o != nil {
			return fmt.Sprintf("handoff %d offer, attempt %d", o.Handoff.Id, o.Attempt)
		}
		return fmt.Sprintf("handoff %d chunk %d", b.HandoffStage.Chunk.Id, b.HandoffStage.Chunk.Number)
	case *shardv1.Entry_Housekeeping:
		return "housekeeping"
	}
	return "an unknown entry"
}

func tellMessage(m *shardv1.Message) string {
	switch b := m.Body.(type) {
	case *shardv1.Message_Propose:
		return fmt.Sprintf("propose %s, all below %d finished", tellAttempt(b.Propose.Attempt), b.Propose.FinishedBelow)
	case *shardv1.Message_Vote:
		kind := strings.ToLower(strings.TrimPrefix(b.Vote.Kind.String(), "VOTE_KIND_"))
		return fmt.Sprintf("vote %s on %s at %d.%d%s", kind, tellAttempt(b.Vote.Attempt), b.Vote.Timestamp.GetClock(), b.Vote.Timestamp.GetShard(), tellHints(b.Vote.Hints))
	case *shardv1.Message_Decision:
		return "decision: " + tellDecision(b.Decision)
	case *shardv1.Message_Inquiry:
		return "what of " + tellAttempt(b.Inquiry.Attempt) + "?"
	case *shardv1.Message_Input:
		return "lends to " + tellAttempt(b.Input.Attempt) + ": " + tellStates(b.Input.States)
	case *shardv1.Message_Return:
		return "returns from " + tellAttempt(b.Return.Attempt) + ": " + tellStates(b.Return.States)
	case *shardv1.Message_ReturnAck:
		return "released " + tellAttempt(b.ReturnAck.Attempt)
	default:
		return tellHandoffMessage(m)
	}
}

func tellHandoffMessage(m *shardv1.Message) string {
	switch b := m.Body.(type) {
	case *shardv1.Message_HandoffOffer:
		return fmt.Sprintf("offer of handoff %d, attempt %d", b.HandoffOffer.Handoff.Id, b.HandoffOffer.Attempt)
	case *shardv1.Message_HandoffChunk:
		return fmt.Sprintf("handoff %d chunk %d: %d keys, %d records", b.HandoffChunk.Id, b.HandoffChunk.Number, len(b.HandoffChunk.Keys), len(b.HandoffChunk.Records))
	case *shardv1.Message_HandoffChunkAck:
		return fmt.Sprintf("handoff %d staged below %d%s", b.HandoffChunkAck.Id, b.HandoffChunkAck.Next, tellReason(b.HandoffChunkAck.Refused))
	case *shardv1.Message_HandoffFinal:
		f := b.HandoffFinal
		return fmt.Sprintf("handoff %d final after %d chunks: %d keys, %d records, clock %d", f.Id, f.Chunks, len(f.Keys), len(f.Records), f.Clock)
	case *shardv1.Message_HandoffCommitted:
		return fmt.Sprintf("handoff %d committed", b.HandoffCommitted.Id)
	case *shardv1.Message_HandoffAbort:
		return fmt.Sprintf("abort handoff %d", b.HandoffAbort.Id)
	case *shardv1.Message_HandoffAborted:
		return fmt.Sprintf("handoff %d aborted (committed: %v)", b.HandoffAborted.Id, b.HandoffAborted.Committed)
	}
	return "an unknown message"
}

func tellReason(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}

func tellHints(hints []*kvv1.Hint) string {
	s := ""
	for _, h := range hints {
		s += fmt.Sprintf(" (%s is at shard-%d)", h.Vertex, h.Shard)
	}
	return s
}

func tellReply(r *kvv1.Reply) string {
	outcome := strings.ToLower(strings.TrimPrefix(r.Outcome.String(), "OUTCOME_"))
	if r.Outcome != kvv1.Outcome_OUTCOME_OK {
		return outcome + tellHints(r.Hints) + tellReason(r.Message)
	}
	var parts []string
	for _, op := range r.Result.Ops {
		switch {
		case op.Number != 0:
			parts = append(parts, fmt.Sprint(op.Number))
		case op.Found:
			parts = append(parts, fmt.Sprintf("%q", op.Value))
		case op.Version > 0:
			parts = append(parts, fmt.Sprintf("version %d", op.Version))
		default:
			parts = append(parts, "absent")
		}
	}
	return outcome + " " + strings.Join(parts, ", ") + tellReason(r.Result.Refused)
}
