package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// countsSignals prints "main N" for each USR1 that its main process gets, and "child N" for each that the other one
// gets.
const countsSignals = `
(m=0; trap 'm=$((m+1)); echo child $m' USR1; echo child ready; while :; do sleep 0.05; done) &
n=0; trap 'n=$((n+1)); echo main $n' USR1; echo main ready; while :; do sleep 0.05; done`

// localEngine is the address of the engine that tests use unless they start one.
const localEngine = "unix:///var/run/docker.sock"

// signalled is an exec that counts the signals that it gets.
type signalled struct {
	x    *sdk.Exec
	live lockedBuffer
}

func startSignalled(ctx context.Context, f *fleet.Fleet, s *sdk.Sandbox, service string) *signalled {
	f.TB.Helper()
	x, err := s.Start(ctx, protocol.ExecSpec{Command: []string{"sh", "-c", countsSignals}, Service: service})
	if err != nil {
		f.TB.Fatal(err)
	}
	c := &signalled{x: x}
	go func() { _, _ = x.Wait(ctx, sdk.WithStdout(&c.live)) }() // ends with ctx
	c.prints(f, "main ready", "child ready")
	return c
}

func (c *signalled) prints(f *fleet.Fleet, want ...string) {
	f.TB.Helper()
	f.Eventually(20*time.Second, fmt.Sprintf("it prints %q", want), func() error {
		text := string(c.live.Bytes())
		for _, line := range want {
			if !strings.Contains(text, line+"\n") {
				return fmt.Errorf("it printed %q", text)
			}
		}
		return nil
	})
}

// wantReason checks the reason of an error.
func wantReason(t *testing.T, err error, code protocol.Code, reason string) {
	t.Helper()
	e := protocol.AsError(err)
	if e == nil || e.Code != code || e.Reason != reason {
		t.Errorf("got the error %v, want %s (%s)", err, code, reason)
	}
}

// signalEvents returns the events about signals in a sandbox's history.
func signalEvents(f *fleet.Fleet, s *sdk.Sandbox) (events []sdk.Event) {
	f.TB.Helper()
	for e, err := range s.Events(f.Context(30 * time.Second)) {
		if err != nil {
			f.TB.Fatal(err)
		}
		if e.Kind == protocol.ExecSignalRequested || e.Kind == protocol.ExecSignalled {
			events = append(events, e)
		}
	}
	return events
}

func TestASignalReachesARunningExecAndIsInTheHistory(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(2 * time.Minute)
	s, err := f.Client.Create(ctx, withServices(f, services{"db": small("exec sleep 1000")}, nil), sdk.WithID("s"))
	if err != nil {
		t.Fatal(err)
	}
	for _, service := range []string{"", "db"} {
		c := startSignalled(ctx, f, s, service)
		sent, err := c.x.Signal(ctx, "SIGUSR1")
		if err != nil || sent.Outcome != protocol.SignalDelivered || sent.Processes != 1 {
			t.Fatalf("signal to the main process: %+v, %v", sent, err)
		}
		c.prints(f, "main 1")
		sent, err = c.x.Signal(ctx, "10", sdk.WithTree())
		if err != nil || sent.Outcome != protocol.SignalDelivered || sent.Processes < 2 || !sent.Tree {
			t.Fatalf("signal to the tree: %+v, %v", sent, err)
		}
		c.prints(f, "main 2", "child 1")
		if _, err := c.x.Signal(ctx, "FROB"); protocol.CodeOf(err) != protocol.InvalidArgument ||
			protocol.AsError(err).Field != "signal" {
			t.Errorf("a bad name: %v", err)
		}
		if _, err := c.x.Signal(ctx, "term"); err != nil {
			t.Fatal(err)
		}
		r, err := c.x.Wait(ctx)
		if err != nil || r.ExitCode == nil || *r.ExitCode != 143 || r.State != protocol.ExecStateFinished {
			t.Errorf("after TERM the exec ended with %+v, %v", r, err)
		}
		_, err = c.x.Signal(ctx, "INT")
		wantReason(t, err, protocol.FailedPrecondition, protocol.ReasonExecTerminal)
		if err := c.x.Refresh(ctx); err != nil {
			t.Fatal(err)
		}
		if got := c.x.Info().Signals; len(got) != 3 || slices.ContainsFunc(got, func(g sdk.ExecSignal) bool {
			return g.Outcome != protocol.SignalDelivered || g.Actor == "" || g.OutcomeAt.Before(g.RequestedAt)
		}) {
			t.Errorf("the exec has these signals: %+v", got)
		}
	}
	events := signalEvents(f, s)
	if len(events) != 12 {
		t.Fatalf("the history has %d events about signals, want 12", len(events))
	}
	for i := 0; i < len(events); i += 2 {
		asked, done := events[i], events[i+1]
		if asked.Actor == "" || asked.Actor != done.Actor || asked.Request != done.Request ||
			done.Exec.Signal.Of != asked.Sequence || done.Exec.Signal.Outcome != protocol.SignalDelivered {
			t.Errorf("the history says %+v and then %+v", asked, done)
		}
	}
	_, err = s.ExecByID("nobody").Signal(ctx, "INT")
	wantReason(t, err, protocol.NotFound, "")
	f.Judge()
}

