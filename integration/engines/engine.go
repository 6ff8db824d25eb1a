package engines

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/halt"
	"github.com/boxfleet/boxfleet/worker/docker/dockertest"
)

// Prefix is the beginning of the names of the engines' namespaces and directories.
const Prefix = "boxfleet-engine-"

// startTimeout is how long an engine may take to answer on a busy machine.
const startTimeout = 60 * time.Second

// Engine is a Docker engine.
type Engine struct {
	Name   string
	Host   string // value for DOCKER_HOST: "unix://" followed by Socket
	Socket string
	PID    int      // process id of dockerd; 0 if it is not running or this package did not start it
	Flags  []string // more flags for dockerd, used at its next start

	tb        testing.TB
	dir       string // directory of everything that the engine writes
	namespace string
	daemon    *exec.Cmd
	exited    chan struct{} // closed when the daemon ends
}

// Default returns the machine's own engine, which tests never stop. Default fails the test if that engine does not
// answer.
func Default(tb testing.TB) *Engine {
	tb.Helper()
	socket := dockertest.Socket(tb)
	e := &Engine{Name: "default", Host: "unix://" + socket, Socket: socket, tb: tb}
	checkVersion(e)
	return e
}

// Start starts an engine that runs until the test ends. name only helps people to tell engines apart; it need not be
// unique.
func Start(tb testing.TB, name string) *Engine {
	tb.Helper()
	return start(tb, name, nil)
}

// StartSmall does the same as [Start], but the engine's data is on its own in-memory file system of the given size in
// bytes.
func StartSmall(tb testing.TB, name string, size int64) *Engine {
	tb.Helper()
	return start(tb, name, func(e *Engine) {
		if err := errors.Join(os.Mkdir(e.Data(), 0o710),
			syscall.Mount("tmpfs", e.Data(), "tmpfs", 0, fmt.Sprintf("size=%d", size))); err != nil {
			tb.Fatal(err)
		}
	})
}

// StartOnDisk does the same as [Start], but the engine's data is on its own disk of the given size in bytes: an ext4
// file system in a file, mounted at [Engine.Disk]. A test can let other programs keep their data on the same disk.
func StartOnDisk(tb testing.TB, name string, size int64) *Engine {
	tb.Helper()
	return start(tb, name, func(e *Engine) {
		image, data := filepath.Join(e.dir, "disk.img"), filepath.Join(e.Disk(), "data")
		err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, size), os.Mkdir(e.Disk(), 0o710),
			os.Mkdir(e.Data(), 0o710))
		if err != nil {
			tb.Fatal(err)
		}
		run(tb, "mkfs.ext4", "-q", "-F", "-E", "nodiscard", image)
		run(tb, "mount", "-o", "loop", image, e.Disk())
		if err := errors.Join(os.Mkdir(data, 0o710),
			syscall.Mount(data, e.Data(), "", syscall.MS_BIND, "")); err != nil {
			tb.Fatal(err)
		}
	})
}

// Disk returns the mount point of the disk that [StartOnDisk] made.
func (e *Engine) Disk() string { return filepath.Join(e.dir, "disk") }

func start(tb testing.TB, name string, disk func(*Engine)) *Engine {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Fatal("starting Docker engines requires root")
	}
	for _, program := range []string{"dockerd", "ip", "nsenter"} {
		if _, err := exec.LookPath(program); err != nil {
			tb.Fatalf("%v: run `make engine`", err)
		}
	}
	// The path must be short: the daemon creates unix sockets below it, and the paths of unix sockets have a maximum
	// length.
	dir, err := os.MkdirTemp("", Prefix+name+"-")
	if err != nil {
		tb.Fatal(err)
	}
	e := &Engine{Name: name, tb: tb, dir: dir, namespace: filepath.Base(dir), Socket: filepath.Join(dir, "docker.sock")}
	e.Host = "unix://" + e.Socket
	tb.Cleanup(e.remove)
	run(tb, "ip", "netns", "add", e.namespace)
	run(tb, "ip", "-n", e.namespace, "link", "set", "lo", "up")
	if disk != nil {
		disk(e)
	}
	e.Restart()
	return e
}

// Restart stops the daemon if it is running, starts it, and waits until it answers.
func (e *Engine) Restart() {
	e.tb.Helper()
	e.Stop()
	log, err := os.OpenFile(e.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		e.tb.Fatal(err)
	}
	defer log.Close()
	// The daemon gets only a network namespace. `ip netns exec` would also create a mount namespace with a new /sys,
	// which hides the cgroups. The flag --bridge=none would remove the bridge of the machine's own engine.
	flags := slices.Concat([]string{"--net=/run/netns/" + e.namespace}, daemonCommand(), []string{
		"--host", e.Host,
		"--data-root", e.Data(),
		"--exec-root", filepath.Join(e.dir, "exec"),
		"--pidfile", filepath.Join(e.dir, "pid"),
	}, e.Flags)
	e.daemon = exec.Command("nsenter", flags...)
	e.daemon.Stdout, e.daemon.Stderr = log, log
	e.daemon.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C in the terminal must not reach the daemon
	if err := e.daemon.Start(); err != nil {
		e.tb.Fatal(err)
	}
	e.PID = e.daemon.Process.Pid // each program execs the next one, so dockerd has this pid
	e.exited = make(chan struct{})
	go func(daemon *exec.Cmd, exited chan<- struct{}) {
		_ = daemon.Wait() // the daemon's log says why it ended
		close(exited)
	}(e.daemon, e.exited)
	e.awaitAnswer()
	checkVersion(e)
}

