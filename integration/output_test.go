package integration

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/coordinator"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// logs opens the stream of output with a NATS client without the SDK, as an operator could.
func logs(t *testing.T, f *fleet.Fleet) (natsjs.JetStream, natsjs.Stream) {
	t.Helper()
	nc, err := f.NATS("test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := natsjs.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), protocol.StreamLogs)
	if err != nil {
		t.Fatal(err)
	}
	return js, stream
}

// TestOutputThatTheServerLostIsPublishedAgain removes the last acknowledged chunks from the log and breaks all
// connections. A kill of a single server can have the same effect.
func TestOutputThatTheServerLostIsPublishedAgain(t *testing.T) {
	t.Parallel()
	const size = 600_000                                        // the output has three chunks
	f := fleet.Start(t, fleet.Options{Servers: 1, Workers: -1}) // the link leads to one server
	link := f.Link()
	f.Worker("w1", fleet.Role{NATS: link.URL()})
	s := f.Create("lost")
	ctx := f.Context(time.Minute)
	_, stream := logs(t, f)
	lose := func() {
		info, err := stream.Info(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.DeleteMsg(ctx, info.State.LastSeq); err != nil {
			t.Fatal(err)
		}
		link.Break()
	}
	stored := func(n uint64) {
		f.Eventually(20*time.Second, "the log has the output", func() error {
			info, err := stream.Info(ctx)
			if err == nil && info.State.Bytes < n {
				err = fmt.Errorf("%d bytes are stored", info.State.Bytes)
			}
			return err
		})
	}
	want := bytes.Repeat([]byte{'x'}, size)
	for _, c := range []struct{ what, script string }{
		{"while it runs", "head -c %d /dev/zero | tr '\\0' x; while test ! -e /tmp/go; do sleep 0.05; done"},
		{"just after its end", "head -c %d /dev/zero | tr '\\0' x"},
	} {
		before, err := stream.Info(ctx)
		if err != nil {
			t.Fatal(err)
		}
		x, err := s.Start(ctx, protocol.ExecSpec{Command: []string{"sh", "-c", fmt.Sprintf(c.script, size)}})
		if err != nil {
			t.Fatal(err)
		}
		stored(before.State.Bytes + size)
		if c.what == "just after its end" {
			if _, err := x.Wait(ctx); err != nil {
				t.Fatal(err)
			}
		}
		lose()
		if c.what == "while it runs" {
			if _, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"touch", "/tmp/go"}}); err != nil {
				t.Fatal(err)
			}
		}
		f.Eventually(20*time.Second, "the output is complete again, lost "+c.what, func() error {
			var out bytes.Buffer
			if _, err := x.Wait(ctx, sdk.WithStdout(&out)); err != nil {
				return err
			}
			if !bytes.Equal(out.Bytes(), want) {
				return fmt.Errorf("it has %d of %d bytes", out.Len(), size)
			}
			return nil
		})
	}
	f.Judge()
}

// TestTheHashOfOutputSurvivesItsWorker kills the worker of an exec when a part of the exec's output was already removed
// from the disk. The next worker cannot read this part again. The SDK compares the output that it reads with the hash.
func TestTheHashOfOutputSurvivesItsWorker(t *testing.T) {
	t.Parallel()
	const size = 20 << 20
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{})
	s := f.Create("hashed")
	ctx := f.Context(time.Minute)
	const script = "head -c %d /dev/urandom; while test ! -e /tmp/go; do sleep 0.05; done; echo end; echo error >&2"
	x, err := s.Start(ctx, protocol.ExecSpec{Command: []string{"sh", "-c", fmt.Sprintf(script, size)},
		OutputLimit: 2 * size})
	if err != nil {
		t.Fatal(err)
	}
	_, stream := logs(t, f)
	f.Eventually(20*time.Second, "the log has the output", func() error {
		info, err := stream.Info(ctx)
		if err == nil && info.State.Bytes < size {
			err = fmt.Errorf("%d bytes are stored", info.State.Bytes)
		}
		return err
	})
	f.Eventually(20*time.Second, "output is freed on disk", func() error {
		saved, err := filepath.Glob(filepath.Join(w.Role.StateDir, "*", "*", "sandboxes", "*", "hashes", "*"))
		if len(saved) != 1 {
			return fmt.Errorf("%d execs have saved hashes, %v", len(saved), err)
		}
		return nil
	})
	w.Kill()
	w.Restart()
	if _, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"touch", "/tmp/go"}}); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	result, err := x.Wait(ctx, sdk.WithStdout(&out))
	if err != nil {
		t.Fatal(err)
	}
	if want := protocol.OutputHash(out.Bytes()); out.Len() != size+4 || result.StdoutSHA256 != want {
		t.Errorf("%d bytes with the hash %s, want %d bytes with the hash %s", out.Len(), result.StdoutSHA256, size+4, want)
	}
	if want := protocol.OutputHash([]byte("error\n")); result.StderrSHA256 != want {
		t.Errorf("stderr has the hash %q, want %q", result.StderrSHA256, want)
	}
	f.Judge()
}

