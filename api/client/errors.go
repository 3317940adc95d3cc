// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"fmt"
	"strings"
)

// Kind says what sort of failure an Error is. The list is closed. A Kind is an
// error itself, so that errors.Is(err, client.DeadlineExceeded) asks for it.
type Kind uint8 //nolint:errname // a kind is asked for as errors.Is(err, client.Refused)

// The kinds of errors.
//
//nolint:errname // they are asked for as errors.Is(err, client.Refused)
const (
	// Invalid: the command breaks a rule and was not sent (a key or value over
	// its limit, an undeclared key).
	Invalid Kind = iota + 1
	// Rejected: the shard found the command malformed or too large; it did not run.
	Rejected
	// Refused: the state that the command met does not allow it (an increment of
	// a value that is no integer); it changed nothing.
	Refused
	// DeadlineExceeded: the deadline came or the caller cancelled, and the command has not run and will not.
	DeadlineExceeded
	// Unknown: the deadline came or the caller cancelled after the command was
	// sent; it may have run or may yet run.
	Unknown
	// Unavailable: the store could not be reached.
	Unavailable
	// Overloaded: a bound of the client was met; the command has not run.
	Overloaded
	// Closed: the client was closed; a command that was sent may have run.
	Closed
)

var kindNames = [...]string{
	Invalid: "invalid", Rejected: "rejected", Refused: "refused", DeadlineExceeded: "deadline exceeded",
	Unknown: "outcome unknown", Unavailable: "unavailable", Overloaded: "overloaded", Closed: "client closed",
}

// Error returns the name of the kind.
func (k Kind) Error() string {
	if k == 0 || int(k) >= len(kindNames) {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return kindNames[k]
}

// Error is the type of all errors that this package returns.
type Error struct {
	// Op is the operation as the caller named it: "get", "txn", and so on.
	Op string
	// Kind is what errors.Is compares.
	Kind Kind
	// Key is the key concerned, the first of several; it may be empty.
	Key []byte
	// Cause is the error below; it may be nil.
	Cause error
}

// Error says what was being done, with which key, and what went wrong.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if len(e.Key) > 0 {
		key := e.Key
		if len(key) > 64 {
			key = key[:64]
		}
		fmt.Fprintf(&b, " %q", key)
	}
	b.WriteString(": " + e.Kind.Error())
	if e.Cause != nil {
		b.WriteString(": " + e.Cause.Error())
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Is says whether target is the kind of this error.
func (e *Error) Is(target error) bool {
	kind, ok := target.(Kind)
	return ok && kind == e.Kind
}

var errClosed = errors.New("the client was closed: dial a new one")
