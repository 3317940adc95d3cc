// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package local

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// stopPatience is how long a part may take to end after it was asked to.
	stopPatience = 10 * time.Second
	// logTail is how much of a failed part's log is shown.
	logTail = 1500
)

// child is one process of the store.
type child struct {
	name     string
	logFile  string
	command  *exec.Cmd
	ended    chan struct{}
	err      error
	expected atomic.Bool
}

// launch starts a part; its output goes to NAME.log.
func (s *Store) launch(name, program string, arguments []string) error {
	c := &child{name: name, logFile: filepath.Join(s.config.Dir, name+".log"), ended: make(chan struct{})}
	log, err := os.Create(c.logFile)
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	c.command = exec.Command(program, arguments...) //nolint:gosec,noctx // the caller names the programs; stop ends them, in order
	c.command.Stdout, c.command.Stderr = log, log
	// The parts must outlive an interrupt from the terminal, so that they are stopped in order.
	c.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := c.command.Start(); err != nil {
		return errors.Join(fmt.Errorf("start %s (%s): %w", name, program, err), log.Close())
	}
	s.children = append(s.children, c)
	go func() {
		c.err = errors.Join(c.command.Wait(), log.Close())
		close(c.ended)
		if !c.expected.Load() {
			select {
			case s.failed <- fmt.Errorf("%s ended by itself: %w; the end of its log:\n%s", name, c.err, c.tail()):
			default:
			}
		}
	}()
	return nil
}

func (c *child) tail() string {
	data, err := os.ReadFile(c.logFile)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(data[max(0, len(data)-logTail):]))
}

// stop asks the process to end, and kills it if it does not within stopPatience.
func (c *child) stop() error {
	c.expected.Store(true)
	if err := c.command.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", c.name, err)
	}
	select {
	case <-c.ended:
		return nil
	case <-time.After(stopPatience):
	}
	if err := c.command.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", c.name, err)
	}
	<-c.ended
	return fmt.Errorf("%s did not end within %v of being asked to and was killed; see %s", c.name, stopPatience, c.logFile)
}
