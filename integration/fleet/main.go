package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/coordinator"
	"github.com/boxfleet/boxfleet/integration/halt"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/seal"
	"github.com/boxfleet/boxfleet/worker"
)

// supervisorPath is the path of the supervisor that Main built in programDir.
var supervisorPath, programDir string

// ProgramDir returns a directory for programs that tests build once. Main removes it after the last test.
func ProgramDir() string { return programDir }

// Main is the TestMain of packages that start fleets. If the process was started for a role, Main runs that role.
// Otherwise it builds the supervisor and runs the tests.
func Main(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		if err := play(role); err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(withSupervisor(m.Run))
}

func withSupervisor(run func() int) int {
	dir, err := os.MkdirTemp("", "boxfleet-supervisor-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	programDir, supervisorPath = dir, filepath.Join(dir, "boxfleet-supervisor")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", supervisorPath,
		"github.com/boxfleet/boxfleet/cmd/boxfleet-supervisor")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the supervisor: %v\n%s", err, out)
		return 1
	}
	if out, err := exec.Command("docker", "image", "inspect", Image).CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "the tests need a Docker engine and the image %s: run `make engine image` first\n%s",
			Image, out)
		return 1
	}
	return checked(run)
}

// tellGoroutines answers [Process.Goroutines].
func tellGoroutines() {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1)
	for range asked {
		fmt.Printf(goroutinesLine+"\n", runtime.NumGoroutine())
	}
}

// play runs a coordinator, a worker or the NATS server until SIGTERM.
func play(encoded string) error {
	var r Role
	if err := json.Unmarshal([]byte(encoded), &r); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	slog.SetDefault(log)
	go tellGoroutines()
	if r.Kind == serverKind {
		return playServer(ctx, r)
	}
	connecting, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	conn, err := jetstream.Connect(connecting,
		jetstream.Config{URL: r.URL, Creds: r.Creds, TLS: r.TLS, Name: r.Name, Logger: log, Clock: r.clock()})
	if err != nil {
		return err
	}
	defer conn.Close()
	ready := func() { fmt.Println(readyLine) }
	if r.Kind == "coordinator" {
		var keys seal.Keys
		if r.Secrets != "" {
			if keys, err = seal.ParseKeys("secrets", []byte(r.Secrets)); err != nil {
				return err
			}
		}
		return coordinator.Run(ctx, coordinator.Config{
			Conn: conn, Name: r.Name, Build: "0.0.1", CleanupTTL: r.CleanupTTL, SyncAlways: true,
			Assets: jetstream.Assets{Replicas: r.Replicas, LockTTL: r.LockTTL, Duplicates: r.Duplicates,
				BlobMaxAge: r.BlobMaxAge},
			Timing: r.Timing, Histories: r.Histories, Defaults: r.Defaults, OnReady: ready, Logger: log, Probe: r.probe(),
			SecretsKeys: keys,
		})
	}
	return worker.Run(ctx, worker.Config{
		Conn: conn, Name: r.Name, Build: "0.0.1", StateDir: r.StateDir, Engine: r.Engine, Supervisor: r.Supervisor,
		Slots: r.Slots, Labels: r.Labels, Images: r.Images, AllowMounts: r.AllowMounts, Tools: r.Tools,
		ToolsHome: r.ToolsHome, SSHAgent: r.SSHAgent, Profiles: r.Profiles, ServiceProfiles: r.ServiceProfiles,
		Runtimes: r.Runtimes, Watermarks: r.Watermarks, NetworkPool: r.NetworkPool, CrashWindow: r.CrashWindow,
		CrashGuard:     r.CrashGuard,
		OutputPatience: r.Patience, OutputWithin: r.OutputWithin, OutputRate: r.OutputRate, Reconcile: r.Reconcile,
		ReapDryRun: r.ReapDryRun,
		Defaults:   r.WorkerDefaults, Firewall: r.Firewall, DenyNetworks: r.Deny, AllowNetworks: r.Allow, Ports: r.Ports,
		Connections: r.Connections, DNS: r.DNS,
		OnReady: ready, Logger: log, Probe: r.probe(),
		OnHost: func(ctx context.Context, host string) error { return r.Access.OnHost(ctx, conn, r.Name, r.Creds, host) },
	})
}

// clock returns the machine's clock. Its wall clock is shifted by r.Clock.
func (r Role) clock() jetstream.Clock {
	if r.Clock == 0 {
		return jetstream.Clock{}
	}
	return jetstream.Clock{Wall: func() time.Time { return time.Now().Round(0).Add(r.Clock) }}
}

// probe returns a hook that acts at the probes that the role names: it kills the process with SIGKILL, panics, pauses
// the process, or delays it. It returns nil if the role names no probe.
func (r Role) probe() func(string) {
	if r.CrashAt == "" && r.PanicAt == "" && r.PauseAt == "" && r.SlowAt == "" {
		return nil
	}
	var mu sync.Mutex
	var paused sync.Once
	left := max(r.CrashAfter, 1)
	return func(point string) {
		if point == r.PanicAt {
			panic("injected at " + point)
		}
		if point == r.SlowAt {
			time.Sleep(cmp.Or(r.SlowBy, 5*time.Millisecond))
		}
		if point == r.PauseAt {
			paused.Do(halt.Self)
		}
		if point != r.CrashAt {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if left--; left == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // does not return
			select {}
		}
	}
}
