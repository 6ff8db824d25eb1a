package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

func TestAccounts_AreResolvedLikeByDocker(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	passwd, group := filepath.Join(dir, "passwd"), filepath.Join(dir, "group")
	a := newAccounts(passwd, group, DefaultGroupBase)
	for path, text := range map[string]string{
		passwd: "# comment\n\nbroken\nroot:x:0:0:r:/root:/bin/sh\nagent:x:1000:1001::/home/agent:/bin/sh\n" +
			"odd:x:huge:1::/:/bin/sh\n",
		group: "wheel:x:10:root,agent\nagents:x:1001:agent\nbuild:x:20:agent\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for spec, want := range map[string]string{
		"root":         "0 0 [10] root /root",
		"agent":        "1000 1001 [10 20] agent /home/agent",
		"1000":         "1000 1001 [10 20] agent /home/agent",
		"agent:wheel":  "1000 10 [] agent /home/agent",
		"agent:7":      "1000 7 [] agent /home/agent",
		"4242":         "4242 0 [] 4242 /",
		"4242:4343":    "4242 4343 [] 4242 /",
		"nobody":       "user_unknown",
		"agent:nogrp":  "user_unknown",
		"odd":          "user_unknown",
		"":             "user_unknown",
		"-1":           "user_unknown",
		"4294967295":   "user_unknown",
		"0:1500000000": "user_unknown",
	} {
		acct, err := a.resolve(spec)
		got := fmt.Sprintf("%d %d %v %s %s", acct.uid, acct.gid, acct.groups, acct.name, acct.home)
		if err != nil {
			got = err.Reason
		}
		if got != want {
			t.Errorf("user %q: got %s, want %s", spec, got, want)
		}
	}
}

func TestAccounts_AHostileFileCountsAsEmpty(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	holder, err := os.OpenFile(fifo, os.O_RDWR, 0) // with this writer, reading the FIFO would block
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	for _, path := range []string{fifo, dir, filepath.Join(dir, "none"), "/dev/zero"} {
		a := newAccounts(path, path, DefaultGroupBase)
		if acct, err := a.resolve("1000"); err != nil || acct.uid != 1000 {
			t.Errorf("with %s as the file, uid 1000 is %+v, and the error is %v; want an account", path, acct, err)
		}
	}
}

func TestTrees_AZombieHasEndedUnlessItHasOtherThreads(t *testing.T) {
	t.Parallel()
	for status, want := range map[string]bool{
		"Name:\tx\nState:\tR (running)\nThreads:\t1\n": false,
		"Name:\tx\nState:\tZ (zombie)\nThreads:\t1\n":  true,
		"Name:\tx\nState:\tZ (zombie)\nThreads:\t3\n":  false,
		"Name:\tx\nState:\tX (dead)\nThreads:\t0\n":    true,
		"": false,
	} {
		if got := ended([]byte(status)); got != want {
			t.Errorf("a process with the status %q has ended: %t, want %t", status, got, want)
		}
	}
}

func TestOutbox_IsBoundedIfTheWorkerDoesNotRead(t *testing.T) {
	t.Parallel()
	b := newOutbox()
	e := &exec{id: "e"}
	for range 1000 {
		b.putOutput(e)
	}
	if len(b.entries) != 1 {
		t.Errorf("the outbox has %d entries for the output of one exec, want 1", len(b.entries))
	}
	held := 0
	for range 100 {
		b.put(&control.Notice{Result: &control.Result{Inline: true, Stdout: make([]byte, control.MaxInline)}})
	}
	for _, entry := range b.entries {
		if entry.notice != nil {
			held += len(entry.notice.Result.Stdout)
		}
	}
	if held == 0 || held > inlineRoom {
		t.Errorf("%d bytes of inline output wait in the outbox, want at most %d", held, inlineRoom)
	}
}

