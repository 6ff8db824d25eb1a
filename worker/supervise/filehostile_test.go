package supervise_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// mustSh runs a script in the sandbox.
func (s *sandbox) mustSh(script string) string {
	s.t.Helper()
	r := s.sh(script)
	if code(r) != "0" {
		s.t.Fatalf("%s\nended with %s: %s %s", script, code(r), r.Stdout, r.Stderr)
	}
	return string(r.Stdout)
}

const hostileTree = `mkdir -p /tmp/h/dir && cd /tmp/h && mkfifo fifo dir/fifo && ln -s loop loop &&
	ln -s /proc/1/root root && ln -s fifo tofifo && ln -s none dangling &&
	echo x > file && ln -s file tofile && ln -s dir todir &&
	{ busybox nc -l -U -p sock >/dev/null 2>&1 & } ; chmod 700 /tmp/h/dir; echo needle > dir/in; ln -s /dev/zero zero`

func TestFiles_SpecialFilesAreRefused(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	s.mustSh(hostileTree)
	f := s.fileSession("0")
	ctx := fileContext(t)
	for path, want := range map[string]string{
		"fifo": protocol.ReasonNotRegular, "tofifo": protocol.ReasonNotRegular, "zero": protocol.ReasonNotRegular,
		"/dev/tty": protocol.ReasonNotRegular, "/dev/null": protocol.ReasonNotRegular, "dir": protocol.ReasonIsDirectory,
		"todir": protocol.ReasonIsDirectory, "loop": protocol.ReasonLinkLoop, "dangling": protocol.ReasonPathNotFound,
		"file/x": protocol.ReasonNotDirectory,
	} {
		at := path
		if !strings.HasPrefix(path, "/") {
			at = "/tmp/h/" + path
		}
		_, err := f.Read(ctx, protocol.FileRead{Path: at})
		if e := protocol.AsError(err); e == nil || e.Reason != want {
			t.Errorf("read %s: got %v, want reason %s", path, err, want)
		}
		if path == "dangling" || path == "/dev/tty" {
			continue
		}
		for _, how := range []protocol.FileWriteMode{protocol.FileReplace, protocol.FileAppend} {
			_, err = f.Write(ctx, protocol.FileWrite{Path: at, How: how}, strings.NewReader("x"))
			if e := protocol.AsError(err); e == nil || e.Reason != want {
				t.Errorf("%s %s: got %v, want reason %s", how, path, err, want)
			}
		}
		_, err = f.Edit(ctx, protocol.FileEdit{Path: at, Old: []byte("x")})
		if e := protocol.AsError(err); e == nil || e.Reason != want {
			t.Errorf("edit %s: got %v, want reason %s", path, err, want)
		}
	}
	put(t, f, "/tmp/h/tofile", "through a link")
	if got := s.mustSh("cat /tmp/h/file; readlink /tmp/h/tofile"); got != "through a linkfile\n" {
		t.Errorf("a write through a link left %q", got)
	}
	put(t, f, "/tmp/h/dangling", "new")
	if got := s.mustSh("cat /tmp/h/none"); got != "new" {
		t.Errorf("a write through a dangling link left %q", got)
	}
	stats, err := f.Stat(ctx, protocol.FileStat{Paths: []string{"/tmp/h/loop", "/tmp/h/dangling2"}, Follow: true})
	if err != nil || stats.Files[0].Error.Reason != protocol.ReasonLinkLoop {
		t.Errorf("stat of a loop: %+v, %v", stats, err)
	}
}

