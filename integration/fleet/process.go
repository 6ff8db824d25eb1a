package fleet

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/boxfleet/boxfleet/coordinator"
	"github.com/boxfleet/boxfleet/integration/access"
	"github.com/boxfleet/boxfleet/integration/child"
	"github.com/boxfleet/boxfleet/integration/halt"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/spec"
	"github.com/boxfleet/boxfleet/worker"
)

// Role configures a process of the fleet.
type Role struct {
	Engine   string `json:"engine,omitempty"` // address of the Docker Engine; default: the machine's engine
	StateDir string `json:"state_dir,omitempty"`
	CrashAt  string `json:"crash_at,omitempty"` // the process kills itself with SIGKILL at this probe
	// CrashAfter is how many times the process passes CrashAt until it kills itself; default 1.
	CrashAfter int    `json:"crash_after,omitempty"`
	PanicAt    string `json:"panic_at,omitempty"` // panics each time it passes this probe
	// PauseAt is the probe at which the process stops itself with SIGSTOP, the first time it passes.
	PauseAt  string        `json:"pause_at,omitempty"`
	SlowAt   string        `json:"slow_at,omitempty"`  // waits SlowBy each time it passes this probe
	SlowBy   time.Duration `json:"slow_by,omitempty"`  // duration of each wait; default 5 ms
	Patience time.Duration `json:"patience,omitempty"` // how long a worker waits while the log of output is full
	// OutputWithin is how long a worker waits for output after an exec's timeout.
	OutputWithin time.Duration      `json:"output_within,omitempty"`
	OutputRate   protocol.Bytes     `json:"output_rate,omitempty"` // output per second of a sandbox after its burst
	Slots        int                `json:"slots,omitempty"`
	Labels       map[string]string  `json:"labels,omitempty"`
	AllowMounts  []string           `json:"allow_mounts,omitempty"`
	Firewall     string             `json:"firewall,omitempty"`
	Deny         []string           `json:"deny,omitempty"`
	Allow        []string           `json:"allow,omitempty"`
	Ports        string             `json:"ports,omitempty"`
	Connections  int                `json:"connections,omitempty"`
	DNS          []string           `json:"dns,omitempty"`
	Profiles     []string           `json:"profiles,omitempty"`
	Runtimes     []string           `json:"runtimes,omitempty"`
	Watermarks   worker.Watermarks  `json:"watermarks,omitzero"`
	NetworkPool  string             `json:"network_pool,omitempty"`
	Tools        []string           `json:"tools,omitempty"`
	ToolsHome    string             `json:"tools_home,omitempty"`
	SSHAgent     string             `json:"ssh_agent,omitempty"`
	CrashWindow  time.Duration      `json:"crash_window,omitempty"` // crash window of primary commands and services
	CrashGuard   time.Duration      `json:"crash_guard,omitempty"`
	Reconcile    time.Duration      `json:"reconcile,omitempty"` // how often a worker inspects its host
	ReapDryRun   bool               `json:"reap_dry_run,omitempty"`
	Images       worker.Images      `json:"images,omitzero"`
	Timing       coordinator.Timing `json:"timing,omitzero"` // timing of a coordinator

	Histories coordinator.Histories `json:"histories,omitzero"` // when a coordinator compacts and purges histories
	Defaults  spec.Defaults         `json:"defaults,omitempty"`
	Clock     time.Duration         `json:"clock,omitempty"` // how far the wall clock is shifted
	// NATS is the URL of NATS to which the process connects; default: the fleet's servers.
	NATS string `json:"-"`
	// NoWait starts the process without waiting until it is ready: the test expects it to fail or crash.
	NoWait bool `json:"-"`

	ServiceProfiles []string              `json:"service_profiles,omitempty"`
	WorkerDefaults  *protocol.SandboxSpec `json:"worker_defaults,omitempty"`

	// The fleet sets all fields below.
	Kind       string        `json:"kind"`
	Name       string        `json:"name"`
	URL        string        `json:"url"`
	Access     access.Dir    `json:"access,omitempty"` // directory with the fleet's authority
	Creds      string        `json:"creds,omitempty"`
	TLS        jetstream.TLS `json:"tls,omitzero"`
	Supervisor string        `json:"supervisor,omitempty"`
	Replicas   int           `json:"replicas,omitempty"`
	LockTTL    time.Duration `json:"lock_ttl,omitempty"`
	CleanupTTL time.Duration `json:"cleanup_ttl,omitempty"`
	BlobMaxAge time.Duration `json:"blob_max_age,omitempty"`
	Secrets    string        `json:"secrets,omitempty"` // seed of a coordinator's key for secrets
	Duplicates time.Duration `json:"duplicates,omitempty"`
}

