package supervise_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/supervise"
)

// A sandbox outlives its worker, so its supervisor may be an older version, which creates its own files.
func TestFiles_AnOlderSupervisorGetsNoFiles(t *testing.T) {
	t.Parallel()
	dir, run := t.TempDir(), openRun(t)
	link, err := supervise.Listen(supervise.Config{ControlDir: dir, Run: run,
		Welcome: control.Welcome{Key: make([]byte, 32), Command: []string{"true"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer link.Close()
	link.Expect(os.Getpid())
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(dir, control.SocketName), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	conn.Write(control.Append(nil, &control.Notice{Hello: &control.Hello{Version: control.Version, Boot: "old"}}))
	go link.Start(t.Context(), control.Start{ID: "e", Argv: []string{"true"}})
	r := bufio.NewReader(readerOfFiles{t, conn})
	for range 2 {
		var c control.Command
		if _, err := control.Read(r, control.MaxCommand, nil, &c); err != nil {
			t.Fatal(err)
		}
		if c.Start != nil && c.Start.Files != 0 || c.Welcome != nil && c.Welcome.Files != 0 {
			t.Errorf("the worker announces files to an older supervisor: %+v", c)
		}
	}
	if made, _ := filepath.Glob(filepath.Join(run.Name(), "*/*")); len(made) > 0 {
		t.Errorf("the worker created files for an older supervisor: %v", made)
	}
}

// readerOfFiles reads a connection, and fails the test if files arrive with the bytes.
type readerOfFiles struct {
	t    *testing.T
	conn *net.UnixConn
}

func (r readerOfFiles) Read(p []byte) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4*control.MaxFiles))
	n, oobn, _, _, err := r.conn.ReadMsgUnix(p, oob)
	if oobn > 0 {
		r.t.Error("the worker sent files to an older supervisor")
	}
	return max(n, 0), err
}

// An exec runs even if its files cannot be created. Then only a part of its output is stored.
func TestFiles_AnExecRunsWithoutFiles(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	for i, c := range []struct {
		id, script string
		truncated  bool
	}{
		{"short", "echo out; echo err >&2; exit 3", false},
		{"long", "seq 1 100000; exit 3", true},
	} {
		if err := os.MkdirAll(filepath.Join(s.dir, fmt.Sprintf("run/execs/.%d.stdout", i+1)), 0o700); err != nil {
			t.Fatal(err)
		}
		r := s.exec(control.Start{ID: c.id, Argv: []string{"sh", "-c", c.script}, InlineLimit: 16 << 10})
		if code(r) != "3" || !r.Inline || r.Truncated != c.truncated {
			t.Errorf("exec %s ended with exit code %s, inline: %t, truncated: %t", c.id, code(r), r.Inline, r.Truncated)
		}
		want := "out\nerr\n"
		if c.truncated {
			want = "1\n2\n3\n"
		}
		if got := string(r.Stdout) + string(r.Stderr); !strings.HasPrefix(got, want) ||
			c.truncated && len(r.Stdout) != 8<<10 || !c.truncated && got != want {
			t.Errorf("exec %s has %d bytes of stdout, and the stderr %q", c.id, len(r.Stdout), r.Stderr)
		}
	}
}

// A supervisor that has reached its limit of open files refuses starts, and accepts them again when execs have ended.
func TestFiles_ASupervisorAtItsLimitOfOpenFilesRefusesStarts(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{args: []string{"--ulimit", "nofile=48:48"}})
	var running []string
	refused := 0
	for i := range 24 {
		id := fmt.Sprintf("e%d", i)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		status, err := s.link.Start(ctx, control.Start{ID: id, Argv: []string{"sleep", "1000"}, OutputLimit: 1 << 20})
		cancel()
		switch r := status.Result; {
		case err == nil && r == nil:
			running = append(running, id)
		case protocol.CodeOf(err) == protocol.ResourceExhausted,
			r != nil && r.Error != nil && r.Error.Code == protocol.ResourceExhausted:
			refused++
		default:
			t.Fatalf("start %s: got %+v and error %v, want a running exec or resource_exhausted", id, status.Result, err)
		}
	}
	if len(running) == 0 || refused == 0 {
		t.Errorf("%d execs run, and %d were refused; want some of both", len(running), refused)
	}
	for _, id := range running { // repeats the start of a running exec
		s.start(control.Start{ID: id, Argv: []string{"sleep", "1000"}, OutputLimit: 1 << 20})
	}
	for _, id := range running {
		s.cancel(id, 0)
		s.end(id)
	}
	s.poll("an exec to run again", func() bool { return code(s.exec(control.Start{Argv: []string{"true"}})) == "0" })
}

// A repeated start gets the same files, even if the worker was restarted after the first start.
func TestFiles_ARepeatedStartGetsTheSameFiles(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	start := control.Start{ID: "again", Argv: []string{"sh", "-c",
		"seq 1 20000; while [ ! -e /tmp/go ]; do sleep 0.02; done; seq 1 20000"}}
	s.start(start)
	s.await("output", func() bool { return len(s.outputs["again"]) > 0 })
	begin, err := supervise.FilesOf(s.run, "again")
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(filepath.Join(s.dir, "run/execs", begin+".stdout"))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		s.link.Close()
		s.listen(control.Welcome{Key: s.key}, nil)
		s.link.Expect(s.pid)
		s.start(start)
	}
	s.t.Cleanup(s.link.Close)
	s.sh("touch /tmp/go")
	r := s.end("again")
	after, err := os.Stat(filepath.Join(s.dir, "run/execs", begin+".stdout"))
	if err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(before, after) || after.Size() != r.StdoutBytes {
		t.Errorf("the file for stdout was replaced, or has %d bytes instead of %d", after.Size(), r.StdoutBytes)
	}
	files, _ := filepath.Glob(filepath.Join(s.dir, "run/execs", begin+".*"))
	if len(files) != control.ExecFiles {
		t.Errorf("the exec has the files %v, want %d", files, control.ExecFiles)
	}
	held := 0
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", s.pid))
	for _, fd := range fds {
		if target, _ := os.Readlink(fd); strings.Contains(target, "/"+begin+".") {
			held++
		}
	}
	if held > 1 { // the exit record stays open for a moment
		t.Errorf("PID 1 still has %d files of the ended exec open", held)
	}
}
