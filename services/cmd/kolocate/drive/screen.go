// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package drive

import (
	"fmt"
	"io"
	"strings"

	"github.com/kolocate/kolocate/services/keyspace"
	"github.com/kolocate/kolocate/services/oracle/directory"
)

// Screen shows the progress: redrawn in place on a terminal, else as lines.
type Screen struct {
	out      io.Writer
	terminal bool
	drawn    int
	shows    int
}

// lineEvery is how many shows pass between two lines where there is no terminal.
const lineEvery = 4

// NewScreen returns a screen on out.
func NewScreen(out io.Writer, terminal bool) *Screen { return &Screen{out: out, terminal: terminal} }

// Show draws one state.
func (s *Screen) Show(p Progress) {
	s.shows++
	if !s.terminal {
		if s.shows%lineEvery == 1 {
			fmt.Fprintln(s.out, strings.TrimSpace(numbers(p)+progress(p)))
		}
		return
	}
	lines := []string{numbers(p)}
	if r := p.Rebalance; r != nil {
		lines = append(lines, "", fmt.Sprintf("rebalance %s: %s", r.GetName(), r.GetMessage()))
		if r.GetStepsTotal() > 0 {
			lines = append(lines, bar(r.GetStepsDone(), r.GetStepsTotal())+fmt.Sprintf("  %d vertices, %d KiB moved", r.GetMovedVertices(), r.GetMovedBytes()>>10))
		}
		for _, step := range r.GetActive() {
			lines = append(lines, fmt.Sprintf("  %s to %s, %d vertices, %s: %s",
				keyspace.ShardID(step.GetFrom()), keyspace.ShardID(step.GetTo()), step.GetVertices(), step.GetState(), step.GetReason()))
		}
	}
	if s.drawn > 0 {
		fmt.Fprintf(s.out, "\x1b[%dA", s.drawn)
	}
	for _, line := range lines {
		fmt.Fprintf(s.out, "\x1b[2K%s\n", clip(line))
	}
	if left := s.drawn - len(lines); left > 0 {
		fmt.Fprint(s.out, strings.Repeat("\x1b[2K\n", left))
		fmt.Fprintf(s.out, "\x1b[%dA", left)
	}
	s.drawn = len(lines)
}

// clip keeps a line from wrapping, which would spoil the redrawing.
func clip(line string) string {
	const width = 118
	if runes := []rune(line); len(runes) > width {
		return string(runes[:width-1]) + "…"
	}
	return line
}

func numbers(p Progress) string {
	m := p.Live
	return fmt.Sprintf("%-9s %7.0f commands/s   p50 %6.2f ms   p99 %7.2f ms   over several shards %5.1f %%   errors %d   epoch %d",
		p.Phase, m.Throughput(), millis(m.P50), millis(m.P99), 100*m.MPOShare(), m.Errors, p.Status.GetEpoch())
}

func progress(p Progress) string {
	r := p.Rebalance
	if r == nil {
		return ""
	}
	text := fmt.Sprintf("   %s", directory.PhaseName(r.GetPhase()))
	if r.GetStepsTotal() > 0 {
		text += fmt.Sprintf(" %d/%d", r.GetStepsDone(), r.GetStepsTotal())
	}
	for _, step := range r.GetActive() {
		return text + fmt.Sprintf(", %s to %s: %s", keyspace.ShardID(step.GetFrom()), keyspace.ShardID(step.GetTo()), step.GetReason())
	}
	return text
}

func bar(done, total uint32) string {
	const width = 40
	full := width * int(done) / int(total)
	return fmt.Sprintf("[%s%s] %d of %d handoffs", strings.Repeat("=", full), strings.Repeat(" ", width-full), done, total)
}
