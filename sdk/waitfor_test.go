package sdk_test

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

func aLineOfOutputIsWaitedFor(t *testing.T, f *fleet.Fleet) {
	ctx, s := f.Context(time.Minute), f.Create("wait-for")
	script := "echo starting; printf 'a\\r\\nlistening on '; until test -e /tmp/go; do sleep 0.02; done; echo 8080; " +
		"echo bad >&2; exit 3"
	x, err := s.Start(ctx, shell(script), sdk.WithID("server"))
	if err != nil {
		t.Fatal(err)
	}
	port := regexp.MustCompile(`^listening on (\d+)$`)
	m, err := x.WaitFor(ctx, sdk.OutputContains("listening"))
	if err != nil || *m != (sdk.Match{Stream: sdk.Stdout, Offset: 12, Line: "listening on "}) {
		t.Errorf("an incomplete line: %+v, %v", m, err)
	}
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	m, err = x.WaitFor(short, sdk.OutputMatches(port))
	if m != nil || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("an expression on an incomplete line: %+v, %v", m, err)
	}
	if _, err := s.Exec(ctx, command("touch", "/tmp/go")); err != nil {
		t.Fatal(err)
	}
	again := f.Client.Sandbox("wait-for").ExecByID("server") // another client, in the middle of the exec or after it
	for range 2 {
		if m, err = again.WaitFor(ctx, sdk.OutputMatches(port)); err != nil || m.Line != "listening on 8080" {
			t.Errorf("a complete line: %+v, %v", m, err)
		}
		if m, err = again.WaitFor(ctx, sdk.OutputMatches(regexp.MustCompile("^a$"))); err != nil || m.Offset != 9 {
			t.Errorf("a line that ends with CR and LF: %+v, %v", m, err)
		}
		if m, err = again.WaitFor(ctx, sdk.OutputContains("bad")); err != nil || m.Stream != sdk.Stderr {
			t.Errorf("a line of stderr: %+v, %v", m, err)
		}
		if _, err := again.Wait(ctx); err != nil && protocol.AsError(err).Reason != protocol.ReasonCommandExited {
			t.Fatal(err)
		}
	}
	_, err = again.WaitFor(ctx, sdk.OutputContains("starting"), sdk.WithOffset(sdk.Stdout, 9))
	wantError(t, err, protocol.FailedPrecondition, protocol.ReasonExecTerminal)
	if !strings.Contains(err.Error(), `exit code 3, and no line of its output contains "starting"`) {
		t.Errorf("the error does not say what is missing: %v", err)
	}
	_, err = again.WaitFor(ctx, sdk.OutputContains(""))
	wantField(t, err, "text")
	_, err = again.WaitFor(ctx, sdk.OutputContains("a\nb"))
	wantField(t, err, "text")
	_, err = again.WaitFor(ctx, sdk.OutputMatches(nil))
	wantField(t, err, "pattern")
	_, err = again.WaitFor(ctx, sdk.Condition{})
	wantField(t, err, "condition")
	_, err = s.ExecByID("never-was").WaitFor(ctx, sdk.OutputContains("x"))
	wantError(t, err, protocol.NotFound, "")
	_, err = s.WaitFor(ctx, sdk.OutputContains("x")) // the sandbox has no command of its own
	wantError(t, err, protocol.FailedPrecondition, "")
}

func aLineOfAServiceIsWaitedFor(t *testing.T, f *fleet.Fleet) {
	ctx := f.Context(time.Minute)
	spec := f.Spec()
	spec.Command = []string{"sh", "-c", "echo primary; sleep 600"}
	web := protocol.Service{Image: spec.Image, Command: []string{"sh", "-c", "echo up; sleep 600"}}
	spec.RequiredServices = protocol.Services{"web": web}
	s, err := f.Client.Create(ctx, spec, sdk.WithID("wait-logs"), sdk.WithWait(false))
	if err != nil {
		t.Fatal(err)
	}
	if m, err := s.WaitFor(ctx, sdk.OutputContains("prim")); err != nil || m.Line != "primary" {
		t.Errorf("the sandbox's own command: %+v, %v", m, err)
	}
	if m, err := s.WaitFor(ctx, sdk.OutputMatches(regexp.MustCompile("^up$")), sdk.WithService("web")); err != nil ||
		m.Line != "up" {
		t.Errorf("a service: %+v, %v", m, err)
	}
	missing := make(chan error, 1)
	go func() {
		_, err := s.WaitFor(ctx, sdk.OutputContains("never"))
		missing <- err
	}()
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	wantError(t, <-missing, protocol.FailedPrecondition, "")
}
