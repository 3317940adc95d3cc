// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"context"
	"fmt"
	"log/slog"
)

// raftLogger passes the library's log on. What it calls information is about single elections.
type raftLogger struct{ log *slog.Logger }

func (l raftLogger) write(level slog.Level, format string, v ...any) {
	if l.log.Enabled(context.Background(), level) {
		l.log.Log(context.Background(), level, "raft: "+fmt.Sprintf(format, v...))
	}
}

func (l raftLogger) Debug(v ...any)                 { l.write(slog.LevelDebug, "%s", fmt.Sprint(v...)) }
func (l raftLogger) Debugf(format string, v ...any) { l.write(slog.LevelDebug, format, v...) }
func (l raftLogger) Info(v ...any)                  { l.write(slog.LevelDebug, "%s", fmt.Sprint(v...)) }
func (l raftLogger) Infof(format string, v ...any)  { l.write(slog.LevelDebug, format, v...) }
func (l raftLogger) Warning(v ...any)               { l.write(slog.LevelWarn, "%s", fmt.Sprint(v...)) }

func (l raftLogger) Warningf(format string, v ...any) { l.write(slog.LevelWarn, format, v...) }

func (l raftLogger) Error(v ...any)                 { l.write(slog.LevelError, "%s", fmt.Sprint(v...)) }
func (l raftLogger) Errorf(format string, v ...any) { l.write(slog.LevelError, format, v...) }

// Fatal is never called by the library; it is as Panic.
func (l raftLogger) Fatal(v ...any) { l.Panic(v...) }

// Fatalf is as Fatal.
func (l raftLogger) Fatalf(format string, v ...any) { l.Panicf(format, v...) }

// Panic reports a broken invariant of Raft: nothing may be done with the log any more.
func (l raftLogger) Panic(v ...any) { panic("raft: " + fmt.Sprint(v...)) }

// Panicf is as Panic.
func (l raftLogger) Panicf(format string, v ...any) { panic("raft: " + fmt.Sprintf(format, v...)) }
