package integration

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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

func TestAWritableMountIsWrittenAndNothingElseIs(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Workers: -1})
	dir := t.TempDir()
	shared, fixed, below := filepath.Join(dir, "shared"), filepath.Join(dir, "shared", "fixed"), filepath.Join(dir, "shared", "work", "below")
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
		t.Errorf("the sandbox wrote into what is mounted below its mount: %v", left)
	}
	// A start by somebody else's hand, or a copy by the Engine's, reaches nothing of the host.
	links, err := filepath.Glob(filepath.Join(f.Directories(w)[0], "mounts", "?"))
	if err != nil || len(links) != len(mounts) {
		t.Fatalf("the links of mounts: %q, %v", links, err)
	}
	for _, link := range links {
		if real, err := filepath.EvalSymlinks(link); err != nil || real != link+".empty" {
			t.Errorf("%s leads to %s, %v", link, real, err)
		}
	}
	// After a stop, a resume mounts the same again, by looking anew.
	if err := errors.Join(s.Stop(ctx), s.Resume(ctx)); err != nil {
		t.Fatal(err)
	}
	if got := mustExec(ctx, t, s, script("cat /work/new '/etc/one file'; echo again >> /work/new")); got != "made\nsandbox\n" {
		t.Errorf("after a resume: %q", got)
	}
	if err := errors.Join(s.Stop(ctx), os.Rename(filepath.Join(shared, "file"), filepath.Join(shared, "away"))); err != nil {
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
		wantError(t, source+" writable", err, protocol.PermissionDenied, protocol.ReasonMountDenied, "spec.mounts[0]."+field)
	}
}

// Who may write in an allowed directory, a sandbox with a writable mount for example, exchanges a
// directory of it for a link to what is not allowed, again and again, while sandboxes mount it.
func TestS12_ASourceThatIsExchangedNeverLeadsOut(t *testing.T) {
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
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(n%7) * time.Millisecond):
			}
			_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(allowed, "a"), unix.AT_FDCWD, filepath.Join(allowed, "b"), unix.RENAME_EXCHANGE)
		}
	}()
	made, refused, exchanged := 0, 0, 0
	for range 12 {
		spec := f.Spec()
		spec.Mounts = []protocol.Mount{{Source: filepath.Join(allowed, "a"), Target: "/m"}}
		// Were it seen only after the container's command has begun, it would be too late.
		spec.Command = []string{"/bin/busybox", "sh", "-c", "cat /m/file > /seen; sleep 60"}
		s, err := f.Client.Create(ctx, spec)
		if err != nil {
			wantError(t, "a create", err, protocol.PermissionDenied, protocol.ReasonMountDenied, protocol.AsError(err).Field)
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
	t.Logf("%d made, %d refused, of these %d when the container had started", made, refused, exchanged)
	for s, err := range f.Client.All(ctx, sdk.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Delete(ctx); err != nil {
			t.Error(err)
		}
	}
	becomesEmpty(f, w)
}

// A worker that dies between the start of a container and the look at its mounts leaves that to the
// next one, which makes the sandbox ready only then.
func TestS12_ACrashDoesNotSkipTheLookAtMounts(t *testing.T) {
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
	// What the container has mounted is now not what the path leads to.
	err := errors.Join(os.Rename(filepath.Join(allowed, "a"), filepath.Join(allowed, "c")), os.Rename(filepath.Join(allowed, "b"), filepath.Join(allowed, "a")))
	if err != nil {
		t.Fatal(err)
	}
	w = w.Restart()
	s := f.Client.Sandbox("crashed")
	wantError(t, "the create", s.WaitReady(ctx), protocol.PermissionDenied, protocol.ReasonMountDenied, "spec.mounts[0]")
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	becomesEmpty(f, w)
}