func TestFiles_HostileTreesAreWalked(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	s.mustSh(hostileTree)
	f := s.fileSession("0")
	ctx := fileContext(t)
	p, err := f.List(ctx, protocol.FileList{Path: "/tmp/h", Depth: -1})
	if err != nil || slices.ContainsFunc(paths(p), func(at string) bool { return strings.HasPrefix(at, "root/") }) {
		t.Errorf("a list followed a link, or failed: %q, %v", paths(p), err)
	}
	m, err := f.Grep(ctx, protocol.FileGrep{Path: "/tmp/h", Expression: "needle"})
	if err != nil || len(m.Matches) != 1 {
		t.Errorf("grep: %+v, %v", m, err)
	}
	var out bytes.Buffer
	count, err := f.Pack(ctx, protocol.FilePack{Path: "/tmp/h"}, &out)
	if err != nil || count.Skips < 2 || count.Skipped[0].Error.Reason != protocol.ReasonNotRegular {
		t.Errorf("packed %+v, %v; want the FIFOs among the skipped", count, err)
	}
	count, err = f.Copy(ctx, protocol.FileCopy{From: "/tmp/h", To: "/tmp/copy", Recursive: true})
	if err != nil || count.Skips < 2 {
		t.Errorf("copied %+v, %v", count, err)
	}
	if _, err = f.Remove(ctx, protocol.FileRemove{Path: "/tmp/h", Recursive: true}); err != nil {
		t.Errorf("remove: %v", err)
	}
	s.mustSh("test ! -e /tmp/h && test -e /bin/busybox && test -e /etc/passwd")
}

// A directory that is replaced by a link while it is walked leads nowhere else.
func TestFiles_ADirectoryThatBecomesALinkLeadsNowhere(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	s.mustSh("mkdir -p /tmp/w/d /tmp/outside && echo precious > /tmp/outside/precious && echo secret > /tmp/w/d/in")
	// A process with two names for one directory entry swaps a directory and a link all the time.
	id := s.start(control.Start{Argv: []string{"sh", "-c",
		"cd /tmp/w; ln -s /tmp/outside l; while :; do mv d x; mv l d; mv d l; mv x d; done"}})
	f := s.fileSession("0")
	ctx := fileContext(t)
	for range 100 {
		p, err := f.List(ctx, protocol.FileList{Path: "/tmp/w", Depth: -1})
		if err != nil {
			t.Fatal(err)
		}
		m, err := f.Grep(ctx, protocol.FileGrep{Path: "/tmp/w", Expression: "precious"})
		if err != nil {
			t.Fatal(err)
		}
		if len(m.Matches) > 0 || slices.ContainsFunc(paths(p), func(at string) bool {
			return strings.HasSuffix(at, "precious")
		}) {
			t.Fatalf("a walk left the directory: %q, %+v", paths(p), m.Matches)
		}
	}
	s.cancel(id, 0)
	s.end(id)
	if _, err := f.Remove(ctx, protocol.FileRemove{Path: "/tmp/w", Recursive: true}); err != nil {
		t.Error(err)
	}
	s.mustSh("test -e /tmp/outside/precious")
}

func TestFiles_LargeAndDeepTrees(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	const wide, deep = 100_000, 1000
	s.mustSh(fmt.Sprintf("mkdir -p /tmp/t/wide && cd /tmp/t/wide && seq 1 %d | xargs touch", wide))
	s.mustSh(fmt.Sprintf("cd /tmp/t; i=0; while [ $i -lt %d ]; do mkdir d && cd d; i=$((i+1)); done; echo needle > bottom",
		deep))
	f := s.fileSession("0")
	ctx := fileContext(t)
	seen, page := 0, ""
	for {
		p, err := f.List(ctx, protocol.FileList{Path: "/tmp/t/wide", Limit: protocol.MaxFilePage, Page: page})
		if err != nil {
			t.Fatal(err)
		}
		seen += len(p.Files)
		if page = p.Next; page == "" {
			break
		}
	}
	if seen != wide {
		t.Errorf("listed %d entries, want %d", seen, wide)
	}
	m, err := f.Grep(ctx, protocol.FileGrep{Path: "/tmp/t", Expression: "needle"})
	if err != nil || len(m.Matches) != 1 || strings.Count(m.Matches[0].Path, "/") != deep || m.Skips != 0 {
		t.Errorf("the bottom of a deep tree was not found: %v", err)
	}
	count, err := f.Pack(ctx, protocol.FilePack{Path: "/tmp/t", Excludes: []string{"wide"}}, io.Discard)
	if err != nil || count.Entries != deep+2 {
		t.Errorf("packed %+v, %v", count, err)
	}
	var tree bytes.Buffer
	if _, err := f.Pack(ctx, protocol.FilePack{Path: "/tmp/t", Excludes: []string{"wide"}}, &tree); err != nil {
		t.Error(err)
	}
	if count, err = f.Unpack(ctx, protocol.FileUnpack{Path: "/tmp/u"}, &tree); err != nil || count.Entries != deep+1 {
		t.Errorf("unpacked %+v, %v", count, err)
	}
	if count, err = f.Remove(ctx, protocol.FileRemove{Path: "/tmp/t", Recursive: true}); err != nil ||
		count.Entries != wide+deep+3 {
		t.Errorf("removed %+v, %v", count, err)
	}
	s.helpersAreSmall(40 << 10)
}