func TestASignalIsDeliveredOncePerRequest(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Coordinators: 2})
	ctx := f.Context(time.Minute)
	s := f.Create("s")
	c := startSignalled(ctx, f, s, "")
	var first *sdk.ExecSignal
	for range 5 {
		sent, err := c.x.Signal(ctx, "USR1", sdk.WithRequestID("once"))
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = sent
		}
		if *sent != *first {
			t.Errorf("repeated: %+v, want %+v", sent, first)
		}
	}
	_, err := c.x.Signal(ctx, "USR2", sdk.WithRequestID("once"))
	wantReason(t, err, protocol.AlreadyExists, protocol.ReasonRequestUsed)
	c.prints(f, "main 1") // two signals at once could be one for the process
	if _, err := c.x.Signal(ctx, "USR1"); err != nil {
		t.Fatal(err)
	}
	c.prints(f, "main 2")
	if text := string(c.live.Bytes()); strings.Contains(text, "main 3") {
		t.Errorf("the exec got more signals: %q", text)
	}
	if n := len(signalEvents(f, s)); n != 4 {
		t.Errorf("the history has %d events about signals, want 4", n)
	}
	f.Judge()
}

// TestAWorkerKilledDuringASignal kills the worker before and after the supervisor gets a signal. The signal is
// delivered once, and the outcome is known.
func TestAWorkerKilledDuringASignal(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{})
	s := f.Create("s")
	w.Kill()
	for _, at := range []string{"before-signal", "after-signal"} {
		f.Run(t, at, func(t *testing.T) {
			defer killAll(f, "worker")
			ctx := f.Context(time.Minute)
			w := f.Worker("w1", fleet.Role{CrashAt: at})
			c := startSignalled(ctx, f, s, "")
			var sent *sdk.ExecSignal
			done := begin(func() (err error) {
				sent, err = c.x.Signal(ctx, "USR1")
				return err
			})
			w.AwaitKilled(20 * time.Second)
			w.Restart()
			if err := doneWithin(t, time.Now(), "signalled", done); err != nil {
				t.Fatal(err)
			}
			if sent.Outcome != protocol.SignalDelivered || sent.Processes != 1 {
				t.Errorf("the signal: %+v", sent)
			}
			c.prints(f, "main 1")
			// The outcome came after every delivery. While another exec sleeps, a second signal would be counted and printed.
			if _, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"sleep", "1"}}); err != nil {
				t.Fatal(err)
			}
			if text := string(c.live.Bytes()); strings.Contains(text, "main 2") {
				t.Errorf("the signal was delivered twice: %q", text)
			}
			if _, err := c.x.Signal(ctx, "USR1"); err != nil {
				t.Fatal(err)
			}
			c.prints(f, "main 2")
			if err := c.x.Cancel(ctx); err != nil {
				t.Fatal(err)
			}
		})
	}
	f.Judge()
}

