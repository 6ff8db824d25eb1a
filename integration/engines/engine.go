package engines

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/halt"
	"github.com/boxfleet/boxfleet/worker/docker/dockertest"
)

// Prefix begins the names of the namespaces and the directories of engines.
const Prefix = "boxfleet-engine-"

// startTimeout is the longest that an engine may take to answer, on a busy machine.
const startTimeout = 60 * time.Second

// Engine is a Docker engine.
type Engine struct {
	Name   string
	Host   string // for DOCKER_HOST: "unix://" and Socket
	Socket string
	PID    int      // of dockerd; 0 when it does not run, or is not ours
	Flags  []string // of dockerd, beside those that every engine here has; heard at its next start

	tb        testing.TB
	dir       string // everything that it writes
	namespace string
	daemon    *exec.Cmd
	exited    chan struct{} // closed when the daemon has ended
}

// Default returns the machine's own engine, which is never stopped. It fails the test when none
// answers.
func Default(tb testing.TB) *Engine {
	tb.Helper()
	socket := dockertest.Socket(tb)
	return &Engine{Name: "default", Host: "unix://" + socket, Socket: socket, tb: tb}
}

// Start starts an engine that lives as long as the test. The name is for reading; it need not be
// unique.
func Start(tb testing.TB, name string) *Engine {
	tb.Helper()
	return start(tb, name, nil)
}

// StartSmall is [Start] with the engine's data on a file system of its own, of so many bytes, in memory.
func StartSmall(tb testing.TB, name string, size int64) *Engine {
	tb.Helper()
	return start(tb, name, func(e *Engine) {
		if err := errors.Join(os.Mkdir(e.Data(), 0o710),
			syscall.Mount("tmpfs", e.Data(), "tmpfs", 0, fmt.Sprintf("size=%d", size))); err != nil {
			tb.Fatal(err)
		}
	})
}

// StartOnDisk is [Start] with the engine's data on a disk of its own, of so many bytes: an ext4 in a file. It is
// mounted at [Engine.Disk], where others may have their data beside the engine's.
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

// Disk is where the disk of [StartOnDisk] is mounted.
func (e *Engine) Disk() string { return filepath.Join(e.dir, "disk") }

func start(tb testing.TB, name string, disk func(*Engine)) *Engine {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Fatal("starting Docker engines takes root")
	}
	for _, program := range []string{"dockerd", "ip", "nsenter"} {
		if _, err := exec.LookPath(program); err != nil {
			tb.Fatalf("%v: run `make engine`", err)
		}
	}
	// Short, since a unix socket's path is limited, and the daemon makes some below here.
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

// Restart starts the daemon again, after stopping it when it runs, and waits until it answers.
func (e *Engine) Restart() {
	e.tb.Helper()
	e.Stop()
	log, err := os.OpenFile(e.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		e.tb.Fatal(err)
	}
	defer log.Close()
	// Only the network is the engine's own. `ip netns exec` would also give it a mount namespace
	// with a fresh /sys, which hides the cgroups; `--bridge=none` would remove the bridge of the
	// machine's engine.
	flags := append([]string{
		"--net=/run/netns/" + e.namespace, "dockerd",
		"--host", e.Host,
		"--data-root", e.Data(),
		"--exec-root", filepath.Join(e.dir, "exec"),
		"--pidfile", filepath.Join(e.dir, "pid"),
	}, e.Flags...)
	e.daemon = exec.Command("nsenter", flags...)
	e.daemon.Stdout, e.daemon.Stderr = log, log
	e.daemon.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // no Ctrl-C from the test's terminal
	if err := e.daemon.Start(); err != nil {
		e.tb.Fatal(err)
	}
	e.PID = e.daemon.Process.Pid // nsenter becomes dockerd
	e.exited = make(chan struct{})
	go func(daemon *exec.Cmd, exited chan<- struct{}) {
		_ = daemon.Wait()
		close(exited)
	}(e.daemon, e.exited)
	e.awaitAnswer()
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
			e.tb.Fatalf("engine %s ended at its start:\n%s", e.Name, e.logTail())
		case <-deadline:
			e.tb.Fatalf("engine %s does not answer (%v):\n%s", e.Name, err, e.logTail())
		}
	}
}

// Stop ends the daemon as an operator does, with TERM, and waits. The daemon stops its containers.
// A daemon that does not run is left alone.
func (e *Engine) Stop() { e.end(syscall.SIGTERM) }

// Kill ends the daemon with KILL and waits. The containers go on.
func (e *Engine) Kill() {
	e.tb.Helper()
	if e.PID == 0 {
		return
	}
	e.end(syscall.SIGKILL)
	// The kernel kills its containerd with it, a moment later. The next daemon takes a process of the
	// number in the pid file for its containerd, also a dying or a dead one that init has not reaped
	// yet, and waits for it in vain.
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
	_ = syscall.Kill(e.PID, signal)
	select {
	case <-e.exited:
	case <-time.After(startTimeout):
		_ = syscall.Kill(e.PID, syscall.SIGKILL)
		<-e.exited
		e.tb.Errorf("engine %s did not end within %s of %s:\n%s", e.Name, startTimeout, signal, e.logTail())
	}
	e.PID = 0
}

// Pause stops the daemon from running, so that it takes connections and answers nothing.
func (e *Engine) Pause() { e.do("pause", halt.Process) }

// Continue ends [Engine.Pause].
func (e *Engine) Continue() {
	e.do("continue", func(pid int) error { return syscall.Kill(pid, syscall.SIGCONT) })
}

func (e *Engine) do(what string, f func(pid int) error) {
	e.tb.Helper()
	if e.PID == 0 {
		e.tb.Fatalf("%s: engine %s is not one that may be sent signals", what, e.Name)
	}
	if err := f(e.PID); err != nil {
		e.tb.Errorf("%s engine %s: %v", what, e.Name, err)
	}
}

// Namespace is the name of the engine's network namespace, for `ip -n`, "" for the machine's own.
func (e *Engine) Namespace() string { return e.namespace }

// Data is the directory of the engine's data.
func (e *Engine) Data() string { return filepath.Join(e.dir, "data") }

func (e *Engine) log() string { return filepath.Join(e.dir, "dockerd.log") }

func (e *Engine) logTail() string {
	data, _ := os.ReadFile(e.log())
	lines := strings.Split(string(data), "\n")
	return strings.Join(lines[max(0, len(lines)-30):], "\n")
}

func run(tb testing.TB, name string, args ...string) {
	tb.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		tb.Fatal(fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(out)))
	}
}
