package integration

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

const (
	demoImage   = fleet.Image
	commandTime = time.Minute      // longest time of one command of a client
	readyTime   = 30 * time.Second // longest start or end of a process
	loaders     = 2                // clients that work all the time
)

// releases is a fleet of processes of two releases.
type releases struct {
	t           *testing.T
	dir         string
	url         string
	authority   string                 // the directory of the authority; empty: no credentials
	before, now string                 // directories with the programs of each release
	client      atomic.Pointer[string] // the directory of the client's program
	step        string                 // the phase, for errors
	limited     bool                   // the earlier release is one of withoutHosts
	ids         atomic.Int64
	running     map[string]*releaseProcess
	loading     sync.WaitGroup
	stopLoad    context.CancelFunc
	used        atomic.Int64 // how often the load has used a sandbox
}

type releaseProcess struct {
	cmd    *exec.Cmd
	ended  chan struct{}
	output lockedBuffer
}

// startReleases starts the NATS server. If secured, the earlier release makes an authority, and the server asks for
// credentials.
func startReleases(t *testing.T, before, now string, secured bool) *releases {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	f := &releases{t: t, dir: t.TempDir(), url: "nats://" + address, before: before, now: now,
		running: map[string]*releaseProcess{}, stopLoad: func() {}}
	f.client.Store(&f.before)
	config := filepath.Join(f.dir, "nats.conf")
	// Without a limit, the server offers a part of the disk: too little on a small machine.
	text := fmt.Sprintf("listen: %s\njetstream { store_dir: %q, max_file_store: 100GB }\n", address,
		filepath.Join(f.dir, "js"))
	t.Cleanup(f.cleanUp)
	if secured {
		text += f.makeAuthority()
	}
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f.run("nats", filepath.Join(now, "nats-server"), "-c", config)
	eventually.Holds(t, readyTime, "the NATS server listens", func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return f
}

func (f *releases) run(name, program string, args ...string) {
	f.t.Helper()
	p := &releaseProcess{cmd: exec.Command(program, args...), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), "BOXFLEET_NATS="+f.url, "BOXFLEET_CREDS="+f.creds(name), "XDG_CONFIG_HOME="+f.dir)
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // the end of the process is all that matters
	}()
	f.running[name] = p
}

// startAll starts two coordinators and a worker of one release.
func (f *releases) startAll(release string) {
	f.t.Helper()
	f.step = "start"
	for _, role := range []string{"c1", "c2"} {
		f.startRole(release, role)
	}
	f.learnHost(release)
	f.startRole(release, "w1")
}

func (f *releases) startRole(release, name string) {
	f.t.Helper()
	f.runRole(release, name)
	p := f.running[name]
	eventually.Holds(f.t, readyTime, f.step+": "+name+" of "+release+" is ready", func() bool {
		select {
		case <-p.ended:
			f.t.Fatalf("%s: %s of %s has ended: %s", f.step, name, release, p.output.Bytes())
		default:
		}
		return bytes.Contains(p.output.Bytes(), []byte("ready: "))
	})
}

func (f *releases) runRole(release, name string) {
	f.t.Helper()
	args := []string{"coordinator", "--name", name, "--data-dir", filepath.Join(f.dir, name)}
	if name[0] == 'w' {
		args = []string{"worker", "--name", name, "--data-dir", filepath.Join(f.dir, name),
			"--state-dir", f.stateDir(), "--network-pool", "10.234.0.0/16"}
	}
	f.run(name, filepath.Join(release, "boxfleet"), args...)
}

func (f *releases) stateDir() string { return filepath.Join(f.dir, "state") }

