package supervise_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/supervise"
)

// startOpen starts an exec whose stdin stays open.
func (s *sandbox) startOpen(argv ...string) string {
	s.t.Helper()
	return s.start(control.Start{Argv: argv, OpenStdin: true})
}

// input sends one piece of input, and returns the answer.
func (s *sandbox) input(in control.Input) (control.InputStatus, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return s.link.Input(ctx, in)
}

func (s *sandbox) mustInput(in control.Input) control.InputStatus {
	s.t.Helper()
	status, err := s.input(in)
	if err != nil {
		s.t.Fatalf("input at %d of %d bytes: %v", in.Offset, len(in.Data), err)
	}
	return status
}

// wantRefused checks that the input of an exec is refused with a reason.
func (s *sandbox) wantRefused(in control.Input, code protocol.Code, reason string) {
	s.t.Helper()
	status, err := s.input(in)
	if !errors.Is(err, &protocol.Error{Code: code, Reason: reason}) {
		s.t.Errorf("input at %d of %d bytes (eof %t): got %+v and %v, want %s with reason %s", in.Offset,
			len(in.Data), in.EOF,
			status, err, code, reason)
	}
}

// awaitOutput waits until an exec has written a text to its stdout.
func (s *sandbox) awaitOutput(id, want string) {
	s.t.Helper()
	s.poll(fmt.Sprintf("the output %q", want), func() bool { return s.output(id, control.StdoutName) == want })
}

func TestInput_RepeatedPiecesAreWrittenOnceAndGapsAreRefused(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	id := s.startOpen("cat")
	if got := s.mustInput(control.Input{ID: id, Data: []byte("abc")}); got.Taken != 3 || got.Closed {
		t.Errorf("after 3 bytes, the supervisor says %+v", got)
	}
	s.awaitOutput(id, "abc")
	s.mustInput(control.Input{ID: id, Data: []byte("abc")})
	s.mustInput(control.Input{ID: id, Offset: 1, Data: []byte("bcdef")})
	s.wantRefused(control.Input{ID: id, Offset: 7, Data: []byte("h")}, protocol.OutOfRange, protocol.ReasonInputGap)
	s.wantRefused(control.Input{ID: id, Offset: -1, Data: []byte("h")}, protocol.OutOfRange, protocol.ReasonInputGap)
	s.wantRefused(control.Input{ID: id, Offset: 7, EOF: true}, protocol.OutOfRange, protocol.ReasonInputGap)
	if got := s.mustInput(control.Input{ID: id, Attach: true}); got.Taken != 6 || got.Closed {
		t.Errorf("after 6 bytes, the supervisor says %+v", got)
	}
	s.mustInput(control.Input{ID: id, Offset: 2, Data: []byte("cd"), EOF: true}) // bytes follow it, so this is no end
	if got := s.mustInput(control.Input{ID: id, Offset: 6, Data: []byte("g"), EOF: true}); got.Taken != 7 || !got.Closed {
		t.Errorf("after the end, the supervisor says %+v", got)
	}
	if r := s.end(id); string(r.Stdout) != "abcdefg" || code(r) != "0" {
		t.Errorf("cat printed %q and ended with %s, want each byte once", r.Stdout, code(r))
	}
}

func TestInput_TheEndIsPassedOnOnce(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	id := s.startOpen("sh", "-c", "cat; sleep 1000")
	for range 3 {
		if got := s.mustInput(control.Input{ID: id, Data: []byte("x"), EOF: true}); got.Taken != 1 || !got.Closed {
			t.Errorf("after the end, the supervisor says %+v", got)
		}
	}
	s.awaitOutput(id, "x")
	s.wantRefused(control.Input{ID: id, Offset: 1, Data: []byte("y")}, protocol.FailedPrecondition,
		protocol.ReasonInputClosed)
	s.cancel(id, 0)
	s.end(id)
}

