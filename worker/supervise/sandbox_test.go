package supervise_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/protocol"
	_ "github.com/boxfleet/boxfleet/supervisor" // built by TestMain; the import makes old test results invalid
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/supervise"
)

// The images of this run. Other runs of these tests on the same engine have images of their own, because each run
// removes its images at its end.
var (
	busyboxImage = "boxfleet-test/supervisor:busybox-" + rand.Text()
	emptyImage   = "boxfleet-test/supervisor:empty-" + rand.Text()
)

// binary is the path of the supervisor's binary, which is built with the options of a release.
var binary string

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(prepared{m}, goleak.Cleanup(eventually.DescriptorsClosed()))
}

// prepared runs the tests with the supervisor's binary and the images that they need.
type prepared struct{ *testing.M }

// Run implements [goleak.TestingM].
func (p prepared) Run() int {
	dir, err := os.MkdirTemp("", "bfsup")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "supervisor")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", binary,
		"github.com/boxfleet/boxfleet/cmd/boxfleet-supervisor")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("build the supervisor: %v\n%s", err, out))
	}
	importImage(busyboxImage, busybox())
	importImage(emptyImage, archive(nil))
	defer docker("image", "rm", busyboxImage, emptyImage)
	return p.M.Run()
}

func docker(args ...string) (string, error) {
	cmd := exec.Command("docker", args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("docker %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
}

func importImage(name string, tarball []byte) {
	cmd := exec.Command("docker", "import", "-", name)
	cmd.Stdin = bytes.NewReader(tarball)
	if out, err := cmd.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("import %s: %v\n%s", name, err, out))
	}
}

type file struct {
	name string
	link string
	mode int64
	uid  int
	data []byte
	kind byte
}

