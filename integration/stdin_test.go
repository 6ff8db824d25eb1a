package integration

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// noise returns a reader of n bytes that are always the same, and their hash as sha256sum prints it.
func noise(n int64) (io.Reader, string) {
	stream := func() io.Reader { return io.LimitReader(rand.NewChaCha8([32]byte{7}), n) }
	sum := sha256.New()
	_, _ = io.Copy(sum, stream()) // never fails
	return struct{ io.Reader }{stream()}, fmt.Sprintf("%x  -\n", sum.Sum(nil))
}

// lively calls back each time after every more bytes were read.
type lively struct {
	io.Reader
	read, every int64
	call        func()
}

func (l *lively) Read(p []byte) (int, error) {
	n, err := l.Reader.Read(p)
	before := l.read / l.every
	if l.read += int64(n); l.read/l.every != before {
		l.call()
	}
	return n, err
}

func TestInputOfExecs(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(3 * time.Minute)
	box := f.Create("input")
	f.Run(t, "100 MB", func(t *testing.T) { inputHash(ctx, t, box, 100<<20, nil) })
	f.Run(t, "a conversation", func(t *testing.T) { inputEcho(ctx, t, box) })
	f.Run(t, "two writers", func(t *testing.T) { inputTwoWriters(ctx, t, box) })
	f.Run(t, "the exec ends first", func(t *testing.T) { inputEndsFirst(ctx, t, box) })
	f.Run(t, "refusals", func(t *testing.T) { inputRefusals(ctx, t, f, box) })
	f.Run(t, "a command", func(t *testing.T) { inputCommand(ctx, t, box) })
}

// inputHash lets an exec compute the hash of n bytes. disturb is called during the copy.
func inputHash(ctx context.Context, t *testing.T, box *sdk.Sandbox, n int64, disturb func()) {
	t.Helper()
	reader, want := noise(n)
	if disturb != nil {
		reader = &lively{Reader: reader, every: n / 3, call: disturb}
	}
	began := time.Now()
	r, err := box.Exec(ctx, sdk.ExecSpec{Command: []string{"sha256sum"}}, sdk.WithStdin(reader))
	if err != nil || string(r.Stdout) != want {
		t.Fatalf("the hash of %d bytes: got %+v and %v, want %s", n, r, err, want)
	}
	t.Logf("%d MiB in %s", n>>20, time.Since(began).Round(time.Millisecond))
}

