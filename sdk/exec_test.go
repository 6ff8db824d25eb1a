package sdk_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

func execsEndAsTheirCommandsDo(t *testing.T, f *fleet.Fleet) {
	ctx, s := f.Context(time.Minute), f.Create("ends")
	r, err := s.Exec(ctx, shell("echo out; echo err >&2; exit 3"))
	if err != nil {
		t.Fatalf("a non-zero exit code became an error: %v", err)
	}
	if r.State != protocol.ExecStateFinished || *r.ExitCode != 3 || string(r.Stdout) != "out\n" ||
		string(r.Stderr) != "err\n" || r.StdoutSHA256 != protocol.OutputHash(r.Stdout) ||
		r.StderrSHA256 != protocol.OutputHash(r.Stderr) {
		t.Errorf("got %+v", r)
	}
	r, err = s.Exec(ctx, protocol.ExecSpec{Command: []string{"sh", "-c", "echo before; sleep 60"},
		Timeout: protocol.Duration(2 * time.Second)})
	wantError(t, err, protocol.DeadlineExceeded, protocol.ReasonTimeout)
	if r == nil || r.State != protocol.ExecStateTimedOut || string(r.Stdout) != "before\n" {
		t.Errorf("after a timeout: got %+v, want state timed_out and the output so far", r)
	}
	x, err := s.Start(ctx, command("sleep", "60"))
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Cancel(ctx); err != nil {
		t.Fatal(err)
	}
	r, err = x.Wait(ctx)
	wantError(t, err, protocol.Cancelled, protocol.ReasonCancelRequested)
	if r == nil || r.State != protocol.ExecStateCancelled {
		t.Errorf("got %+v", r)
	}
	if err := x.Cancel(ctx); err != nil {
		t.Errorf("cancelling an ended exec: %v", err)
	}
	r, err = s.Exec(ctx, protocol.ExecSpec{Command: []string{"true"}, User: "nobody-here"})
	wantError(t, err, protocol.AsError(err).Code, protocol.ReasonUserUnknown)
	if r == nil || r.State != protocol.ExecStateFailed {
		t.Errorf("an exec that could not run: got %+v, want state failed", r)
	}
	wantError(t, s.ExecByID("never-was").Cancel(ctx), protocol.NotFound, "")
	_, err = s.Exec(ctx, command("true"), sdk.WithID(x.ID()))
	wantError(t, err, protocol.AlreadyExists, "")
	_, err = f.Client.Sandbox("never-was").Exec(ctx, command("true"))
	wantError(t, err, protocol.NotFound, "")
	_, err = s.Exec(ctx, command())
	wantError(t, err, protocol.InvalidArgument, "")
	for range 50 {
		r, err := s.Exec(ctx, command("true"))
		if err != nil {
			t.Fatal(err)
		}
		if x, err := s.GetExec(ctx, r.ID); err != nil || x.Info().State != protocol.ExecStateFinished {
			t.Fatalf("read after the end: %+v, %v; want a finished exec", x, err)
		}
	}
}