func archive(files []file) []byte {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range files {
		header := tar.Header{Name: f.name, Linkname: f.link, Mode: f.mode, Uid: f.uid, Gid: f.uid,
			Size: int64(len(f.data)), Typeflag: f.kind}
		if err := w.WriteHeader(&header); err != nil {
			panic(err)
		}
		if _, err := w.Write(f.data); err != nil {
			panic(err)
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return buf.Bytes()
}

// busybox returns the file system of an image with this machine's static busybox and its applets.
func busybox() []byte {
	data, err := os.ReadFile("/bin/busybox")
	if err != nil {
		panic(err)
	}
	list, err := exec.Command("/bin/busybox", "--list").Output()
	if err != nil {
		panic(err)
	}
	files := []file{
		{name: "bin/", mode: 0o755, kind: tar.TypeDir},
		{name: "bin/busybox", mode: 0o755, data: data, kind: tar.TypeReg},
		{name: "etc/", mode: 0o755, kind: tar.TypeDir},
		{name: "etc/passwd", mode: 0o644, kind: tar.TypeReg,
			data: []byte("root:x:0:0::/root:/bin/sh\nagent:x:1000:1000::/home/agent:/bin/sh\n")},
		{name: "etc/group", mode: 0o644, kind: tar.TypeReg,
			data: []byte("root:x:0:\nagent:x:1000:\nwheel:x:10:agent\n")},
		{name: "root/", mode: 0o700, kind: tar.TypeDir},
		{name: "home/agent/", mode: 0o700, uid: 1000, kind: tar.TypeDir},
		{name: "tmp/", mode: 0o1777, kind: tar.TypeDir},
		{name: "bin/plain", mode: 0o644, data: []byte("not a program"), kind: tar.TypeReg},
		{name: "bin/garbage", mode: 0o755, data: []byte("not a program"), kind: tar.TypeReg},
		{name: "bin/orphaned", mode: 0o755, data: []byte("#!/no/such/interpreter\n"), kind: tar.TypeReg},
	}
	for applet := range strings.FieldsSeq(string(list)) {
		if applet != "busybox" {
			files = append(files, file{name: "bin/" + applet, link: "busybox", kind: tar.TypeSymlink, mode: 0o777})
		}
	}
	return archive(files)
}

// sandbox is a container with the supervisor as PID 1, and the worker's link to it.
type sandbox struct {
	t         testing.TB
	dir       string
	container string
	pid       int
	key       []byte
	run       *os.Root

	link    *supervise.Link
	secrets supervise.Secrets

	mu      sync.Mutex
	changed chan struct{}
	results map[string]control.Result
	outputs map[string][]control.Output
	primary []control.Primary
	hellos  []control.Hello
	gone    int
}

type option struct {
	image   string
	welcome control.Welcome
	args    []string
	onEnd   func(control.Result)
	lease   func() (time.Duration, error)
	secrets supervise.Secrets // the container's secrets; the container then has the directory for their files

	privileged bool   // execs that run as root keep capabilities, as with the profile "standard"
	disk       string // size of the disk with the execs' files; "" if it is not limited
}

func newSandbox(t testing.TB, o option) *sandbox {
	t.Helper()
	s := unconnected(t, o, o.secrets)
	s.connected()
	return s
}

// unconnected returns a sandbox whose supervisor may not have connected yet.
func unconnected(t testing.TB, o option, secrets supervise.Secrets) *sandbox {
	t.Helper()
	dir, err := os.MkdirTemp("", "bfsbx")
	if err != nil {
		t.Fatal(err)
	}
	s := &sandbox{t: t, dir: dir, key: make([]byte, 32), changed: make(chan struct{}),
		results: map[string]control.Result{}, outputs: map[string][]control.Output{}}
	_, _ = rand.Read(s.key) // never fails
	t.Cleanup(func() { os.RemoveAll(dir) })
	for _, sub := range []string{"ctl", "run"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if o.disk != "" {
		run := filepath.Join(dir, "run")
		if err := syscall.Mount("none", run, "tmpfs", 0, "size="+o.disk); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { syscall.Unmount(run, syscall.MNT_DETACH) })
	}
	if s.run, err = os.OpenRoot(filepath.Join(dir, "run")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.run.Close() })
	o.welcome.Key = s.key
	if o.secrets != nil {
		o.args = append(o.args, "--tmpfs", fmt.Sprintf("%s:mode=0755,gid=%d,size=%d,noexec,nosuid,nodev",
			protocol.SecretsDir, control.SecretsGroup, control.SecretsSize))
	}
	s.secrets = secrets
	s.listenLeased(o.welcome, o.onEnd, o.lease)
	t.Cleanup(func() { s.link.Close() })
	s.boot(o)
	return s
}

func (s *sandbox) listen(w control.Welcome, onEnd func(control.Result)) {
	s.t.Helper()
	s.listenLeased(w, onEnd, nil)
}

func (s *sandbox) listenLeased(w control.Welcome, onEnd func(control.Result), lease func() (time.Duration, error)) {
	s.t.Helper()
	if onEnd == nil {
		onEnd = func(r control.Result) { s.note(func() { s.results[r.ID] = r }) }
	}
	var err error
	s.link, err = supervise.Listen(supervise.Config{
		ControlDir:   filepath.Join(s.dir, "ctl"),
		Run:          s.run,
		Welcome:      w,
		Secrets:      s.secrets,
		Lease:        lease,
		OnConnect:    func(h control.Hello) { s.note(func() { s.hellos = append(s.hellos, h) }) },
		OnDisconnect: func() { s.note(func() { s.gone++ }) },
		OnOutput:     func(o control.Output) { s.note(func() { s.outputs[o.ID] = append(s.outputs[o.ID], o) }) },
		OnEnd:        onEnd,
		OnPrimary:    func(p control.Primary) { s.note(func() { s.primary = append(s.primary, p) }) },
		Logger:       slog.New(slog.NewTextHandler(testWriter{s.t}, nil)),
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("link: %s", bytes.TrimSpace(p))
	return len(p), nil
}

func (s *sandbox) note(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

// await waits until holds() returns true. It calls holds after each callback of the link, with the lock held.
func (s *sandbox) await(what string, holds func() bool) {
	s.t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		s.mu.Lock()
		ok, changed := holds(), s.changed
		s.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			logs, _ := docker("logs", s.container)
			s.t.Fatalf("timed out after 20 s waiting for %s; the supervisor's log is\n%s", what, logs)
		}
	}
}

// boot creates and starts the container like the worker, with only the capabilities that the supervisor needs.
func (s *sandbox) boot(o option) {
	s.t.Helper()
	if o.image == "" {
		o.image = busyboxImage
	}
	var suffix [6]byte
	_, _ = rand.Read(suffix[:]) // never fails
	s.container = "boxfleet-test-supervisor-" + hex.EncodeToString(suffix[:])
	args := []string{"run", "-d", "--name", s.container, "--label", "boxfleet-test=supervisor", "--network", "none",
		"--cap-drop", "ALL", "--cap-add", "SETUID", "--cap-add", "SETGID", "--cap-add", "KILL", "--cap-add", "SETPCAP",
		"--security-opt", "no-new-privileges", "--user", "0:0", "--memory", "256m",
		"-v", binary + ":/.boxfleet/supervisor:ro", "-v", s.dir + "/ctl:/.boxfleet/ctl:ro",
		"--entrypoint", "/.boxfleet/supervisor"}
	if !strings.Contains(strings.Join(o.args, " "), "--pids-limit") {
		args = append(args, "--pids-limit", "512")
	}
	if o.privileged {
		const standard = "AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID NET_BIND_SERVICE SETFCAP SYS_CHROOT"
		for _, name := range append(strings.Fields(standard), control.OwnCapability) {
			args = append(args, "--cap-add", name)
		}
	}
	args = append(append(args, o.args...), o.image)
	if o.privileged {
		args = append(args, "-privileged")
	}
	if _, err := docker(args...); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { docker("rm", "-f", "-v", s.container) })
	s.expect()
}

func (s *sandbox) expect() {
	s.t.Helper()
	out, err := docker("inspect", "-f", "{{.State.Pid}}", s.container)
	if err != nil {
		s.t.Fatal(err)
	}
	s.pid, _ = strconv.Atoi(out)
	s.link.Expect(s.pid)
}

func (s *sandbox) connected() control.Hello {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	hello, err := s.link.Connected(ctx)
	if err != nil {
		logs, _ := exec.Command("docker", "logs", s.container).CombinedOutput()
		s.t.Fatalf("the supervisor did not connect: %v; its log is\n%s", err, logs)
	}
	return hello
}

var execNumber struct {
	sync.Mutex
	n int
}

func newID() string {
	execNumber.Lock()
	defer execNumber.Unlock()
	execNumber.n++
	return fmt.Sprintf("e%d", execNumber.n)
}

// start starts an exec. It sets defaults for fields that the test leaves empty.
func (s *sandbox) start(start control.Start) string {
	s.t.Helper()
	if start.ID == "" {
		start.ID = newID()
	}
	if start.OutputLimit == 0 {
		start.OutputLimit = 64 << 20
	}
	if start.InlineLimit == 0 {
		start.InlineLimit = 64 << 10
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if _, err := s.link.Start(ctx, start); err != nil {
		s.t.Fatalf("starting %q: %v", start.Argv, err)
	}
	return start.ID
}

func (s *sandbox) end(id string) control.Result {
	s.t.Helper()
	s.await("the end of "+id, func() bool { _, ok := s.results[id]; return ok })
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.results[id]
}

func (s *sandbox) exec(start control.Start) control.Result {
	s.t.Helper()
	return s.end(s.start(start))
}

func (s *sandbox) sh(script string) control.Result {
	s.t.Helper()
	return s.exec(control.Start{Argv: []string{"sh", "-c", script}})
}

// output reads the output of an exec from its file, like the worker.
func (s *sandbox) output(id, stream string) string {
	s.t.Helper()
	f, err := supervise.OpenOutput(s.run, id, stream)
	if err != nil {
		return ""
	}
	defer f.Close()
	var buf bytes.Buffer
	if _, err := buf.ReadFrom(f); err != nil {
		s.t.Fatal(err)
	}
	return buf.String()
}

func code(r control.Result) string {
	if r.ExitCode == nil {
		return "unknown"
	}
	return strconv.Itoa(*r.ExitCode)
}

func (s *sandbox) cancel(id string, grace time.Duration) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := s.link.Cancel(ctx, id, grace); err != nil {
		s.t.Errorf("cancelling exec %s: %v", id, err)
	}
}

// processes lists the state and command line of each process in the container except PID 1.
func (s *sandbox) processes() []string {
	s.t.Helper()
	out, err := docker("top", s.container, "-eo", "pid,stat,args")
	if err != nil {
		s.t.Fatal(err)
	}
	var processes []string
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if fields[0] == "PID" || fields[0] == strconv.Itoa(s.pid) {
			continue
		}
		processes = append(processes, strings.Join(fields[1:], " "))
	}
	return processes
}

// awaitEmpty waits until only PID 1 is left in the container.
func (s *sandbox) awaitEmpty() {
	s.t.Helper()
	s.poll("an empty process table", func() bool { return len(s.processes()) == 0 })
}

func (s *sandbox) waitForRecord(id string) *control.Record {
	s.t.Helper()
	var record *control.Record
	s.poll("the exit record of "+id, func() (ok bool) {
		var err error
		record, err = supervise.ReadRecord(s.run, s.key, id)
		return err == nil
	})
	return record
}

// poll waits for a condition that no callback announces.
func (s *sandbox) poll(what string, holds func() bool) {
	s.t.Helper()
	eventually.Holds(s.t, 20*time.Second, what, holds)
}