// TestAnExecEndsThoughTheLogOfOutputIsFull makes the stream of output refuse every message. The exec still ends with
// the exit code of its command, and its result says that output is missing.
func TestAnExecEndsThoughTheLogOfOutputIsFull(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	f.Worker("w1", fleet.Role{Patience: time.Second})
	s := f.Create("full")
	ctx := f.Context(40 * time.Second)
	js, stream := logs(t, f)
	cfg := stream.CachedInfo().Config
	cfg.Discard, cfg.MaxBytes = natsjs.DiscardNew, 1024
	if _, err := js.UpdateStream(ctx, cfg); err != nil {
		t.Fatal(err)
	}
	result, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"sh", "-c", "head -c 100000 /dev/zero; exit 3"}})
	if err != nil {
		t.Fatal(err)
	}
	exitsWith(t, result, 3)
	if !result.Truncated || result.OutputError == nil || result.OutputError.Reason != protocol.ReasonOutputNotKept ||
		result.StdoutBytes != 0 {
		t.Errorf("truncated %v, %d bytes, %v; want output_not_kept", result.Truncated, result.StdoutBytes,
			result.OutputError)
	}
	x, err := s.GetExec(ctx, result.ID)
	if err != nil {
		t.Fatal(err)
	}
	if info := x.Info(); info.OutputError == nil || info.ExitCode == nil || *info.ExitCode != 3 {
		t.Errorf("the exec is %+v", info)
	}
	for _, err := range x.Output(ctx, sdk.WithFollow(true)) {
		if err != nil {
			t.Errorf("its logs: %v", err)
		}
	}
	f.Judge()
}

// TestTheExitCodeIsKnownThoughOutputComesSlowly makes publishing slow. Publishing the output of an exec with a timeout
// then takes longer than coordinators wait for the end of the exec.
func TestTheExitCodeIsKnownThoughOutputComesSlowly(t *testing.T) {
	t.Parallel()
	const size = 8 << 20 // 32 chunks, which take 16 s to publish
	f := fleet.Start(t, fleet.Options{Workers: -1, Timing: coordinator.Timing{Overdue: 8 * time.Second}})
	f.Worker("w1", fleet.Role{SlowAt: "output", SlowBy: 500 * time.Millisecond, OutputWithin: 2 * time.Second})
	s := f.Create("slow")
	ctx := f.Context(40 * time.Second)
	result, err := s.Exec(ctx, protocol.ExecSpec{
		Command: []string{"sh", "-c", fmt.Sprintf("head -c %d /dev/zero; exit 3", size)},
		Timeout: protocol.Duration(time.Second), Grace: protocol.Duration(time.Second),
	})
	if err != nil {
		t.Fatal(err)
	}
	exitsWith(t, result, 3)
	if !result.Truncated || result.OutputError == nil || result.OutputError.Reason != protocol.ReasonOutputNotKept {
		t.Errorf("truncated %v, %v; want output_not_kept", result.Truncated, result.OutputError)
	}
	if result.StdoutBytes == 0 || result.StdoutBytes >= size {
		t.Errorf("%d bytes are in the log", result.StdoutBytes)
	}
	f.Judge()
}

// TestOutputOutlivesAServerThatIsKilled kills the single NATS server while execs print, and again after the execs have
// ended. The server loses output that it had acknowledged. In the end no output is missing.
func TestOutputOutlivesAServerThatIsKilled(t *testing.T) {
	t.Parallel()
	const execs, pieces, size = 4, 25, 60_000
	f := fleet.Start(t, fleet.Options{Workers: -1, Killable: true})
	f.Worker("w1", fleet.Role{})
	s := f.Create("killed")
	ctx := f.Context(90 * time.Second)
	script := fmt.Sprintf("i=0; while [ $i -lt %d ]; do head -c %d /dev/zero | tr '\\0' x; sleep 0.1; i=$((i+1)); "+
		"done; exit 3", pieces, size)
	var running []*sdk.Exec
	for range execs {
		x, err := s.Start(ctx, protocol.ExecSpec{Command: []string{"sh", "-c", script}})
		if err != nil {
			t.Fatal(err)
		}
		running = append(running, x)
	}
	wait := func(x *sdk.Exec) ([]byte, error) {
		var out bytes.Buffer
		result, err := x.Wait(ctx, sdk.WithStdout(&out))
		if err != nil {
			return nil, err
		}
		exitsWith(t, result, 3)
		if result.Truncated || result.OutputError != nil {
			t.Errorf("exec %s: truncated %v, %v", x.ID(), result.Truncated, result.OutputError)
		}
		return out.Bytes(), nil
	}
	stored := func() error {
		_, stream := logs(t, f)
		if stream.CachedInfo().State.Bytes < size {
			return fmt.Errorf("%d bytes", stream.CachedInfo().State.Bytes)
		}
		return nil
	}
	for range 2 {
		f.Eventually(20*time.Second, "the log has output", stored)
		f.RestartServer()
	}
	for _, x := range running {
		if _, err := wait(x); err != nil {
			t.Fatal(err)
		}
	}
	f.RestartServer()
	for _, x := range running {
		f.Eventually(20*time.Second, "the output is complete", func() error {
			out, err := wait(x)
			if err == nil && !bytes.Equal(out, bytes.Repeat([]byte{'x'}, pieces*size)) {
				err = fmt.Errorf("it has %d of %d bytes", len(out), pieces*size)
			}
			return err
		})
	}
	f.Judge()
}