// roleVariable is the environment variable that passes a Role to a process of the test binary.
const roleVariable = "BOXFLEET_TEST_ROLE"

// readyLine is the line that a process prints when it is ready.
const readyLine = "READY"

// goroutinesLine is a line with a number of goroutines, which a process prints when it gets SIGUSR1.
const goroutinesLine = "GOROUTINES %d"

// Process is a coordinator, a worker or the NATS server in its own process.
type Process struct {
	Name string
	Role Role
	role string
	f    *Fleet
	cmd  *exec.Cmd

	ready  chan struct{}
	counts chan int // answers to Goroutines
	exited chan struct{}
	err    error // how the process ended; valid after exited is closed

	mu  sync.Mutex
	log bytes.Buffer
}

// Coordinator starts a coordinator.
func (f *Fleet) Coordinator(name string, r Role) *Process {
	f.TB.Helper()
	return f.start("coordinator", name, r)
}

// Worker starts a worker. Workers of the same name share a state directory: the second worker is a restart of the
// first.
func (f *Fleet) Worker(name string, r Role) *Process {
	f.TB.Helper()
	if r.StateDir == "" {
		r.StateDir = filepath.Join(f.Dir, name)
	}
	r.Supervisor = supervisorPath
	f.engines[r.Engine] = true
	return f.start("worker", name, r)
}

// Processes lists the running processes of a role, newest first.
func (f *Fleet) Processes(role string) []*Process {
	var running []*Process
	for _, p := range slices.Backward(f.processes) {
		if p.role == role && !p.Exited() {
			running = append(running, p)
		}
	}
	return running
}

func (f *Fleet) start(kind, name string, r Role) *Process {
	f.TB.Helper()
	r.Kind, r.Name, r.URL, r.Replicas, r.Secrets = kind, name, f.URL(), max(len(f.Servers), 1), f.secrets
	if r.NATS != "" {
		r.URL = r.NATS
	}
	r.LockTTL, r.CleanupTTL, r.Duplicates = f.options.LockTTL, f.options.CleanupTTL, f.options.Duplicates
	r.BlobMaxAge = f.options.BlobMaxAge
	r.Access = f.access
	var err error
	if r.Creds, err = f.credsFor(&r); err != nil {
		f.TB.Fatal(err)
	}
	r.TLS = f.clientTLS(name)
	encoded, err := json.Marshal(r)
	if err != nil {
		f.TB.Fatal(err)
	}
	p := &Process{Name: name, Role: r, role: kind, f: f, ready: make(chan struct{}),
		counts: make(chan int, 1), exited: make(chan struct{})}
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), roleVariable+"="+string(encoded))
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		f.TB.Fatal(err)
	}
	p.cmd.Stderr = p
	if err := child.Start(p.cmd); err != nil {
		f.TB.Fatal(err)
	}
	f.processes = append(f.processes, p)
	go p.follow(stdout)
	if !r.NoWait {
		p.AwaitReady(40 * time.Second)
	}
	return p
}

func (p *Process) follow(stdout io.Reader) {
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		if lines.Text() == readyLine {
			close(p.ready)
		}
		var n int
		if _, err := fmt.Sscanf(lines.Text(), goroutinesLine, &n); err == nil {
			p.counts <- n
		}
	}
	p.err = p.cmd.Wait()
	close(p.exited)
}

// Write appends to the process's log.
func (p *Process) Write(data []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(data)
}

// Log returns the process's log.
func (p *Process) Log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// PeakMemory returns the peak resident memory of the process in bytes.
func (p *Process) PeakMemory() int64 {
	p.f.TB.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.f.TB.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	var kib int64
	if _, err := fmt.Sscanf(rest, "%d kB", &kib); err != nil {
		p.f.TB.Fatalf("read the peak memory of %s: %v", p.Name, err)
	}
	return kib << 10
}

// Goroutines returns how many goroutines the process has.
func (p *Process) Goroutines() int {
	p.f.TB.Helper()
	p.Signal(syscall.SIGUSR1)
	select {
	case n := <-p.counts:
		return n
	case <-time.After(20 * time.Second):
		p.f.TB.Fatalf("%s %s does not tell its goroutines", p.role, p.Name)
	}
	return 0
}

// Descriptors returns how many descriptors the process has open.
func (p *Process) Descriptors() int {
	p.f.TB.Helper()
	found, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.Pid()))
	if err != nil {
		p.f.TB.Fatal(err)
	}
	return len(found)
}