func TestFiles_AFullDiskIsReported(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{image: emptyImage, args: []string{"--tmpfs", "/tmp:mode=1777,size=1m"}})
	f := s.fileSession("65534")
	put(t, f, "/tmp/file", "old")
	_, err := f.Write(fileContext(t), protocol.FileWrite{Path: "/tmp/file"}, bytes.NewReader(make([]byte, 4<<20)))
	refusedWith(t, "write too much", err, protocol.ResourceExhausted, protocol.ReasonDiskFull)
	if got := get(t, f, protocol.FileRead{Path: "/tmp/file"}); got != "old" {
		t.Errorf("after a failed write, the file has %q", got)
	}
	tree := archive([]file{{name: "big", data: make([]byte, 4<<20), mode: 0o600, kind: '0'}})
	_, err = f.Unpack(fileContext(t), protocol.FileUnpack{Path: "/tmp/tree"}, bytes.NewReader(tree))
	refusedWith(t, "unpack too much", err, protocol.ResourceExhausted, protocol.ReasonDiskFull)
	p, err := f.List(fileContext(t), protocol.FileList{Path: "/tmp", Hidden: true, Depth: -1})
	if err != nil || strings.Join(paths(p), " ") != "file tree" {
		t.Errorf("failed writes left %q, %v", paths(p), err)
	}
	put(t, f, "/tmp/file", "new") // the same helper still works
}

func TestFiles_TheKernelDecidesWhatTheUserMayDo(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	s.mustSh("mkdir -m 700 /tmp/private && echo secret > /tmp/private/file && " +
		"echo x > /tmp/readable && chmod 600 /tmp/private/file")
	f, ctx := s.fileSession("65534"), fileContext(t)
	_, err := f.Read(ctx, protocol.FileRead{Path: "/tmp/private/file"})
	refusedWith(t, "read", err, protocol.PermissionDenied, protocol.ReasonPathDenied)
	_, err = f.Write(ctx, protocol.FileWrite{Path: "/etc/passwd"}, strings.NewReader("x"))
	refusedWith(t, "write", err, protocol.PermissionDenied, protocol.ReasonPathDenied)
	_, err = f.Mkdir(ctx, protocol.FileMkdir{Path: "/new"})
	refusedWith(t, "mkdir", err, protocol.PermissionDenied, protocol.ReasonPathDenied)
	_, err = f.Remove(ctx, protocol.FileRemove{Path: "/bin", Recursive: true})
	refusedWith(t, "remove", err, protocol.PermissionDenied, protocol.ReasonPathDenied)
	count, err := f.Pack(ctx, protocol.FilePack{Path: "/tmp"}, io.Discard)
	if err != nil || count.Skips != 1 || count.Skipped[0].Path != "private" {
		t.Errorf("packed %+v, %v; want the unreadable directory among the skipped", count, err)
	}
	info, err := f.Write(ctx, protocol.FileWrite{Path: "/tmp/mine", Owner: "65534:0"}, strings.NewReader("x"))
	if err != nil || info.UID != 65534 {
		t.Errorf("the user's own id as owner: %+v, %v", info, err)
	}
	_, err = s.fileSession("nobody-there").Stat(ctx, protocol.FileStat{Paths: []string{"/"}})
	refusedWith(t, "an unknown user", err, protocol.FailedPrecondition, protocol.ReasonUserUnknown)
	agent := s.fileSession("agent")
	if info := put(t, agent, "/home/agent/file", "x"); info.Owner != "agent" || info.GID != 1000 {
		t.Errorf("a file of a named user is %+v", info)
	}
}