func outputIsCompleteHoweverItIsRead(t *testing.T, f *fleet.Fleet) {
	const size = 3<<20 + 17
	ctx, s := f.Context(time.Minute), f.Create("output")
	// The exec prints all byte values, on both streams at once.
	spec := shell(fmt.Sprintf("head -c %d /dev/urandom | tee /tmp/o & head -c %d /dev/urandom | tee /tmp/e >&2; "+
		"wait; md5sum < /tmp/o > /tmp/so; md5sum < /tmp/e > /tmp/se", size, size/2))
	var stdout, stderr bytes.Buffer
	streamed, err := s.Exec(ctx, spec, sdk.WithStdout(&stdout), sdk.WithStderr(&stderr))
	if err != nil {
		t.Fatal(err)
	}
	if stdout.Len() != size || stderr.Len() != size/2 {
		t.Fatalf("streamed %d and %d bytes, want %d and %d", stdout.Len(), stderr.Len(), size, size/2)
	}
	if len(streamed.Stdout) != 0 || streamed.Incomplete {
		t.Errorf("a stream with a writer was collected: %d bytes, incomplete %v", len(streamed.Stdout), streamed.Incomplete)
	}
	x, err := s.GetExec(ctx, streamed.ID)
	if err != nil {
		t.Fatal(err)
	}
	collected, err := x.Wait(ctx, sdk.WithCollect(size))
	if err != nil || !bytes.Equal(collected.Stdout, stdout.Bytes()) || !bytes.Equal(collected.Stderr, stderr.Bytes()) ||
		collected.Incomplete {
		t.Errorf("collected %d and %d bytes, incomplete %v, %v", len(collected.Stdout), len(collected.Stderr),
			collected.Incomplete, err)
	}
	capped, err := x.Wait(ctx, sdk.WithCollect(1000))
	if err != nil || !bytes.Equal(capped.Stdout, stdout.Bytes()[:1000]) || len(capped.Stderr) != 1000 ||
		!capped.Incomplete {
		t.Errorf("capped at %d and %d bytes, incomplete %v, %v", len(capped.Stdout), len(capped.Stderr), capped.Incomplete,
			err)
	}
	for _, got := range []string{streamed.StdoutSHA256, collected.StdoutSHA256, x.Info().StdoutSHA256} {
		if want := protocol.OutputHash(stdout.Bytes()); got != want {
			t.Errorf("the hash of stdout is %q, want %q", got, want)
		}
	}
	read, err := io.ReadAll(x.Reader(ctx, sdk.Stderr, 0))
	if err != nil || !bytes.Equal(read, stderr.Bytes()) {
		t.Errorf("read %d bytes: %v", len(read), err)
	}
	for _, follow := range []bool{false, true} {
		logs := map[string][]byte{}
		for k, err := range x.Output(ctx, sdk.WithOffset(sdk.Stdout, 1<<20), sdk.WithOffset(sdk.Stderr, size/2),
			sdk.WithFollow(follow)) {
			if err != nil {
				t.Fatal(err)
			}
			if want := int64(1<<20 + len(logs[k.Stream])); k.Offset != want {
				t.Fatalf("a chunk of %s starts at %d, want %d", k.Stream, k.Offset, want)
			}
			logs[k.Stream] = append(logs[k.Stream], k.Data...)
		}
		if !bytes.Equal(logs[sdk.Stdout], stdout.Bytes()[1<<20:]) || len(logs[sdk.Stderr]) != 0 {
			t.Errorf("from an offset, follow %v: %d and %d bytes", follow, len(logs[sdk.Stdout]), len(logs[sdk.Stderr]))
		}
	}
	for _, err := range x.Output(ctx, sdk.WithOffset(sdk.Stdout, size+1)) {
		if err != nil {
			wantError(t, err, protocol.OutOfRange, protocol.ReasonSequenceBeyondEnd)
		}
	}
}

func anExecCanBeWaitedForAgain(t *testing.T, f *fleet.Fleet) {
	ctx, s := f.Context(time.Minute), f.Create("again")
	called, leave := context.WithCancel(ctx)
	defer leave()
	left := make(chan error, 1)
	go func() {
		_, err := s.Exec(called, shell("until test -e /tmp/go; do sleep 0.02; done; echo late"), sdk.WithID("x"))
		left <- err
	}()
	f.Eventually(20*time.Second, "the exec runs", func() error { return stateIs(ctx, s, "x", protocol.ExecStateRunning) })
	leave()
	err := <-left
	wantError(t, err, protocol.Cancelled, "")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the error does not match that of the context: %v", err)
	}
	x, err := s.GetExec(ctx, "x")
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	_, err = x.Wait(short)
	wantError(t, err, protocol.DeadlineExceeded, "")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the error does not match that of the context: %v", err)
	}
	if _, err := s.Start(ctx, shell("sleep 0.3; touch /tmp/go")); err != nil {
		t.Fatal(err)
	}
	for _, moment := range []string{"while it runs", "long after"} {
		r, err := x.Wait(ctx)
		if err != nil || string(r.Stdout) != "late\n" {
			t.Errorf("%s: %+v, %v", moment, r, err)
		}
	}
	cancelled, cancelNow := context.WithCancel(ctx)
	cancelNow()
	_, err = s.Exec(cancelled, command("true"))
	wantError(t, err, protocol.Cancelled, "")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the error does not match that of the context: %v", err)
	}
}

