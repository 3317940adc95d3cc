// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package phase

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
)

func end(name string, r Result) Phase {
	return Phase{Name: name, Run: func(context.Context) Result { return r }}
}

func TestRunEndsAtTheFirstPhaseThatIsNotDone(t *testing.T) {
	cause := errors.New("connection refused")
	for _, test := range []struct {
		name   string
		result Result
		delay  time.Duration
		err    error
		next   bool
	}{
		{name: "done", result: Done("3 objects"), next: true},
		{name: "wait", result: Wait("for pods")},
		{name: "after", result: After(5*time.Second, "oracle starts"), delay: 5 * time.Second},
		{name: "fail", result: Fail(cause, "applying %s", "x"), err: cause},
	} {
		t.Run(test.name, func(t *testing.T) {
			var next, always bool
			out, err := Run(context.Background(),
				end("first", test.result),
				Phase{Name: "next", Run: func(context.Context) Result { next = true; return Done("") }},
				Phase{Name: "status", Always: true, Run: func(context.Context) Result { always = true; return Done("") }},
			)
			if !errors.Is(err, test.err) {
				t.Errorf("error: got %v, want %v", err, test.err)
			}
			if out.RequeueAfter != test.delay {
				t.Errorf("delay: got %v, want %v", out.RequeueAfter, test.delay)
			}
			if next != test.next || !always {
				t.Errorf("ran next %t, always %t; want %t, true", next, always, test.next)
			}
		})
	}
}

func TestRunLogsItsTable(t *testing.T) {
	var logged strings.Builder
	logger := funcr.New(func(_, args string) { logged.WriteString(args) }, funcr.Options{Verbosity: 1})
	ctx := logr.NewContext(context.Background(), logger)
	_, err := Run(ctx, end("gather", Done("7 objects")), end("oracle", After(time.Second, "not up")), end("mirror", Done("")))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"gather", "7 objects", "again in 1s", "mirror       skipped"} {
		if !strings.Contains(logged.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, logged.String())
		}
	}
}

func TestRunKeepsAnErrorOfTheStatusPhase(t *testing.T) {
	cause := errors.New("conflict")
	status := end("status", Fail(cause, "writing the status"))
	status.Always = true
	out, err := Run(context.Background(), end("oracle", After(time.Second, "not up")), status)
	if !errors.Is(err, cause) || out.RequeueAfter != 0 {
		t.Errorf("got %v, %v; want the error alone", out, err)
	}
}
