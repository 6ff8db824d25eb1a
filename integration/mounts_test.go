package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o777); err != nil {
		t.Fatal(err)
	}
}

func TestOnlyAWritableMountCanBeWritten(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	dir := t.TempDir()
	shared, fixed, below := filepath.Join(dir, "shared"), filepath.Join(dir, "shared", "fixed"), filepath.Join(dir,
		"shared", "work", "below")
	mkdir(t, fixed)
	mkdir(t, below)
	if err := syscall.Mount("tmpfs", below, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(below, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	writeFile(t, filepath.Join(shared, "file"), "host", 0o666, time.Now())
	w := f.Worker("w1", fleet.Role{AllowMounts: []string{shared + ":rw", fixed}})
	ctx := f.Context(time.Minute)
	mounts := []protocol.Mount{
		{Source: filepath.Join(shared, "work"), Target: "/work", Writable: true},
		{Source: filepath.Join(shared, "file"), Target: "/etc/one file", Writable: true},
		{Source: filepath.Join(shared, "work"), Target: "/reader"},
		{Source: fixed, Target: "/work/fixed"},
	}
	spec := f.Spec()
	spec.Mounts = mounts
	s, err := f.Client.Create(ctx, spec, sdk.WithID("writable"))
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Info().Spec.Mounts; len(got) != len(mounts) || got[0] != mounts[0] || got[2] != mounts[2] {
		t.Errorf("read back: %+v", got)
	}
	mustExec(ctx, t, s, script("echo made > /work/new && echo sandbox > '/etc/one file' && touch /work/below/hidden"))
	for _, attempt := range []string{"touch /reader/x", "touch /reader/below/x", "touch /work/fixed/x"} {
		if r, err := s.Exec(ctx, script(attempt)); err != nil || code(r) == "0" {
			t.Errorf("%s: %v, exit code %s", attempt, err, code(r))
		}
	}
	for name, want := range map[string]string{"work/new": "made\n", "file": "sandbox\n"} {
		if data, err := os.ReadFile(filepath.Join(shared, name)); err != nil || string(data) != want {
			t.Errorf("the host's %s: %q, %v", name, data, err)
		}
	}
	if left, _ := os.ReadDir(below); len(left) > 0 {
		t.Errorf("the sandbox wrote into a file system that is mounted below its mount: %v", left)
	}
	// Neither a manual start of the container nor the Engine's copy command leads to files of the host.
	links, err := filepath.Glob(filepath.Join(f.Directories(w)[0], "mounts", "?"))
	if err != nil || len(links) != len(mounts) {
		t.Fatalf("the links of mounts: %q, %v", links, err)
	}
	for _, link := range links {
		if real, err := filepath.EvalSymlinks(link); err != nil || real != link+".empty" {
			t.Errorf("%s leads to %s, %v", link, real, err)
		}
	}
	// A resume checks the sources again and mounts the same source.
	if err := errors.Join(s.Stop(ctx), s.Resume(ctx)); err != nil {
		t.Fatal(err)
	}
	if got := mustExec(ctx, t, s,
		script("cat /work/new '/etc/one file'; echo again >> /work/new")); got != "made\nsandbox\n" {
		t.Errorf("after a resume: %q", got)
	}
	if err := errors.Join(s.Stop(ctx), os.Rename(filepath.Join(shared, "file"),
		filepath.Join(shared, "away"))); err != nil {
		t.Fatal(err)
	}
	wantError(t, "a resume without its mount", s.Resume(ctx), protocol.InvalidArgument, "", "spec.mounts[1].source")
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	becomesEmpty(f, w)
	if data, err := os.ReadFile(filepath.Join(shared, "work", "new")); err != nil || string(data) != "made\nagain\n" {
		t.Errorf("the delete reached the host's files: %q, %v", data, err)
	}
	for source, field := range map[string]string{fixed: "writable", shared: "writable", "/etc": "source"} {
		spec := f.Spec()
		spec.Mounts = []protocol.Mount{{Source: source, Target: "/m", Writable: true}}
		_, err := f.Client.Create(ctx, spec)
		wantError(t, source+" writable", err, protocol.PermissionDenied, protocol.ReasonMountDenied,
			"spec.mounts[0]."+field)
	}
}

// While sandboxes mount a directory below the allowed one, another process keeps replacing that directory by a link to
// a forbidden directory. A sandbox with a writable mount of the allowed directory could run such a process.
func TestS12_ASwappedMountSourceNeverLeadsOutside(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	dir := t.TempDir()
	allowed, outside := filepath.Join(dir, "allowed"), filepath.Join(dir, "outside")
	writeFile(t, filepath.Join(allowed, "a", "file"), "allowed", 0o644, time.Now())
	writeFile(t, filepath.Join(outside, "file"), "SECRET", 0o644, time.Now())
	if err := os.Symlink(outside, filepath.Join(allowed, "b")); err != nil {
		t.Fatal(err)
	}
	w := f.Worker("w1", fleet.Role{AllowMounts: []string{allowed + ":rw"}})
	ctx := f.Context(2 * time.Minute)
	var exchanges atomic.Int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(n%7) * time.Millisecond):
			}
			if unix.Renameat2(unix.AT_FDCWD, filepath.Join(allowed, "a"), unix.AT_FDCWD, filepath.Join(allowed, "b"),
				unix.RENAME_EXCHANGE) == nil {
				exchanges.Add(1)
			}
		}
	}()
	made, refused, exchanged := 0, 0, 0
	for n := 0; n < 12 || made == 0 && n < 60; n++ {
		spec := f.Spec()
		spec.Mounts = []protocol.Mount{{Source: filepath.Join(allowed, "a"), Target: "/m"}}
		// The worker must notice a wrong mount before the container's command starts.
		spec.Command = []string{"/bin/busybox", "sh", "-c", "cat /m/file > /seen; sleep 60"}
		s, err := f.Client.Create(ctx, spec)
		if err != nil {
			wantError(t, "a create", err, protocol.PermissionDenied, protocol.ReasonMountDenied,
				protocol.AsError(err).Field)
			refused++
			if strings.Contains(err.Error(), "exchanged") {
				exchanged++
			}
			continue
		}
		made++
		r, err := s.Exec(ctx, script("cat /m/file /seen"))
		if err != nil || strings.Contains(string(r.Stdout), "SECRET") {
			t.Errorf("a sandbox sees %q, %v", r.Stdout, err)
		}
		if err := s.Delete(ctx); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	<-stopped
	t.Logf("%d sandboxes created, %d refused (%d after the container's start), %d exchanges", made, refused, exchanged,
		exchanges.Load())
	if made == 0 || exchanges.Load() < 100 {
		t.Errorf("%d sandboxes were created during %d swaps: the test proves nothing", made, exchanges.Load())
	}
	for s, err := range f.Client.List(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Delete(ctx); err != nil {
			t.Error(err)
		}
	}
	becomesEmpty(f, w)
}