func TestFiles_APrivilegedRootMayGiveFilesAway(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{privileged: true, args: []string{"--cap-add", "CHOWN"}})
	f, ctx := s.fileSession("0"), fileContext(t)
	info, err := f.Write(ctx, protocol.FileWrite{Path: "/tmp/file", Owner: "1000:10"}, strings.NewReader("x"))
	if err != nil || info.UID != 1000 || info.GID != 10 {
		t.Errorf("wrote %+v, %v", info, err)
	}
	if info = put(t, f, "/tmp/file", "again"); info.UID != 1000 {
		t.Errorf("a replaced file has the owner %d, want the old one", info.UID)
	}
	tree := archive([]file{{name: "d/", kind: '5', mode: 0o755, uid: 1000}, {name: "d/f", kind: '0', mode: 0o600, uid: 7}})
	if _, err = f.Unpack(ctx, protocol.FileUnpack{Path: "/tmp/t", KeepOwner: true}, bytes.NewReader(tree)); err != nil {
		t.Fatal(err)
	}
	stats, err := f.Stat(ctx, protocol.FileStat{Paths: []string{"/tmp/t/d", "/tmp/t/d/f"}})
	if err != nil || stats.Files[0].File.UID != 1000 || stats.Files[1].File.UID != 7 {
		t.Errorf("unpacked %+v, %v", stats, err)
	}
}