func (f *releases) stop(name string) {
	p := f.running[name]
	if p == nil {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // fails if the process has ended
	select {
	case <-p.ended:
	case <-time.After(readyTime):
		f.t.Errorf("%s: %s did not end: %s", f.step, name, p.output.Bytes())
		_ = p.cmd.Process.Kill() // fails if the process has just ended
		<-p.ended
	}
	delete(f.running, name)
}

// roll replaces processes, one after another, by those of another release.
func (f *releases) roll(release string, names ...string) {
	f.t.Helper()
	for _, name := range names {
		f.stop(name)
		f.startRole(release, name)
	}
}

func (f *releases) phase(step string) {
	f.t.Helper()
	f.step = step
	f.t.Logf("%s; the load has used %d sandboxes", step, f.used.Load())
}

func (f *releases) nextID() string { return fmt.Sprintf("s%d", f.ids.Add(1)) }

// try runs a command of the client's present release.
func (f *releases) try(args ...string) (stdout string, err error) {
	return f.tryIn(*f.client.Load(), args...)
}

func (f *releases) tryIn(release string, args ...string) (stdout string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(release, "boxfleet"),
		append([]string{"--nats", f.url, "--data-dir", filepath.Join(f.dir, "client")}, args...)...)
	cmd.Env = append(os.Environ(), "BOXFLEET_CREDS="+f.creds(clientName), "XDG_CONFIG_HOME="+f.dir)
	var out, problem bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problem
	if err = cmd.Run(); err != nil {
		return out.String() + problem.String(), fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	return out.String(), nil
}

func (f *releases) do(args ...string) string {
	f.t.Helper()
	out, err := f.try(args...)
	if err != nil {
		f.t.Fatalf("%s: %v: %s", f.step, err, out)
	}
	return out
}

// load makes clients create sandboxes, run execs and delete sandboxes until endLoad.
func (f *releases) load() {
	ctx, cancel := context.WithCancel(context.Background())
	f.stopLoad = cancel
	for range loaders {
		f.loading.Go(func() {
			for ctx.Err() == nil {
				if err := f.useOnce(8_000); err != nil {
					f.t.Errorf("load: %v", err)
					return
				}
				f.used.Add(1)
			}
		})
	}
}

func (f *releases) endLoad() {
	f.stopLoad()
	f.loading.Wait()
}

// start starts an exec that prints numbered lines until ends.
func (f *releases) start(name string) {
	f.t.Helper()
	const script = `i=0; while [ ! -e /tmp/stop ]; do i=$((i+1)); echo "line $i of an exec that prints a long time"; ` +
		`sleep 0.02; done; echo "end $i"`
	f.do("sandbox", "create", "--id", name, "--image", demoImage)
	f.do("exec", "--detach", "--id", name, name, "--", "sh", "-c", script)
}

// ends lets an exec that start started end, and checks that its output is complete.
func (f *releases) ends(name string) {
	f.t.Helper()
	f.do("exec", name, "--", "touch", "/tmp/stop")
	lines := strings.Split(strings.TrimSpace(f.do("execs", "logs", "--follow", name, name)), "\n")
	for i, line := range lines {
		want := fmt.Sprintf("line %d of an exec that prints a long time", i+1)
		if i == len(lines)-1 {
			want = fmt.Sprintf("end %d", i)
		}
		if line != want {
			f.t.Fatalf("%s: line %d of exec %s is %q, want %q", f.step, i+1, name, line, want)
		}
	}
	f.t.Logf("exec %s printed %d lines", name, len(lines))
	f.do("sandbox", "delete", name)
}

// speaks checks that the worker's registration has the versions of the wire that this release speaks.
func (f *releases) speaks(worker string) {
	f.t.Helper()
	c, err := sdk.Connect(f.t.Context(), sdk.Options{URL: f.url, Creds: f.creds(clientName)})
	if err != nil {
		f.t.Fatal(err)
	}
	defer c.Close()
	h, err := c.Hosts().Get(f.t.Context(), worker)
	if err != nil || h.Speaks != protocol.Version || h.Oldest != protocol.OldestVersion || h.Unsupported != "" {
		f.t.Errorf("worker %s is registered as %+v: %v", worker, h, err)
	}
}

// folds folds every history of the log: its events must be numbered without a gap, be legal, and end each exec well.
func (f *releases) folds() {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	conn, err := jetstream.Connect(ctx, jetstream.Config{URL: f.url, Creds: f.creds(readerName), Name: readerName})
	if err != nil {
		f.t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.Open(ctx); err != nil {
		f.t.Fatal(err)
	}
	states, execs := map[string]*protocol.State{}, 0
	_ = conn.FollowEvents(ctx, 1, func(b *protocol.Batch) { // returns the error of ctx
		s := states[b.Sandbox]
		if s == nil {
			s = &protocol.State{}
			states[b.Sandbox] = s
		}
		for i := range b.Events {
			e := &b.Events[i]
			if err := s.Apply(e); err != nil {
				f.t.Errorf("%s: event %d of %s: %v", f.step, e.Sequence, b.Sandbox, err)
			}
			if e.Exec == nil || !e.Exec.State.Terminal() {
				continue
			}
			execs++
			if e.Exec.ExitCode == nil || *e.Exec.ExitCode != 0 || e.Exec.OutputError != nil {
				f.t.Errorf("%s: an exec of %s ended with %s, reason %q", f.step, b.Sandbox, e.Kind, e.Reason)
			}
		}
	}, cancel)
	if len(states) == 0 || execs == 0 {
		f.t.Errorf("%s: the log has %d histories and %d ended execs", f.step, len(states), execs)
	}
	f.t.Logf("%d histories with %d ended execs fold", len(states), execs)
}

// cleanUp ends all processes, and removes what the worker keeps on the engine.
func (f *releases) cleanUp() {
	f.endLoad()
	if f.t.Failed() {
		for name, p := range f.running {
			f.t.Logf("%s: %s", name, p.output.Bytes())
		}
	}
	if f.running["c1"] != nil && f.running["w1"] != nil {
		out, err := f.tryIn(f.now, "ps", "--quiet")
		for id := range strings.FieldsSeq(out) {
			if err == nil {
				_, err = f.tryIn(f.before, "sandbox", "delete", id)
			}
		}
		if err != nil {
			f.t.Errorf("could not delete what is left: %v", err)
		}
	}
	for _, name := range []string{"w1", "c1", "c2"} {
		f.stop(name)
	}
	if _, err := os.Stat(f.stateDir()); err == nil {
		if out, err := f.tryIn(f.now, "worker", "purge", "--state-dir", f.stateDir(), "--yes"); err != nil {
			f.t.Errorf("%v: %s", err, out)
		}
	}
	f.stop("nats")
}