// A worker is killed after it started a container and before it checked the container's mounts. The next worker checks
// the mounts before the sandbox becomes ready.
func TestS12_ACrashDoesNotSkipTheCheckOfMounts(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	dir := t.TempDir()
	allowed := filepath.Join(dir, "allowed")
	mkdir(t, filepath.Join(allowed, "a"))
	mkdir(t, filepath.Join(allowed, "b"))
	w := f.Worker("w1", fleet.Role{AllowMounts: []string{allowed}, CrashAt: "after-container-start"})
	ctx := f.Context(time.Minute)
	spec := f.Spec()
	spec.Mounts = []protocol.Mount{{Source: filepath.Join(allowed, "a"), Target: "/m"}}
	if _, err := f.Client.Create(ctx, spec, sdk.WithID("crashed"), sdk.WithWait(false)); err != nil {
		t.Fatal(err)
	}
	w.AwaitKilled(20 * time.Second)
	// The path of the mount source now leads to a directory that the container has not mounted.
	err := errors.Join(os.Rename(filepath.Join(allowed, "a"), filepath.Join(allowed, "c")),
		os.Rename(filepath.Join(allowed, "b"), filepath.Join(allowed, "a")))
	if err != nil {
		t.Fatal(err)
	}
	w = w.Restart()
	s := f.Client.Sandbox("crashed")
	wantError(t, "the create", s.WaitReady(ctx), protocol.PermissionDenied, protocol.ReasonMountDenied,
		"spec.mounts[0]")
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	becomesEmpty(f, w)
}

// A worker is killed while the links for a container's mounts lead to the mount sources. The next worker changes these
// links, so that they lead nowhere again.
func TestACrashDoesNotLeaveTheSourcesOfMountsInSight(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	source := t.TempDir()
	writeFile(t, filepath.Join(source, "file"), "host", 0o666, time.Now())
	ctx := f.Context(2 * time.Minute)
	for _, at := range []string{"before-container-start", "before-mounts-hidden"} {
		w := f.Worker("w1", fleet.Role{AllowMounts: []string{source + ":rw"}, CrashAt: at})
		spec := f.Spec()
		spec.Mounts = []protocol.Mount{{Source: source, Target: "/m", Writable: true}}
		s, err := f.Client.Create(ctx, spec, sdk.WithWait(false))
		if err != nil {
			t.Fatal(err)
		}
		w.AwaitKilled(20 * time.Second)
		link := filepath.Join(f.Directories(w)[0], "mounts", "0")
		leads := func() string {
			t.Helper()
			real, err := filepath.EvalSymlinks(link)
			if err != nil {
				t.Fatal(err)
			}
			return real
		}
		if leads() != source {
			t.Errorf("%s: after the crash the link leads to %s", at, leads())
		}
		w = w.Restart()
		if err := s.WaitReady(ctx); err != nil {
			t.Fatalf("%s: %v", at, err)
		}
		if leads() != link+".empty" {
			t.Errorf("%s: the link leads to %s", at, leads())
		}
		if got := mustExec(ctx, t, s, script("cat /m/file")); got != "host" {
			t.Errorf("%s: the mount shows %q", at, got)
		}
		if err := s.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		w.Stop()
		w = f.Worker("w1", fleet.Role{AllowMounts: []string{source + ":rw"}, CrashAt: at})
		resumed := begin(func() error { return s.Resume(ctx) })
		w.AwaitKilled(20 * time.Second)
		restarted := time.Now()
		w = w.Restart()
		if err := doneWithin(t, restarted, "resumed", resumed); err != nil {
			t.Fatalf("%s, at a resume: %v", at, err)
		}
		if leads() != link+".empty" {
			t.Errorf("%s, at a resume: the link leads to %s", at, leads())
		}
		if err := s.Delete(ctx); err != nil {
			t.Fatal(err)
		}
		becomesEmpty(f, w)
		w.Stop()
	}
}

