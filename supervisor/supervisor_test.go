package supervisor

import (
	"fmt"
	"io"
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

func TestAccounts_ResolveAsDockerDoes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	passwd, group := filepath.Join(dir, "passwd"), filepath.Join(dir, "group")
	a := newAccounts(passwd, group, DefaultGroupBase)
	os.WriteFile(passwd, []byte("# comment\n\nbroken\nroot:x:0:0:r:/root:/bin/sh\nagent:x:1000:1001::/home/agent:/bin/sh\nodd:x:huge:1::/:/bin/sh\n"), 0o600)
	os.WriteFile(group, []byte("wheel:x:10:root,agent\nagents:x:1001:agent\nbuild:x:20:agent\n"), 0o600)
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
			t.Errorf("%q is %s, want %s", spec, got, want)
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
	holder, err := os.OpenFile(fifo, os.O_RDWR, 0) // a reader of the FIFO would wait for its bytes
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	for _, path := range []string{fifo, dir, filepath.Join(dir, "none"), "/dev/zero"} {
		a := newAccounts(path, path, DefaultGroupBase)
		if acct, err := a.resolve("1000"); err != nil || acct.uid != 1000 {
			t.Errorf("%s: %+v, %v", path, acct, err)
		}
	}
}

func TestTrees_AZombieIsGoneUnlessItsThreadsLive(t *testing.T) {
	t.Parallel()
	for status, want := range map[string]bool{
		"Name:\tx\nState:\tR (running)\nThreads:\t1\n": false,
		"Name:\tx\nState:\tZ (zombie)\nThreads:\t1\n":  true,
		"Name:\tx\nState:\tZ (zombie)\nThreads:\t3\n":  false,
		"Name:\tx\nState:\tX (dead)\nThreads:\t0\n":    true,
		"": false,
	} {
		if got := ended([]byte(status)); got != want {
			t.Errorf("%q ended: %v, want %v", status, got, want)
		}
	}
}

func TestOutbox_IsBoundedForAWorkerThatDoesNotRead(t *testing.T) {
	t.Parallel()
	b := newOutbox()
	e := &exec{id: "e"}
	for range 1000 {
		b.putOutput(e)
	}
	if len(b.entries) != 1 {
		t.Errorf("%d entries for the output of one exec", len(b.entries))
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
		t.Errorf("%d bytes of output wait, want at most %d", held, inlineRoom)
	}
}

func TestHello_APageFitsItsFrame(t *testing.T) {
	t.Parallel()
	code := 255
	now := time.Now()
	long := protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonCwdInvalid, "%s", strings.Repeat("x", 1000))
	result := control.Result{ID: strings.Repeat("i", 64), ExitCode: &code, Cancelled: true, TimedOut: true, Failed: true,
		Error: long, Started: now, Ended: now, StdoutBytes: 1 << 60, StderrBytes: 1 << 60, Truncated: true}
	hello := control.Hello{Execs: slices.Repeat([]control.ExecStatus{{ID: result.ID, Started: now, StdoutBytes: 1 << 60, StderrBytes: 1 << 60, Result: &result}}, execsPerHello)}
	if size := len(control.Append(nil, &control.Notice{Hello: &hello})); size > control.MaxNotice {
		t.Errorf("a full page has %d bytes, at most %d are allowed", size, control.MaxNotice)
	}
}

func TestHello_ManyExecsComeInPages(t *testing.T) {
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
			t.Errorf("page %d: %d execs, more: %v", i, len(hello.Execs), hello.More)
		}
	}
	if len(box.entries) != 4 || seen != len(s.execs) {
		t.Errorf("%d pages with %d execs", len(box.entries), seen)
	}
}

// pipeStream returns a stream over a pipe of this process.
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
	s := newStream(r, &sink{fd: fd, limit: limit}, 1<<20, make(slots, 1), func() {})
	return s, w, path
}

func TestX9_SettleTakesOnlyWhatIsInThePipe(t *testing.T) {
	t.Parallel()
	s, w, path := pipeStream(t, 1<<20)
	io.WriteString(w, "there")
	s.settle() // without a pump, it must not wait for the end of the pipe
	io.WriteString(w, "later")
	go s.pump()
	if data, _ := os.ReadFile(path); string(data) != "there" {
		t.Errorf("the file holds %q", data)
	}
	size, truncated, head, whole := s.output()
	if size != 5 || truncated || string(head) != "there" || !whole {
		t.Errorf("%d %v %q %v", size, truncated, head, whole)
	}
	for range 100 { // the pipe is drained all the same
		w.Write(make([]byte, 64<<10))
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
		t.Errorf("it took %d bytes, a pipe holds %d", size, chunk)
	}
	s.pipe.Close()
	writing.Wait()
}

func TestX8_AWriteErrorTruncatesTheOutput(t *testing.T) {
	t.Parallel()
	s, w, path := pipeStream(t, 1<<20)
	var err error
	if s.sink.fd, err = unix.Open(path, unix.O_RDONLY, 0); err != nil { // writing to a file that is open for reading only fails
		t.Fatal(err)
	}
	io.WriteString(w, "lost")
	s.settle()
	if size, truncated, head, _ := s.output(); size != 0 || !truncated || len(head) != 0 {
		t.Errorf("%d %v %q", size, truncated, head)
	}
}