// helpers lists the pids, on the host, of the sandbox's helpers.
func (s *sandbox) helpers() (pids []string) {
	s.t.Helper()
	entries, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, at := range entries {
		line, _ := os.ReadFile(at)
		if !strings.HasPrefix(string(line), control.HelperName+"\x00") {
			continue
		}
		pid := filepath.Base(filepath.Dir(at))
		status, _ := os.ReadFile(filepath.Join("/proc", pid, "status"))
		_, rest, _ := strings.Cut(string(status), "PPid:")
		if fields := strings.Fields(rest); len(fields) > 0 && fields[0] == strconv.Itoa(s.pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// statusOf returns a field of /proc/PID/status, with single spaces.
func statusOf(t *testing.T, pid, field string) string {
	t.Helper()
	status, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "\n"+field+":")
	rest, _, _ = strings.Cut(rest, "\n")
	return strings.Join(strings.Fields(rest), " ")
}

// A helper of a hardened sandbox runs as its user only, without a capability and without a way to get one.
func TestFiles_AHelperRunsAsItsUserOnly(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	const none = "0000000000000000"
	for user, want := range map[string]struct{ uid, gid string }{
		"0": {"0", "0"}, "65534": {"65534", "0"}, "agent": {"1000", "1000"},
	} {
		f := s.fileSession(user)
		put(t, f, "/tmp/of-"+user, "x")
		pids := s.helpers()
		if len(pids) != 1 {
			t.Fatalf("%d helpers run", len(pids))
		}
		for field, value := range map[string]string{
			"Uid":    strings.Join([]string{want.uid, want.uid, want.uid, want.uid}, " "),
			"Gid":    strings.Join([]string{want.gid, want.gid, want.gid, want.gid}, " "),
			"CapInh": none, "CapPrm": none, "CapEff": none, "CapAmb": none, "NoNewPrivs": "1", "Seccomp": "2",
		} {
			if got := statusOf(t, pids[0], field); got != value {
				t.Errorf("the helper of user %s has %s %q, want %q", user, field, got, value)
			}
		}
		f.Close()
		s.poll("the end of the helper", func() bool { return len(s.helpers()) == 0 })
	}
}

// helpersAreSmall checks the memory of the helpers, in KiB.
func (s *sandbox) helpersAreSmall(most int) {
	s.t.Helper()
	for _, pid := range s.helpers() {
		status, _ := os.ReadFile("/proc/" + pid + "/status")
		_, rest, _ := strings.Cut(string(status), "VmHWM:")
		if kib, _ := strconv.Atoi(strings.Fields(rest)[0]); kib > most {
			s.t.Errorf("a helper had up to %d KiB in memory, want at most %d", kib, most)
		} else {
			s.t.Logf("a helper had up to %d KiB in memory", kib)
		}
	}
}

func TestFiles_AHelperEndsWithItsSession(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	f, err := s.link.Files(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	put(t, f, "/tmp/file", "x")
	put(t, f, "/tmp/file", "x")
	if got := s.helpers(); len(got) != 1 {
		t.Errorf("two operations, one after the other, have %d helpers, want 1", len(got))
	}
	f.Close()
	s.poll("the end of the helper", func() bool { return len(s.helpers()) == 0 })
	_, err = f.Stat(t.Context(), protocol.FileStat{Paths: []string{"/"}})
	refusedWith(t, "a closed session", err, protocol.Unavailable, protocol.ReasonInterrupted)
}

// blocked is a reader that says when it is read, and then waits until it is released.
type blocked struct {
	reading, release chan struct{}
	sent             bool
}

func (b *blocked) Read(p []byte) (int, error) {
	if !b.sent {
		b.sent = true
		return copy(p, strings.Repeat("x", len(p))), nil
	}
	close(b.reading)
	<-b.release
	return 0, io.ErrUnexpectedEOF
}

func TestFiles_ACancelledWriteLeavesNothing(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	f := s.fileSession("0")
	dir := own(t, f)
	ctx, cancel := context.WithCancel(t.Context())
	b := &blocked{reading: make(chan struct{}), release: make(chan struct{})}
	ended := make(chan error, 1)
	go func() {
		_, err := f.Write(ctx, protocol.FileWrite{Path: dir + "/file"}, b)
		ended <- err
	}()
	<-b.reading
	s.poll("a temporary file", func() bool {
		p, err := f.List(fileContext(t), protocol.FileList{Path: dir, Hidden: true})
		return err == nil && len(p.Files) == 1
	})
	cancel()
	s.poll("the removal of the temporary file", func() bool {
		p, err := f.List(fileContext(t), protocol.FileList{Path: dir, Hidden: true})
		return err == nil && len(p.Files) == 0
	})
	close(b.release)
	refusedWith(t, "the write", <-ended, protocol.Cancelled, protocol.ReasonCancelRequested)
}

func TestFiles_AReaderThatStopsHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	s.mustSh("mkdir /tmp/big && dd if=/dev/urandom of=/tmp/big/file bs=1M count=8 2>/dev/null")
	f := s.fileSession("0")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	began, release, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := f.Pack(ctx, protocol.FilePack{Path: "/tmp/big"}, writerFunc(func(p []byte) (int, error) {
			select {
			case <-began:
			default:
				close(began)
			}
			<-release
			return len(p), nil
		}))
		ended <- err
	}()
	<-began
	for range 20 {
		put(t, f, "/tmp/other", "x")
	}
	cancel()
	s.poll("the end of the helper that packs", func() bool { return len(s.helpers()) == 1 })
	close(release)
	refusedWith(t, "the pack", <-ended, protocol.Cancelled, protocol.ReasonCancelRequested)
}

type writerFunc func([]byte) (int, error)

func (w writerFunc) Write(p []byte) (int, error) { return w(p) }

func TestFiles_AKilledHelperIsReportedAndReplaced(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	f := s.fileSession("0")
	w := watchFiles(t, f, protocol.FileWatch{Path: "/tmp"})
	for _, pid := range s.helpers() {
		number, _ := strconv.Atoi(pid)
		if err := syscall.Kill(number, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	refusedWith(t, "the watch", <-w.ended, protocol.Unavailable, protocol.ReasonInterrupted)
	put(t, f, "/tmp/file", "x")
}

func TestFiles_AStopEndsOperationsAndLeavesNothing(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	f := s.fileSession("0")
	w := watchFiles(t, f, protocol.FileWatch{Path: "/tmp"})
	if err := s.link.StopAll(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	refusedWith(t, "the watch", <-w.ended, protocol.Unavailable, protocol.ReasonInterrupted)
	if left := s.processes(); len(left) > 0 {
		t.Errorf("processes are left after StopAll: %v", left)
	}
	_, err := f.Stat(fileContext(t), protocol.FileStat{Paths: []string{"/"}})
	refusedWith(t, "after the stop", err, protocol.FailedPrecondition, protocol.ReasonSandboxStopping)
}

func TestFiles_AContainerHasABoundedNumberOfHelpers(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{args: []string{"--pids-limit", "1024"}})
	for range control.MaxHelpers {
		watchFiles(t, s.fileSession("0"), protocol.FileWatch{Path: "/tmp"})
	}
	_, err := s.fileSession("0").Stat(fileContext(t), protocol.FileStat{Paths: []string{"/"}})
	refusedWith(t, "one more", err, protocol.ResourceExhausted, protocol.ReasonStartFailed)
}

func TestFiles_NothingIsLeftAfterManyOperations(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	f := s.fileSession("0")
	count := func() int {
		entries, err := os.ReadDir("/proc/" + strconv.Itoa(s.pid) + "/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	put(t, f, "/tmp/file", "x")
	before := count()
	for i := range 300 {
		put(t, f, "/tmp/file", "x")
		get(t, f, protocol.FileRead{Path: "/tmp/file"})
		get(t, f, protocol.FileRead{Path: "/proc/self/stat"})
		if i%10 == 0 {
			other, err := s.link.Files(t.Context(), "65534", "")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := other.Stat(t.Context(), protocol.FileStat{Paths: []string{"/"}}); err != nil {
				t.Fatal(err)
			}
			other.Close()
		}
	}
	s.poll("as many descriptors of PID 1 as before, and one helper", func() bool {
		return count() <= before && len(s.helpers()) <= 1
	})
	for _, pid := range s.helpers() {
		entries, _ := os.ReadDir("/proc/" + pid + "/fd")
		if len(entries) > 12 {
			t.Errorf("a helper has %d descriptors after many operations", len(entries))
		}
	}
}

func TestFiles_AnIdleHelperIsSmall(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, option{})
	f := s.fileSession("0")
	for range 100 {
		put(t, f, "/tmp/file", "x")
	}
	s.helpersAreSmall(8_000_000 >> 10)
}

func TestP4_AWorkerWithoutItsLockChangesNoFile(t *testing.T) {
	t.Parallel()
	var lost bool
	s := newSandbox(t, option{lease: func() (time.Duration, error) {
		if lost {
			return 0, protocol.Errorf(protocol.Unavailable, protocol.ReasonLeaseLost, "the lock is lost")
		}
		return control.Clock() + time.Minute, nil
	}})
	f := s.fileSession("0")
	put(t, f, "/tmp/file", "old")
	lost = true
	ctx := fileContext(t)
	_, err := f.Write(ctx, protocol.FileWrite{Path: "/tmp/file"}, strings.NewReader("new"))
	refusedWith(t, "write", err, protocol.Unavailable, protocol.ReasonLeaseLost)
	_, err = f.Remove(ctx, protocol.FileRemove{Path: "/tmp/file"})
	refusedWith(t, "remove", err, protocol.Unavailable, protocol.ReasonLeaseLost)
	if got := get(t, f, protocol.FileRead{Path: "/tmp/file"}); got != "old" {
		t.Errorf("the file has %q", got)
	}
}