// scripts/engine26 sets these variables: the directory with the programs of another engine, and the beginning of that
// engine's version.
const (
	rootVariable    = "BOXFLEET_TEST_ENGINE_ROOT"
	versionVariable = "BOXFLEET_TEST_ENGINE_VERSION"
)

// daemonCommand returns the command that execs dockerd: the machine's own, or another one with the programs that it
// starts. Those are bound over /usr in a mount namespace that only the engine sees.
func daemonCommand() []string {
	root := os.Getenv(rootVariable)
	if root == "" {
		return []string{"dockerd"}
	}
	return []string{"unshare", "--mount", "--propagation", "slave", "sh", "-c",
		`mount --bind "$1/usr" /usr && shift && exec dockerd "$@"`, "sh", root}
}

// checkVersion fails the test if the engine is not the one that scripts/engine26 promises.
func checkVersion(e *Engine) {
	e.tb.Helper()
	want := os.Getenv(versionVariable)
	if want == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	data, err := e.request(ctx, "GET", "/version", nil)
	if err != nil {
		e.tb.Fatal(err)
	}
	var got struct{ Version string }
	if err := json.Unmarshal(data, &got); err != nil || !strings.HasPrefix(got.Version, want) {
		e.tb.Fatalf("engine %s has version %q, want %s*: %v", e.Name, got.Version, want, err)
	}
}

func (e *Engine) awaitAnswer() {
	e.tb.Helper()
	deadline := time.After(startTimeout)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_, err := e.request(ctx, "GET", "/_ping", nil)
		cancel()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-e.exited:
			e.PID = 0
			e.tb.Fatalf("engine %s ended during its start:\n%s", e.Name, e.logTail())
		case <-deadline:
			e.tb.Fatalf("engine %s does not answer (%v):\n%s", e.Name, err, e.logTail())
		}
	}
}

// Stop ends the daemon with SIGTERM, as an operator does, and waits. The daemon stops its containers. Stop does nothing
// if the daemon is not running.
func (e *Engine) Stop() { e.end(syscall.SIGTERM) }

// Kill ends the daemon with SIGKILL and waits. The containers keep running.
func (e *Engine) Kill() {
	e.tb.Helper()
	if e.PID == 0 {
		return
	}
	e.end(syscall.SIGKILL)
	// The kernel kills the daemon's containerd a little later. The next daemon assumes that the process with the number
	// in the pid file is its containerd, even if that process is dying or a zombie, and waits for it until the start
	// times out. Therefore wait until containerd has ended.
	e.killAll("containerd", func(p process) bool { return p.program == "containerd" })
	if err := os.Remove(filepath.Join(e.dir, "exec", "containerd", "containerd.pid")); err != nil &&
		!os.IsNotExist(err) {
		e.tb.Error(err)
	}
}

func (e *Engine) end(signal syscall.Signal) {
	e.tb.Helper()
	if e.PID == 0 {
		return
	}
	e.Continue()
	_ = syscall.Kill(e.PID, signal) // fails if the daemon has just ended
	select {
	case <-e.exited:
	case <-time.After(startTimeout):
		_ = syscall.Kill(e.PID, syscall.SIGKILL) // fails if the daemon has just ended
		<-e.exited
		e.tb.Errorf("engine %s did not end within %s of %s:\n%s", e.Name, startTimeout, signal, e.logTail())
	}
	e.PID = 0
}

// Pause stops the daemon's threads. The kernel still accepts connections to the daemon's socket, but nothing answers.
func (e *Engine) Pause() { e.do("pause", halt.Process) }

// Continue undoes [Engine.Pause].
func (e *Engine) Continue() {
	e.do("continue", func(pid int) error { return syscall.Kill(pid, syscall.SIGCONT) })
}

func (e *Engine) do(what string, f func(pid int) error) {
	e.tb.Helper()
	if e.PID == 0 {
		e.tb.Fatalf("%s: engine %s is shared and must not be sent signals", what, e.Name)
	}
	if err := f(e.PID); err != nil {
		e.tb.Errorf("%s engine %s: %v", what, e.Name, err)
	}
}

// Namespace returns the name of the engine's network namespace for `ip -n`, or "" for the machine's own engine.
func (e *Engine) Namespace() string { return e.namespace }

// Data returns the engine's data directory.
func (e *Engine) Data() string { return filepath.Join(e.dir, "data") }

// Log returns what the daemon of an engine has logged.
func Log(e *Engine) []byte {
	data, _ := os.ReadFile(e.log()) // an engine that this package did not start has no log here
	return data
}

func (e *Engine) log() string { return filepath.Join(e.dir, "dockerd.log") }

func (e *Engine) logTail() string {
	lines := strings.Split(string(Log(e)), "\n")
	return strings.Join(lines[max(0, len(lines)-30):], "\n")
}

func run(tb testing.TB, name string, args ...string) {
	tb.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		tb.Fatal(fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(out)))
	}
}
