package supervise_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// counting prints "main N" for each USR1 that its main process gets, and "child N" for each that the other one gets.
const counting = `
(m=0; trap 'm=$((m+1)); echo child $m' USR1; echo child ready; while :; do sleep 0.05; done) &
n=0; trap 'n=$((n+1)); echo main $n' USR1; echo main ready; while :; do sleep 0.05; done`

func (s *sandbox) signal(c control.Signal) control.SignalResult {
	s.t.Helper()
	r, err := s.link.Signal(s.t.Context(), c)
	if err != nil {
		s.t.Fatalf("signal %+v: %v", c, err)
	}
	return r
}

// prints waits until the exec's stdout has all of these lines, in any order.
func (s *sandbox) prints(id string, want ...string) {
	s.t.Helper()
	s.poll(fmt.Sprintf("the output %q", want), func() bool {
		text := s.output(id, control.StdoutName)
		for _, line := range want {
			if !strings.Contains(text, line+"\n") {
				return false
			}
		}
		return true
	})
}

func TestSignal_ReachesTheMainProcessOrTheWholeTree(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]option{"hardened": {}, "privileged": {privileged: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSandbox(t, o)
			id := s.start(control.Start{Argv: []string{"sh", "-c", counting}})
			other := s.start(control.Start{Argv: []string{"sh", "-c", counting}})
			s.prints(id, "main ready", "child ready")
			s.prints(other, "main ready", "child ready")
			r := s.signal(control.Signal{ID: id, Number: 7, Signal: 10})
			if r.Outcome != protocol.SignalDelivered || r.Processes != 1 || r.Error != nil {
				t.Errorf("a signal to the main process: %+v", r)
			}
			s.prints(id, "main 1")
			r = s.signal(control.Signal{ID: id, Number: 9, Signal: 10, Tree: true})
			if r.Outcome != protocol.SignalDelivered || r.Processes < 2 || r.Error != nil {
				t.Errorf("a signal to the tree: %+v", r)
			}
			s.prints(id, "main 2", "child 1")
			if text := s.output(id, control.StdoutName); strings.Contains(text, "child 2") {
				t.Errorf("the child also got the signal to the main process: %q", text)
			}
			if text := s.output(other, control.StdoutName); strings.Contains(text, "1") {
				t.Errorf("another exec got a signal: %q", text)
			}
		})
	}
}

func TestSignal_IsSentOncePerNumber(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	id := s.start(control.Start{Argv: []string{"sh", "-c", counting}})
	s.prints(id, "main ready")
	first := s.signal(control.Signal{ID: id, Number: 7, Signal: 10})
	for range 3 {
		if again := s.signal(control.Signal{ID: id, Number: 7, Signal: 10}); again != first {
			t.Errorf("repeated: %+v, want %+v", again, first)
		}
		s.prints(id, "main 1") // a handler runs before the next loop of the shell
	}
	s.signal(control.Signal{ID: id, Number: 8, Signal: 10})
	s.prints(id, "main 2")
	if text := s.output(id, control.StdoutName); strings.Contains(text, "main 3") {
		t.Errorf("repeated signals were delivered again: %q", text)
	}
	s.signal(control.Signal{ID: id, Number: 9, Signal: 9})
	if r := s.end(id); code(r) != "137" || r.Cancelled || r.Failed {
		t.Errorf("after KILL the exec ended with exit code %s and %+v", code(r), r)
	}
	r := s.signal(control.Signal{ID: id, Number: 10, Signal: 10})
	if r.Outcome != protocol.SignalNotDelivered || protocol.AsError(r.Error).Reason != protocol.ReasonExecTerminal {
		t.Errorf("a signal to an exec that has ended: %+v", r)
	}
	if r := s.signal(control.Signal{ID: id, Number: 9, Signal: 9}); r.Outcome != protocol.SignalDelivered {
		t.Errorf("the outcome of an earlier signal after the end: %+v", r)
	}
	if _, err := s.link.Signal(t.Context(), control.Signal{ID: "unknown", Number: 1, Signal: 2}); protocol.CodeOf(err) !=
		protocol.NotFound {
		t.Errorf("a signal to an unknown exec: %v, want not_found", err)
	}
}

func TestSignal_ReachesStoppedAndHostileTrees(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	id := s.start(control.Start{Argv: []string{"sh", "-c", stubborn}})
	s.prints(id, "tree")
	s.poll("all processes", func() bool { return len(s.processes()) >= 5 })
	if r := s.signal(control.Signal{ID: id, Number: 1, Signal: 19, Tree: true}); r.Processes < 5 {
		t.Errorf("STOP reached %+v, want at least 5 processes", r)
	}
	if r := s.signal(control.Signal{ID: id, Number: 2, Signal: 9, Tree: true}); r.Processes < 5 {
		t.Errorf("KILL reached %+v, want at least 5 processes", r)
	}
	s.end(id)
	s.awaitEmpty()
}

func TestSignal_ReadAfterTheLeaseIsRefused(t *testing.T) {
	t.Parallel()
	var until atomic.Int64
	until.Store(int64(control.Clock() + time.Hour))
	s := newSandbox(t, option{lease: func() (time.Duration, error) { return time.Duration(until.Load()), nil }})
	id := s.start(control.Start{Argv: []string{"sh", "-c", counting}})
	s.prints(id, "main ready")
	until.Store(int64(control.Clock() - time.Second))
	_, err := s.link.Signal(t.Context(), control.Signal{ID: id, Number: 7, Signal: 9})
	if protocol.AsError(err) == nil || protocol.AsError(err).Reason != protocol.ReasonLeaseLost {
		t.Errorf("a signal after the lease: %v, want %s", err, protocol.ReasonLeaseLost)
	}
	until.Store(int64(control.Clock() + time.Hour))
	if r := s.signal(control.Signal{ID: id, Number: 7, Signal: 10}); r.Outcome != protocol.SignalDelivered {
		t.Errorf("the same signal of the next holder of the lock: %+v", r)
	}
	s.prints(id, "main 1")
}
