package integration

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

func TestX6_StreamsStaySeparateAndResumeFromAnOffset(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	s := f.Create("x6")
	const lines = 40
	x, err := s.Start(ctx, script(`i=0
		while [ $i -lt 40 ]; do
			while [ $i -eq 20 ] && [ ! -e /tmp/go ]; do usleep 20000; done
			echo "out $i"; echo "err $i" >&2; usleep 20000; i=$((i+1))
		done`))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]*bytes.Buffer{sdk.Stdout: {}, sdk.Stderr: {}}
	connections := 0
	for live := false; connections < 1000; connections++ {
		ended := true
		for k, err := range x.Output(ctx, sdk.WithFollow(true),
			sdk.WithOffset(sdk.Stdout, int64(got[sdk.Stdout].Len())), sdk.WithOffset(sdk.Stderr, int64(got[sdk.Stderr].Len()))) {
			if err != nil {
				t.Fatal(err)
			}
			b := got[k.Stream]
			if k.Offset != int64(b.Len()) {
				t.Fatalf("connection %d: a chunk of %s at %d follows byte %d", connections, k.Stream, k.Offset, b.Len())
			}
			b.Write(k.Data)
			if !live && b.Len() > 0 {
				now, err := s.GetExec(ctx, x.ID())
				if err != nil {
					t.Fatal(err)
				}
				live = !now.Info().State.Terminal()
				if !live {
					t.Fatal("the first output came when the exec had ended")
				}
				mustExec(ctx, t, s, script("touch /tmp/go"))
			}
			ended = false
			break // leave the loop: the connection is lost after every chunk
		}
		if ended {
			break
		}
	}
	for stream, prefix := range map[string]string{sdk.Stdout: "out ", sdk.Stderr: "err "} {
		var want strings.Builder
		for i := range lines {
			fmt.Fprintf(&want, "%s%d\n", prefix, i)
		}
		if got[stream].String() != want.String() {
			t.Errorf("%s over %d connections is %q", stream, connections, got[stream])
		}
	}
	if connections < 3 {
		t.Errorf("the output came over %d connections only: nothing was streamed", connections)
	}
	r, err := x.Wait(ctx)
	if err != nil || string(r.Stdout) != got[sdk.Stdout].String() || string(r.Stderr) != got[sdk.Stderr].String() {
		t.Errorf("the collected result differs from the stream: %v", err)
	}
}

func TestX7_OutputIsBytes(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	s := f.Create("x7")
	// "ä€😀" arrives in pieces that split each character.
	text := `printf '\303'; usleep 60000; printf '\244\342\202'; usleep 60000; printf '\254\360\237'; usleep 60000; ` +
		`printf '\230\200'`
	var live bytes.Buffer
	if _, err := s.Exec(ctx, script(text), sdk.WithStdout(&live)); err != nil || live.String() != "ä€😀" {
		t.Errorf("split characters, streamed: %v, %q", err, live.String())
	}
	r, err := s.Exec(ctx, script(text))
	if err != nil || string(r.Stdout) != "ä€😀" {
		t.Errorf("split characters, collected: %v, %q", err, r.Stdout)
	}
	garbage := make([]byte, 100<<10)
	_, _ = rand.Read(garbage) // never fails
	r, err = s.Exec(ctx, protocol.ExecSpec{Command: []string{"sh", "-c", `tee /tmp/garbage >&2; printf ` +
		`'\377\376\200\0'`}, Stdin: garbage})
	if err != nil || !bytes.Equal(r.Stderr, garbage) || string(r.Stdout) != "\xff\xfe\x80\x00" {
		t.Errorf("bytes that are not text: %v, %d bytes, %q", err, len(r.Stderr), r.Stdout)
	}
	// The history also contains these bytes, and each event must have a JSON form.
	for e, err := range f.Client.Sandbox(s.ID()).Events(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Exec != nil && e.Exec.Inline && e.Kind == protocol.ExecFinished {
			protocol.EncodeAs(protocol.ContentJSON, e) // panics if it cannot encode the event
		}
	}
}

// blockedWriter is a writer that blocks each write until the test releases it.
type blockedWriter struct {
	release chan struct{}
	bytes.Buffer
}

func (w *blockedWriter) Write(p []byte) (int, error) {
	<-w.release
	return w.Buffer.Write(p)
}

func TestX8_OutputIsCappedAndASlowReaderDelaysNoProcess(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	s := f.Create("x8")

	spec := script(`yes 0123456789abcde | head -c 20000000; yes e | head -c 300000 >&2; echo > /tmp/done`)
	spec.OutputLimit = 100_000
	r, err := s.Exec(ctx, spec, sdk.WithCollect(1<<20))
	if err != nil || code(r) != "0" {
		t.Fatalf("a command that writes more than its cap: %v, exit code %s", err, code(r))
	}
	if !r.Truncated || r.StdoutBytes != 100_000 || r.StderrBytes != 100_000 || len(r.Stdout) != 100_000 ||
		len(r.Stderr) != 100_000 {
		t.Errorf("truncated %v, %d and %d bytes kept, %d and %d collected, want 100000", r.Truncated, r.StdoutBytes,
			r.StderrBytes, len(r.Stdout), len(r.Stderr))
	}
	if want := strings.Repeat("0123456789abcde\n", 6250); string(r.Stdout) != want {
		t.Error("the kept output is not the beginning of the output")
	}
	mustExec(ctx, t, s, protocol.ExecSpec{Command: []string{"test", "-e", "/tmp/done"}})
	spec = script("head -c 100000 /dev/zero")
	spec.OutputLimit = 100_000
	if r, err = s.Exec(ctx, spec); err != nil || r.Truncated {
		t.Errorf("output of exactly the cap: %v, truncated %v", err, r.Truncated)
	}

	w := &blockedWriter{release: make(chan struct{})}
	done := make(chan error, 1)
	go func() {
		_, err := s.Exec(ctx, script("yes 0123456789abcde | head -c 20000000"), sdk.WithID("slow"), sdk.WithStdout(w))
		done <- err
	}()
	f.Eventually(20*time.Second, "an exec with a blocked reader ends", func() error {
		x, err := s.GetExec(ctx, "slow")
		if err == nil && x.Info().State != protocol.ExecStateFinished {
			err = fmt.Errorf("it is %s", x.Info().State)
		}
		return err
	})
	mustExec(ctx, t, s, protocol.ExecSpec{Command: []string{"true"}}) // the slow reader does not slow other execs
	close(w.release)
	if err := <-done; err != nil || w.Len() != 20_000_000 {
		t.Errorf("the slow reader gets %d bytes: %v", w.Len(), err)
	}
}