// TestASignalWhileTheWorkerIsAway sends signals that nobody can deliver. Their outcomes are open, until the worker is
// back and finds out what happened.
func TestASignalWhileTheWorkerIsAway(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{})
	ctx := f.Context(2 * time.Minute)
	lives, ends, lost := f.Create("lives"), f.Create("ends"), f.Create("lost")
	c, over := startSignalled(ctx, f, lives, ""), startSignalled(ctx, f, lost, "")
	x, err := ends.Start(ctx, protocol.ExecSpec{Command: []string{"sh", "-c", "echo begun; sleep 2"}})
	if err != nil {
		t.Fatal(err)
	}
	// The event exec.started comes before the process: only its output shows that it runs.
	if _, err := x.WaitFor(ctx, sdk.OutputContains("begun")); err != nil {
		t.Fatal(err)
	}
	w.Kill()
	for _, x := range []*sdk.Exec{c.x, x, over.x} {
		short, cancel := context.WithTimeout(ctx, time.Second)
		sent, err := x.Signal(short, "USR1", sdk.WithRequestID("away"))
		cancel()
		wantReason(t, err, protocol.Unavailable, protocol.ReasonSignalOpen)
		if sent == nil || sent.Outcome != protocol.SignalPending {
			t.Errorf("the signal: %+v", sent)
		}
	}
	f.Eventually(20*time.Second, "the short exec ended", func() error {
		left := docker(t, localEngine, "top", containerOf(f, localEngine, "ends"), "-o", "pid,args")
		if strings.Contains(left, "begun") || strings.Contains(left, "sleep") { // a shell may become its last command
			return fmt.Errorf("it runs: %s", left)
		}
		return nil
	})
	docker(t, localEngine, "kill", containerOf(f, localEngine, "lost"))
	w.Restart()
	sent, err := c.x.Signal(ctx, "USR1", sdk.WithRequestID("away"))
	if err != nil || sent.Outcome != protocol.SignalDelivered {
		t.Errorf("the exec that still runs: %+v, %v", sent, err)
	}
	c.prints(f, "main 1")
	sent, err = x.Signal(ctx, "USR1", sdk.WithRequestID("away"))
	wantReason(t, err, protocol.FailedPrecondition, protocol.ReasonExecTerminal)
	if sent == nil || sent.Outcome != protocol.SignalNotDelivered {
		t.Errorf("the exec that ended without its worker: %+v", sent)
	}
	sent, err = over.x.Signal(ctx, "USR1", sdk.WithRequestID("away"))
	wantReason(t, err, protocol.Unavailable, protocol.ReasonSignalOpen)
	if sent == nil || sent.Outcome != protocol.SignalUnknown {
		t.Errorf("the exec whose container was killed: %+v", sent)
	}
	f.Judge()
}

func TestSignalsOfASandboxAreLimited(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	s := f.Create("s")
	c := startSignalled(ctx, f, s, "")
	began := time.Now()
	for i := range protocol.MaxSignals {
		if _, err := c.x.Signal(ctx, "CONT"); err != nil {
			t.Fatalf("signal %d: %v", i, err)
		}
	}
	t.Logf("a signal took %s on average", time.Since(began)/protocol.MaxSignals)
	_, err := c.x.Signal(ctx, "CONT")
	wantReason(t, err, protocol.ResourceExhausted, protocol.ReasonTooManySignals)
	if err := c.x.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	if n := len(c.x.Info().Signals); n != protocol.KeptSignals {
		t.Errorf("the exec remembers %d signals, want %d", n, protocol.KeptSignals)
	}
	if n := len(signalEvents(f, s)); n != 2*protocol.MaxSignals {
		t.Errorf("the history has %d events about signals, want %d", n, 2*protocol.MaxSignals)
	}
	f.Judge()
}