func inputEcho(ctx context.Context, t *testing.T, box *sdk.Sandbox) {
	cmd := box.Command(ctx, "cat")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var took []time.Duration
	var got [1]byte
	for i := range 100 {
		began := time.Now()
		if _, err := stdin.Write([]byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(stdout, got[:]); err != nil || got[0] != byte(i) {
			t.Fatalf("byte %d came back as %d: %v", i, got[0], err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	t.Logf("a byte and back: p50 %s, p99 %s", took[50].Round(time.Microsecond), took[99].Round(time.Microsecond))
	stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func startCat(ctx context.Context, t *testing.T, box *sdk.Sandbox, command ...string) *sdk.Exec {
	t.Helper()
	x, err := box.Start(ctx, sdk.ExecSpec{Command: command, OpenStdin: true})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func attach(ctx context.Context, t *testing.T, x *sdk.Exec) io.WriteCloser {
	t.Helper()
	w, err := x.Stdin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func inputTwoWriters(ctx context.Context, t *testing.T, box *sdk.Sandbox) {
	x := startCat(ctx, t, box, "cat")
	first := attach(ctx, t, x)
	if _, err := first.Write([]byte("one ")); err != nil {
		t.Fatal(err)
	}
	detached, detach := context.WithCancel(ctx)
	if err := awaitOutput(ctx, x, "one "); err != nil {
		t.Fatal(err)
	}
	second := attach(detached, t, box.ExecByID(x.ID()))
	wantRefusal(t, first.Close(), protocol.Cancelled, protocol.ReasonInputTakenOver)
	if _, err := second.Write([]byte("two ")); err != nil {
		t.Fatal(err)
	}
	if err := awaitOutput(ctx, x, "one two "); err != nil {
		t.Fatal(err)
	}
	detach() // the end of a writer is not the end of the stdin
	third := attach(ctx, t, x)
	if _, err := third.Write([]byte("three")); err != nil {
		t.Fatal(err)
	}
	if err := third.Close(); err != nil {
		t.Fatal(err)
	}
	if r, err := x.Wait(ctx); err != nil || string(r.Stdout) != "one two three" {
		t.Errorf("cat printed %q: %v", r.Stdout, err)
	}
}

// awaitOutput waits until an exec has printed a text.
func awaitOutput(ctx context.Context, x *sdk.Exec, want string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	got := &until{want: want, done: cancel}
	_, err := x.Wait(ctx, sdk.WithStdout(got), sdk.WithStderr(io.Discard))
	if got.String() == want {
		return nil
	}
	return fmt.Errorf("the output is %q, want %q: %w", got.String(), want, err)
}

type until struct {
	bytes.Buffer
	want string
	done func()
}

func (u *until) Write(p []byte) (int, error) {
	n, err := u.Buffer.Write(p)
	if u.Len() >= len(u.want) {
		u.done()
	}
	return n, err
}

// endless is a reader like a terminal at which nobody types.
type endless struct{ closed chan struct{} }

func (e endless) Read([]byte) (int, error) { <-e.closed; return 0, io.EOF }

func inputEndsFirst(ctx context.Context, t *testing.T, box *sdk.Sandbox) {
	closed := make(chan struct{})
	defer close(closed)
	r, err := box.Exec(ctx, sdk.ExecSpec{Command: []string{"echo", "done"}}, sdk.WithStdin(endless{closed}))
	if err != nil || string(r.Stdout) != "done\n" {
		t.Errorf("a command that does not read: %+v and %v", r, err)
	}
	reader, _ := noise(10 << 20)
	r, err = box.Exec(ctx, sdk.ExecSpec{Command: []string{"head", "-c", "3"}}, sdk.WithStdin(reader))
	if err != nil || len(r.Stdout) != 3 {
		t.Errorf("a command that reads the beginning: %+v and %v", r, err)
	}
	x := startCat(ctx, t, box, "head", "-c", "1")
	copied := make(chan error, 1)
	go func() { copied <- x.CopyStdin(ctx, io.MultiReader(bytes.NewReader([]byte("x")), endless{closed})) }()
	if r, err := x.Wait(ctx); err != nil || string(r.Stdout) != "x" {
		t.Errorf("a command that reads a byte: %+v and %v", r, err)
	}
	if err := <-copied; err != nil {
		t.Errorf("the copy to a command that ended: %v", err)
	}
	_, err = x.Stdin(ctx)
	wantRefusal(t, err, protocol.FailedPrecondition, protocol.ReasonExecTerminal)
}

func inputRefusals(ctx context.Context, t *testing.T, f *fleet.Fleet, box *sdk.Sandbox) {
	x, err := box.Start(ctx, sdk.ExecSpec{Command: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = x.Stdin(ctx)
	wantRefusal(t, err, protocol.FailedPrecondition, protocol.ReasonNoStdin)
	if err := x.Cancel(ctx); err != nil {
		t.Error(err)
	}
	_, err = box.ExecByID("nobody").Stdin(ctx)
	wantRefusal(t, err, protocol.NotFound, "")
	_, err = box.Start(ctx, sdk.ExecSpec{Command: []string{"cat"}, OpenStdin: true, Stdin: []byte("x")})
	if e := protocol.AsError(err); err == nil || e.Code != protocol.InvalidArgument || e.Field != "spec.open_stdin" {
		t.Errorf("stdin together with open_stdin: %v", err)
	}
}

func inputCommand(ctx context.Context, t *testing.T, box *sdk.Sandbox) {
	reader, want := noise(1 << 20)
	cmd := box.Command(ctx, "sha256sum")
	cmd.Stdin = reader
	if out, err := cmd.Output(); err != nil || string(out) != want {
		t.Errorf("the hash of a command's stdin: %q and %v, want %q", out, err, want)
	}
}

func TestInputOfExecs_SurvivesKilledWorkersAndServers(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Killable: true})
	ctx := f.Context(4 * time.Minute)
	box := f.Create("input")
	inputHash(ctx, t, box, 1<<20, nil)
	for what, outage := range outages {
		disturb := func() { outage(f) }
		before := usageOf(f.Processes("worker")[0])
		f.Run(t, what+", in the middle", func(t *testing.T) {
			disturbed := 0
			inputHash(ctx, t, box, 100<<20, func() { disturbed++; disturb() })
			if disturbed < 2 {
				t.Errorf("%d outages happened in the middle of the input", disturbed)
			}
		})
		f.Run(t, what+", many inputs", func(t *testing.T) { inputsThrough(ctx, t, box, disturb) })
		f.Run(t, what+", another client", func(t *testing.T) { inputOfAnotherClient(ctx, t, f, box, disturb) })
		f.Run(t, what+", what is left", func(*testing.T) { wantNoMore(f, f.Processes("worker")[0], before) })
	}
}

// inputsThrough writes to many execs before and after an outage.
func inputsThrough(ctx context.Context, t *testing.T, box *sdk.Sandbox, outage func()) {
	t.Helper()
	var execs []*sdk.Exec
	var inputs []io.WriteCloser
	for range streamsThrough {
		x := startCat(ctx, t, box, "cat")
		w := attach(ctx, t, x)
		if _, err := w.Write([]byte("one ")); err != nil {
			t.Fatal(err)
		}
		execs, inputs = append(execs, x), append(inputs, w)
	}
	outage()
	for i, w := range inputs {
		if _, err := w.Write([]byte("two")); err != nil {
			t.Errorf("input %d: %v", i, err)
		}
		if err := w.Close(); err != nil {
			t.Errorf("the end of input %d: %v", i, err)
		}
		if r, err := execs[i].Wait(ctx); err != nil || string(r.Stdout) != "one two" {
			t.Errorf("cat %d printed %q: %v", i, r.Stdout, err)
		}
	}
}

// inputOfAnotherClient continues the input of a client that is gone, after restart.
func inputOfAnotherClient(ctx context.Context, t *testing.T, f *fleet.Fleet, box *sdk.Sandbox, restart func()) {
	t.Helper()
	connect := func() *sdk.Client {
		c, err := sdk.Connect(ctx, f.Options(sdk.Options{}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	x := startCat(ctx, t, box, "cat")
	client := connect()
	first := attach(ctx, t, client.Sandbox(box.ID()).ExecByID(x.ID()))
	if _, err := first.Write([]byte("one ")); err != nil {
		t.Fatal(err)
	}
	if err := awaitOutput(ctx, x, "one "); err != nil {
		t.Fatal(err)
	}
	client.Close()
	restart()
	second := attach(ctx, t, connect().Sandbox(box.ID()).ExecByID(x.ID()))
	if _, err := second.Write([]byte("two")); err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if r, err := x.Wait(ctx); err != nil || string(r.Stdout) != "one two" {
		t.Errorf("cat printed %q: %v", r.Stdout, err)
	}
}
