package sdk_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// blocked is a writer that blocks until it is closed.
type blocked chan struct{}

func (b blocked) Write(data []byte) (int, error) { <-b; return len(data), nil }

func aCommandHasTheShapeOfOSExec(t *testing.T, f *fleet.Fleet) {
	ctx, s := f.Context(2*time.Minute), f.Create("command")
	c := s.Command(ctx, "sh", "-c", "cat; echo $A $PWD; echo oops >&2; exit 3")
	c.Env, c.Dir, c.Stdin = []string{"A=1", "A=2"}, "/tmp", strings.NewReader("input\n")
	out, err := c.Output()
	var exit *sdk.ExitError
	if string(out) != "input\n2 /tmp\n" || !errors.As(err, &exit) || exit.ExitCode() != 3 ||
		string(exit.Stderr) != "oops\n" || c.Result == nil {
		t.Errorf("output %q, %v, %+v", out, err, exit)
	}
	wantError(t, err, protocol.FailedPrecondition, protocol.ReasonCommandExited)
	both, err := s.Command(ctx, "sh", "-c", "echo one; sleep 0.3; echo two >&2").CombinedOutput()
	if err != nil || string(both) != "one\ntwo\n" {
		t.Errorf("combined %q, %v", both, err)
	}
	c = s.Command(ctx, "wc", "-c")
	c.Stdin = bytes.NewReader(make([]byte, protocol.MaxStdin+1))
	if out, err := c.Output(); err != nil || strings.TrimSpace(string(out)) != strconv.Itoa(protocol.MaxStdin+1) {
		t.Errorf("a stdin larger than a request: %q, %v", out, err)
	}
	c = s.Command(ctx, "sleep", "60")
	c.Timeout = time.Second
	wantError(t, c.Run(), protocol.DeadlineExceeded, protocol.ReasonTimeout)
	c = s.Command(ctx, "sh", "-c", "echo 12345")
	c.OutputLimit = 3
	_, err = c.Output()
	wantError(t, err, protocol.OutOfRange, protocol.ReasonOutputTruncated)
	for range 2 { // the same id again: the command ran once
		c = s.Command(ctx, "sh", "-c", "echo x >>/tmp/runs; cat /tmp/runs")
		c.ID = "once"
		if out, err := c.Output(); err != nil || string(out) != "x\n" {
			t.Errorf("with an id: %q, %v", out, err)
		}
	}
	aSlowStreamDelaysNoOther(t, ctx, s)
}

func aSlowStreamDelaysNoOther(t *testing.T, ctx context.Context, s *sdk.Sandbox) {
	t.Helper()
	slow := make(blocked)
	c := s.Command(ctx, "sh", "-c", "head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2; echo end >&2")
	c.Stdout = slow
	stderr, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(stderr)
	if err != nil || len(text) != 1000004 || !bytes.HasSuffix(text, []byte("end\n")) {
		t.Errorf("read %d bytes of stderr while a writer of stdout blocks, %v", len(text), err)
	}
	close(slow)
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
	wantError(t, c.Wait(), protocol.FailedPrecondition, "")
}

func aCommandEndsWithItsContext(t *testing.T, f *fleet.Fleet) {
	ctx, s := f.Context(time.Minute), f.Create("command-ctx")
	short, cancel := context.WithCancel(ctx)
	c := s.Command(short, "sh", "-c", "echo started; sleep 60")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 8)); err != nil {
		t.Error(err)
	}
	cancel()
	err = c.Wait()
	if !errors.Is(err, context.Canceled) || c.Result == nil || c.Result.State != sdk.ExecStateCancelled {
		t.Errorf("after cancel: %v, %+v", err, c.Result)
	}
	wantError(t, err, protocol.Cancelled, "")
}