// A caller can leave a loop over output before the exec ends, whether the output is live or from the log.
func aLoopOverOutputCanBeLeftEarly(t *testing.T, f *fleet.Fleet) {
	ctx, s := f.Context(time.Minute), f.Create("left")
	x, err := s.Start(ctx, shell("echo here; sleep 1000"))
	if err != nil {
		t.Fatal(err)
	}
	first := func(follow bool) (text string) {
		for k, err := range x.Output(ctx, sdk.WithFollow(follow)) {
			if err != nil {
				t.Fatal(err)
			}
			return string(k.Data)
		}
		return ""
	}
	f.Eventually(20*time.Second, "the log has the output", func() error {
		if got := first(false); got != "here\n" {
			return fmt.Errorf("%q", got)
		}
		return nil
	})
	within(t, 20*time.Second, "leaving the loop", func() {
		if got := first(true); got != "here\n" {
			t.Errorf("got %q", got)
		}
	})
	if err := x.Cancel(ctx); err != nil {
		t.Error(err)
	}
}

func parallelExecsGetTheirOwnResults(t *testing.T, f *fleet.Fleet) {
	ctx, s := f.Context(time.Minute), f.Create("parallel")
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			var out bytes.Buffer
			var opts []sdk.ExecOption
			if i%2 == 0 {
				opts = append(opts, sdk.WithStdout(&out))
			}
			r, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"sh", "-c", "echo $N; exit $N"},
				Env: map[string]string{"N": fmt.Sprint(i)}}, opts...)
			if err != nil {
				t.Error(err)
				return
			}
			if got := out.String() + string(r.Stdout); got != fmt.Sprintf("%d\n", i) || *r.ExitCode != i {
				t.Errorf("exec %d printed %q and exited with %d", i, got, *r.ExitCode)
			}
		})
	}
	wg.Wait()
}

type brokenWriter struct{}

var errBroken = errors.New("broken")

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

func aFailingWriterEndsTheCallNotTheExec(t *testing.T, f *fleet.Fleet) {
	ctx, s := f.Context(time.Minute), f.Create("writer")
	_, err := s.Exec(ctx, shell("echo a; sleep 0.3; exit 4"), sdk.WithStdout(brokenWriter{}), sdk.WithID("x"))
	wantError(t, err, protocol.Cancelled, "")
	if !errors.Is(err, errBroken) {
		t.Errorf("the error does not match that of the writer: %v", err)
	}
	x, err := s.GetExec(ctx, "x")
	if err != nil {
		t.Fatal(err)
	}
	if r, err := x.Wait(ctx); err != nil || *r.ExitCode != 4 {
		t.Errorf("%+v, %v", r, err)
	}
}

func codeRunsFromStdin(t *testing.T, f *fleet.Fleet) {
	ctx, s := f.Context(time.Minute), f.Create("code")
	code := "printf '%s' 'it'\\''s \"$HOME\" `x` $(y) \\\\'"
	r, err := s.RunCode(ctx, "sh", code)
	if err != nil || string(r.Stdout) != "it's \"$HOME\" `x` $(y) \\\\" {
		t.Errorf("%q, %v", r.Stdout, err)
	}
	for _, interpreter := range []string{"", "sh\n", "-c", "a b", "/bin/sh"} {
		_, err := s.RunCode(ctx, interpreter, "true")
		wantError(t, err, protocol.InvalidArgument, "")
	}
}

func TestP9_InvalidOptionsAreRefused(t *testing.T) {
	s := new(sdk.Client).Sandbox("x")
	for name, call := range map[string]func() error{
		"negative offset": func() error {
			_, err := s.ExecByID("y").Wait(t.Context(), sdk.WithOffset(sdk.Stdout, -1))
			return err
		},
		"unknown stream": func() error {
			_, err := s.ExecByID("y").Wait(t.Context(), sdk.WithOffset("out", 1))
			return err
		},
		"negative collect": func() error { _, err := s.Exec(t.Context(), command("true"), sdk.WithCollect(-1)); return err },
		"bad id":           func() error { _, err := s.Exec(t.Context(), command("true"), sdk.WithID("a.b")); return err },
		"empty id":         func() error { _, err := s.Exec(t.Context(), command("true"), sdk.WithID("")); return err },
		"empty request": func() error {
			_, err := s.Exec(t.Context(), command("true"), sdk.WithRequestID(""))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) { wantError(t, call(), protocol.InvalidArgument, "") })
	}
}