func TestInput_AProcessThatNeverReadsStopsOnlyItsOwnInput(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	deaf := make([]string, 100)
	var sending sync.WaitGroup
	piece := make([]byte, control.MaxInput)
	ctx, cancel := context.WithCancel(t.Context())
	for i := range deaf {
		deaf[i] = s.startOpen("sleep", "1000")
		sending.Go(func() {
			for offset := int64(0); ; {
				status, err := s.link.Input(ctx, control.Input{ID: deaf[i], Offset: offset, Data: piece})
				if err != nil {
					return
				}
				if offset = status.Taken; offset > 1<<20 {
					t.Errorf("%d bytes of input were taken that nobody reads", offset)
					return
				}
			}
		})
	}
	if r := s.sh("echo fine"); string(r.Stdout) != "fine\n" {
		t.Errorf("another exec printed %q", r.Stdout)
	}
	id := s.startOpen("cat")
	s.mustInput(control.Input{ID: id, Data: []byte("read"), EOF: true})
	if r := s.end(id); string(r.Stdout) != "read" {
		t.Errorf("an exec that reads printed %q", r.Stdout)
	}
	s.cancel(deaf[0], 0)
	s.end(deaf[0])
	s.poll("the end of the input", func() bool {
		_, err := s.input(control.Input{ID: deaf[0], Attach: true})
		return protocol.CodeOf(err) == protocol.FailedPrecondition
	})
	cancel()
	sending.Wait()
	if kb := residentKB(t, s.pid); kb > 40<<10 {
		t.Errorf("the supervisor uses %d KiB with 100 processes that do not read", kb)
	}
}

func residentKB(t *testing.T, pid int) (kb int) {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := bytes.Cut(data, []byte("VmRSS:"))
	if _, err := fmt.Sscan(string(rest), &kb); err != nil {
		t.Fatal(err)
	}
	return kb
}

func TestInput_AProcessThatClosesItsStdinBreaksThePipe(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	id := s.startOpen("sh", "-c", "exec <&-; echo closed; exec sleep 1000")
	s.awaitOutput(id, "closed\n")
	s.wantRefused(control.Input{ID: id, Data: []byte("x")}, protocol.FailedPrecondition, protocol.ReasonBrokenPipe)
	s.wantRefused(control.Input{ID: id, Attach: true}, protocol.FailedPrecondition, protocol.ReasonBrokenPipe)
	s.cancel(id, 0)
	s.end(id)
}

func TestInput_TheEndOfTheExecEndsPiecesAndWatches(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	id := s.startOpen("sleep", "1000")
	ended := make(chan error, 2)
	go func() {
		_, err := s.input(control.Input{ID: id, Watch: true})
		ended <- err
	}()
	go func() {
		for offset := int64(0); ; {
			status, err := s.input(control.Input{ID: id, Offset: offset, Data: make([]byte, control.MaxInput)})
			if offset = status.Taken; err != nil {
				ended <- err
				return
			}
		}
	}()
	s.cancel(id, 0)
	for range 2 {
		// The pipe breaks before the exec ends, if the process is killed while it is full.
		why := protocol.AsError(<-ended).Reason
		if why != protocol.ReasonExecTerminal && why != protocol.ReasonBrokenPipe {
			t.Errorf("at the end of the exec: %s", why)
		}
	}
	s.end(id)
	plain := s.start(control.Start{Argv: []string{"sleep", "1000"}})
	s.wantRefused(control.Input{ID: plain, Data: []byte("x")}, protocol.FailedPrecondition, protocol.ReasonNoStdin)
	s.cancel(plain, 0)
	s.wantRefused(control.Input{ID: "unknown", Data: []byte("x")}, protocol.NotFound, "")
	s.wantRefused(control.Input{ID: id, Data: make([]byte, control.MaxInput+1)}, protocol.InvalidArgument,
		protocol.ReasonTooLarge)
	s.end(plain)
}