// AwaitReady waits until the process accepts work.
func (p *Process) AwaitReady(d time.Duration) {
	p.f.TB.Helper()
	select {
	case <-p.ready:
	case <-p.exited:
		p.f.TB.Fatalf("%s %s ended: %v\n%s", p.role, p.Name, p.err, p.Log())
	case <-time.After(d):
		select {
		case <-p.ready: // after a pause of the test process, both channels can be ready
		default:
			p.f.TB.Fatalf("%s %s is not ready within %s\n%s", p.role, p.Name, d, p.Log())
		}
	}
}

// AwaitExit waits until the process has ended and returns how it ended.
func (p *Process) AwaitExit(d time.Duration) error {
	p.f.TB.Helper()
	select {
	case <-p.exited:
		return p.err
	case <-time.After(d):
		if !p.Exited() { // after a pause of the test process, both channels can be ready
			p.f.TB.Fatalf("%s %s has not ended within %s\n%s", p.role, p.Name, d, p.Log())
		}
		return p.err
	}
}

// AwaitKilled waits until the process has killed itself at the probe that its Role names.
func (p *Process) AwaitKilled(d time.Duration) {
	p.f.TB.Helper()
	err := p.AwaitExit(d)
	var ended *exec.ExitError
	if !errors.As(err, &ended) || ended.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		p.f.TB.Fatalf("%s %s should have been killed %s, and ended with %v\n%s", p.role, p.Name, p.Role.CrashAt, err,
			p.Log())
	}
}

// AwaitPaused waits until the process has stopped itself at the probe that its Role names.
func (p *Process) AwaitPaused(d time.Duration) {
	p.f.TB.Helper()
	p.f.Eventually(d, p.Name+" is paused", func() error {
		still, err := halt.StandsStill(p.Pid())
		if err == nil && !still {
			err = errors.New("it is running")
		}
		return err
	})
}

// Exited reports whether the process has ended.
func (p *Process) Exited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// Pid returns the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Signal sends a signal.
func (p *Process) Signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) } // fails if the process has ended

// Pause stops the process and returns once all its threads have stopped. [Process.Continue] resumes it.
func (p *Process) Pause() {
	p.f.TB.Helper()
	if err := halt.Process(p.Pid()); err != nil {
		p.f.TB.Error(err)
	}
}

// Continue undoes [Process.Pause].
func (p *Process) Continue() { p.Signal(syscall.SIGCONT) }

// dump ends the process and makes it print the stacks of its goroutines.
func (p *Process) dump() {
	p.Signal(syscall.SIGCONT) // the test may have paused the process
	p.Signal(syscall.SIGQUIT)
	select {
	case <-p.exited:
	case <-time.After(3 * time.Second):
	}
}

// Kill ends the process with SIGKILL and waits.
func (p *Process) Kill() {
	p.Signal(syscall.SIGCONT)
	p.Signal(syscall.SIGKILL)
	<-p.exited
}

// Stop ends the process with SIGTERM, as an operator would, and waits.
func (p *Process) Stop() {
	p.f.TB.Helper()
	p.Signal(syscall.SIGTERM)
	if err := p.AwaitExit(20 * time.Second); err != nil {
		p.f.TB.Errorf("%s %s: %v\n%s", p.role, p.Name, err, p.Log())
	}
}

// Restart starts the ended process again, without the crash or panic that its Role asks for.
func (p *Process) Restart() *Process {
	p.f.TB.Helper()
	<-p.exited
	r := p.Role
	r.CrashAt, r.PanicAt, r.NoWait = "", "", false
	return p.f.start(p.role, p.Name, r)
}

// dockerCLI runs the docker command against an engine and returns the words that it prints.
func dockerCLI(address string, args ...string) ([]string, error) {
	if address != "" {
		args = append([]string{"-H", address}, args...)
	}
	var stderr bytes.Buffer
	cmd := exec.Command("docker", args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("docker %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return strings.Fields(string(out)), nil
}

// Objects lists the deployment's containers and networks on an engine. Each item is "kind id".
func (f *Fleet) Objects(address string) []string {
	f.TB.Helper()
	label := "label=boxfleet.deployment=" + f.Conn.Deployment()
	var all []string
	for kind, args := range map[string][]string{
		"container": {"ps", "-a", "--format", "{{.Names}}"}, "network": {"network", "ls", "--format", "{{.Name}}"},
	} {
		names, err := dockerCLI(address, append(args, "--filter", label)...)
		if err != nil {
			f.TB.Fatal(err)
		}
		for _, name := range names {
			all = append(all, kind+" "+name)
		}
	}
	return all
}

// Directories lists the sandbox directories of a worker.
func (f *Fleet) Directories(worker *Process) []string {
	found, err := filepath.Glob(filepath.Join(worker.Role.StateDir, "*", "*", "sandboxes", "*"))
	if err != nil {
		f.TB.Fatal(err)
	}
	return found
}