// After a restart of the machine, mount sources may appear later than the engine. A sandbox that was ready waits for
// its required sources, at most for the time limit of a create. It does not wait for optional sources.
func TestASandboxWaitsForItsMountsToComeBack(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	host, dir := engines.Default(t).Host, t.TempDir()
	data, away, home := filepath.Join(dir, "allowed", "data"), filepath.Join(dir, "away"), filepath.Join(dir, "home")
	writeFile(t, filepath.Join(data, "file"), "here", 0o644, time.Now())
	writeFile(t, filepath.Join(home, ".ssh", "known_hosts"), "host key", 0o644, time.Now())
	w := f.Worker("w1", fleet.Role{AllowMounts: []string{filepath.Join(dir, "allowed")}, Tools: []string{"git"},
		ToolsHome: home})
	ctx := f.Context(2 * time.Minute)
	spec := f.Spec()
	spec.Mounts, spec.Tools = []protocol.Mount{{Source: data, Target: "/data"}}, []string{"git"}
	const patience = 8 * time.Second
	spec.CreateTimeout = protocol.Duration(patience)
	s, err := f.Client.Create(ctx, spec, sdk.WithID("late"))
	if err != nil {
		t.Fatal(err)
	}
	ended := func() { // has the same effect as a shutdown of the machine
		t.Helper()
		w.Kill()
		docker(t, host, "kill", containerOf(f, host, "late"))
		if err := os.Rename(data, away); err != nil {
			t.Fatal(err)
		}
		w = w.Restart()
	}
	said := func() protocol.Event { return find(t, history(ctx, t, f.Client, "late"), protocol.SandboxWaiting) }
	if err := os.Remove(filepath.Join(home, ".ssh", "known_hosts")); err != nil {
		t.Fatal(err)
	}
	ended()
	f.Eventually(patience, "the history names the missing source", func() error {
		if n := count(history(ctx, t, f.Client, "late"), protocol.SandboxWaiting); n == 0 {
			return errors.New("the history does not name it yet")
		}
		return nil
	})
	wantError(t, "the missing source", said().Error, protocol.InvalidArgument, "", "spec.mounts[0].source")
	if why, err := s.Explain(ctx); err != nil || !strings.Contains(why.Waiting, data) {
		t.Errorf("the sandbox waits for %+v, %v", why, err)
	}
	if err := os.Rename(away, data); err != nil {
		t.Fatal(err)
	}
	if got := mustExec(ctx, t, s, script("cat /data/file ~/.ssh/known_hosts")); got != "here" {
		t.Errorf("once it is back: %q", got)
	}
	if info, err := f.Client.Get(ctx, "late"); err != nil || info.Info().Error != nil {
		t.Errorf("once it is back the sandbox waits for %v, %v", info.Info().Error, err)
	}
	if events := history(ctx, t, f.Client, "late"); count(events, protocol.SandboxWaiting) != 1 ||
		count(events, protocol.SandboxRestarted) != 1 {
		t.Errorf("the history is %v", kinds(events))
	}

	began := time.Now()
	ended()
	f.Eventually(patience+15*time.Second, "the sandbox fails", func() error {
		info, err := f.Client.Get(ctx, "late")
		if err == nil && info.Info().State != protocol.StateFailed {
			err = fmt.Errorf("it is %s", info.Info().State)
		}
		return err
	})
	if took := time.Since(began); took < patience {
		t.Errorf("the sandbox failed after %s", took)
	}
	wantError(t, "the sandbox", find(t, history(ctx, t, f.Client, "late"), protocol.SandboxFailed).Error,
		protocol.InvalidArgument, "", "spec.mounts[0].source")
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	becomesEmpty(f, w)
}