// The worker's end of the connection is closed again and again, without an end of file. Each new connection continues
// with a guess that is too early, as a worker does that does not know what its predecessor's last piece became.
func TestInput_ContinuesExactlyAfterTheWorkerDies(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	data := make([]byte, 4<<20)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	id := s.startOpen("sha256sum")
	offset, workers := int64(0), 0
	for offset < int64(len(data)) {
		until := offset + int64(random.IntN(600<<10))
		ctx, cancel := context.WithCancel(t.Context())
		for offset < min(until, int64(len(data))) {
			end := min(offset+int64(random.IntN(control.MaxInput)), int64(len(data)))
			if end >= until && workers%2 == 0 {
				cancel() // the piece may be on its way when the worker dies
			}
			status, err := s.link.Input(ctx, control.Input{ID: id, Offset: offset, Data: data[offset:end]})
			if err != nil {
				break
			}
			offset = status.Taken
		}
		cancel()
		s.link.Close()
		workers++
		s.listen(control.Welcome{Key: s.key}, nil)
		s.expect()
		s.connected()
		status := s.mustInput(control.Input{ID: id, Attach: true})
		if status.Taken < offset || status.Closed {
			t.Fatalf("worker %d took over at %+v, its predecessor knew of %d bytes", workers, status, offset)
		}
		if offset = status.Taken; offset < int64(len(data)) {
			offset = max(0, offset-int64(random.IntN(100<<10)))
		}
	}
	for offset < int64(len(data)) {
		offset = s.mustInput(control.Input{ID: id, Offset: offset,
			Data: data[offset:min(offset+control.MaxInput, int64(len(data)))]}).Taken
	}
	s.mustInput(control.Input{ID: id, Offset: int64(len(data)), EOF: true})
	want := fmt.Sprintf("%x  -\n", sha256.Sum256(data))
	if r := s.end(id); string(r.Stdout) != want {
		t.Errorf("after %d workers, the hash of the input is %q, want %q", workers, r.Stdout, want)
	}
}

// A piece of an earlier writer that waits for the process must not be written after another writer attached.
func TestInput_AttachingGivesUpThePieceThatWaits(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	id := s.startOpen("sh", "-c", "while [ ! -e /tmp/go ]; do sleep 0.02; done; tail -c 3")
	first := make(chan control.InputStatus, 1)
	offset := int64(0)
	for full := false; !full; { // fill the pipe
		go func() {
			status, _ := s.input(control.Input{ID: id, Offset: offset, Data: bytes.Repeat([]byte("a"), control.MaxInput)})
			first <- status
		}()
		select {
		case status := <-first:
			offset = status.Taken
		case <-time.After(300 * time.Millisecond):
			full = true
		}
	}
	status := s.mustInput(control.Input{ID: id, Attach: true})
	if early := <-first; early != status {
		t.Errorf("the earlier writer was told %+v, the next one %+v", early, status)
	}
	s.sh("touch /tmp/go")
	s.mustInput(control.Input{ID: id, Offset: status.Taken, Data: []byte("xyz"), EOF: true})
	if r := s.end(id); string(r.Stdout) != "xyz" {
		t.Errorf("the last bytes are %q, want those of the last writer", r.Stdout)
	}
}

func TestInput_LeavesNoDescriptor(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	descriptors := func() int {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.pid))
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	s.sh("true")
	before := descriptors()
	for i := range 60 {
		id := s.startOpen("head", "-c", "1")
		in := control.Input{ID: id, Data: []byte("x"), EOF: i%3 == 0}
		if i%3 != 1 {
			_, _ = s.input(in) // the command may have ended
		} else {
			s.cancel(id, 0)
		}
		s.end(id)
	}
	ids := []string{s.start(control.Start{Argv: []string{"no-such-program"}, OpenStdin: true})}
	s.end(ids[0])
	s.poll("as many descriptors as before", func() bool { return descriptors() <= before })
}

// A worker must not start an exec with an open stdin through a supervisor that would start it with an empty one.
func TestInput_AnOlderSupervisorGetsNoExecWithAnOpenStdin(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	link, err := supervise.Listen(supervise.Config{ControlDir: dir, Run: openRun(t),
		Welcome: control.Welcome{Key: make([]byte, 32)}})
	if err != nil {
		t.Fatal(err)
	}
	defer link.Close()
	link.Expect(os.Getpid())
	conn, err := net.Dial("unix", filepath.Join(dir, control.SocketName))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(control.Append(nil,
		&control.Notice{Hello: &control.Hello{Version: control.Version}})); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, started := link.Start(ctx, control.Start{ID: "e", Argv: []string{"cat"}, OpenStdin: true})
	_, asked := link.Input(ctx, control.Input{ID: "e", Attach: true})
	for _, err := range []error{started, asked} {
		if protocol.AsError(err).Reason != protocol.ReasonUnsupported {
			t.Errorf("an older supervisor: %v, want unsupported", err)
		}
	}
}