func TestHello_AFullPageFitsIntoAFrame(t *testing.T) {
	t.Parallel()
	code := 255
	now := time.Now()
	long := protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonCwdInvalid, "%s", strings.Repeat("x", 1000))
	result := control.Result{ID: strings.Repeat("i", 64), ExitCode: &code, Cancelled: true, TimedOut: true, Failed: true,
		Error: long, Started: now, Ended: now, StdoutBytes: 1 << 60, StderrBytes: 1 << 60, Truncated: true}
	status := control.ExecStatus{ID: result.ID, Started: now, StdoutBytes: 1 << 60, StderrBytes: 1 << 60, Result: &result}
	hello := control.Hello{Execs: slices.Repeat([]control.ExecStatus{status}, execsPerHello)}
	if size := len(control.Append(nil, &control.Notice{Hello: &hello})); size > control.MaxNotice {
		t.Errorf("a full page of a Hello has %d bytes, at most %d are allowed", size, control.MaxNotice)
	}
}

func TestHello_ManyExecsAreSentInPages(t *testing.T) {
	t.Parallel()
	s := &supervisor{execs: map[string]*exec{}}
	s.primary = &primary{s: s}
	for i := range 3*execsPerHello + 1 {
		id := fmt.Sprint(i)
		s.execs[id] = &exec{s: s, id: id, result: &control.Result{ID: id}}
	}
	box := newOutbox()
	s.attach(box)
	seen := 0
	for i, entry := range box.entries {
		hello := entry.notice.Hello
		seen += len(hello.Execs)
		if last := i == len(box.entries)-1; len(hello.Execs) > execsPerHello || hello.More == last {
			t.Errorf("page %d has %d execs, and announces more: %t", i, len(hello.Execs), hello.More)
		}
	}
	if len(box.entries) != 4 || seen != len(s.execs) {
		t.Errorf("the Hello has %d pages with %d execs, want 4 with %d", len(box.entries), seen, len(s.execs))
	}
}

// pipeStream returns a stream, the write end of its pipe, and the path of the file to which the stream writes.
func pipeStream(t *testing.T, limit int64) (*stream, *os.File, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "out")
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close(); r.Close() })
	s := newStream(r, &sink{fd: fd, limit: limit}, 1<<20, nil, make(slots, 1), func() {})
	return s, w, path
}

// write writes to a pipe, and fails the test if the write fails.
func write(t *testing.T, w *os.File, data []byte) {
	t.Helper()
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
}

func TestX9_SettleTakesOnlyWhatIsInThePipe(t *testing.T) {
	t.Parallel()
	s, w, path := pipeStream(t, 1<<20)
	write(t, w, []byte("there"))
	s.settle() // must not wait for the end of the pipe
	write(t, w, []byte("later"))
	go s.pump()
	if data, err := os.ReadFile(path); err != nil || string(data) != "there" {
		t.Errorf("the file has the content %q, want %q; error %v", data, "there", err)
	}
	size, truncated, head, whole := s.output()
	if size != 5 || truncated || string(head) != "there" || !whole {
		t.Errorf("the output is %q with size %d, truncated: %t, complete: %t", head, size, truncated, whole)
	}
	for range 100 { // would block if the pipe were not read any more
		write(t, w, make([]byte, 64<<10))
	}
}

func TestX9_SettleEndsWhileAWriterContinues(t *testing.T) {
	t.Parallel()
	s, w, _ := pipeStream(t, 1<<40)
	var writing sync.WaitGroup
	writing.Go(func() {
		for {
			if _, err := w.Write(make([]byte, 4096)); err != nil {
				return
			}
		}
	})
	for full := 0; full < chunk; runtime.Gosched() {
		s.raw.Control(func(fd uintptr) { full, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	}
	s.settle()
	if size, _, _, _ := s.output(); size != chunk {
		t.Errorf("settle stored %d bytes, want %d, the capacity of the pipe", size, chunk)
	}
	s.pipe.Close()
	writing.Wait()
}

func TestX8_AWriteErrorTruncatesTheOutput(t *testing.T) {
	t.Parallel()
	s, w, path := pipeStream(t, 1<<20)
	var err error
	closeFD(s.sink.fd)
	if s.sink.fd, err = unix.Open(path, unix.O_RDONLY, 0); err != nil { // read-only, so that writing fails
		t.Fatal(err)
	}
	write(t, w, []byte("lost"))
	s.settle()
	if size, truncated, head, _ := s.output(); size != 0 || !truncated || len(head) != 0 {
		t.Errorf("the output is %q with size %d, truncated: %t; want none, truncated", head, size, truncated)
	}
}
