package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
)

// TestX_OnlyTheSandboxThatFillsADiskIsStopped puts the engine and the worker on one small disk. Sandboxes fill the disk
// one after the other: with writes to their own layer, with a removed file that is still open, with reserved space that
// is never written, and with output. The worker stops each of these sandboxes with a reason that names the disk. A
// neighbour that keeps overwriting the same bytes keeps running, the worker keeps its host, and a delete frees the
// space.
func TestX_OnlyTheSandboxThatFillsADiskIsStopped(t *testing.T) {
	t.Parallel()
	e := engines.StartOnDisk(t, "disk", 224*mebibyte)
	engines.LoadImage(t, e, fleet.Image)
	f := fleet.Start(t, fleet.Options{Workers: -1})
	f.Worker("w1", fleet.Role{Engine: e.Host, StateDir: filepath.Join(e.Disk(), "worker"),
		Reconcile: 500 * time.Millisecond})
	ctx := f.Context(2 * time.Minute)
	neighbour := f.Create("neighbour")
	locks := f.WatchLocks()
	if _, err := neighbour.Start(ctx,
		script("while :; do dd if=/dev/zero of=/same bs=1M count=2; sleep 0.1; done")); err != nil {
		t.Fatal(err)
	}

	for name, fill := range map[string]string{
		"layer":   "dd if=/dev/zero of=/big bs=1M; sleep 1000",
		"removed": "exec 3>/big; rm /big; dd if=/dev/zero bs=1M >&3; sleep 1000",
		"reserve": "exec 3>/big; rm /big; n=1; while fallocate -l ${n}M /proc/self/fd/3; do n=$((n+1)); done; sleep 1000",
		"print":   "dd if=/dev/zero bs=1M; sleep 1000",
	} {
		s := f.Create(name)
		x, err := s.Start(ctx, script(fill))
		if err != nil {
			t.Fatal(err)
		}
		f.Eventually(40*time.Second, name+" is stopped because of the disk", func() error {
			if err := s.Refresh(ctx); err != nil || s.Info().State != protocol.StateFailed {
				return fmt.Errorf("%s, %w", s.Info().State, err)
			}
			return nil
		})
		if why := s.Info().Error; why == nil || why.Code != protocol.ResourceExhausted ||
			why.Reason != protocol.ReasonDiskFull || !strings.Contains(why.Message, "disk") {
			t.Errorf("%s failed with %v", name, why)
		}
		if r, err := x.Wait(ctx); protocol.AsError(err).Reason != protocol.ReasonDiskFull {
			t.Errorf("the exec of %s ended with %+v, %v", name, r, err)
		}
		if got := mustExec(ctx, t, neighbour, script("echo here")); got != "here\n" {
			t.Errorf("%s: the neighbour printed %q", name, got)
		}
		if err := s.Delete(ctx); err != nil {
			t.Fatalf("delete %s: %v", name, err)
		}
		f.Eventually(20*time.Second, "there is room again", func() error {
			var fs unix.Statfs_t
			if err := unix.Statfs(e.Disk(), &fs); err != nil || fs.Bavail < fs.Blocks/3 {
				return fmt.Errorf("%d of %d blocks are free, %w", fs.Bavail, fs.Blocks, err)
			}
			return nil
		})
	}
	if err := neighbour.Refresh(ctx); err != nil || neighbour.Info().State != protocol.StateReady {
		t.Errorf("the neighbour is %s, %v", neighbour.Info().State, err)
	}
	tenures := locks.Of("w1")
	for _, l := range tenures {
		if l.Holder != tenures[0].Holder {
			t.Errorf("the host's lock went from %+v to %+v", tenures[0].Holder, l.Holder)
		}
	}
	f.Create("after")
	f.Judge()
}

// TestX_ASandboxThatFilledADiskWithoutAWorkerIsStopped kills the worker. A sandbox then fills the disk and keeps trying
// to write. The next worker stops that sandbox after it has inspected the host. A delete of the sandbox frees the
// space.
func TestX_ASandboxThatFilledADiskWithoutAWorkerIsStopped(t *testing.T) {
	t.Parallel()
	e := engines.StartOnDisk(t, "away", 224*mebibyte)
	engines.LoadImage(t, e, fleet.Image)
	f := fleet.Start(t, fleet.Options{Workers: -1})
	w := f.Worker("w1", fleet.Role{Engine: e.Host, StateDir: filepath.Join(e.Disk(), "worker"),
		Reconcile: 500 * time.Millisecond})
	ctx := f.Context(time.Minute)
	neighbour, s := f.Create("neighbour"), f.Create("culprit")
	room := func(enough func(fs *unix.Statfs_t) bool) func() error {
		return func() error {
			var fs unix.Statfs_t
			if err := unix.Statfs(e.Disk(), &fs); err != nil || !enough(&fs) {
				return fmt.Errorf("%d of %d blocks are free, %w", fs.Bavail, fs.Blocks, err)
			}
			return nil
		}
	}
	_, err := s.Start(ctx,
		script("touch /began; while [ ! -e /go ]; do sleep 0.1; done; while :; do dd if=/dev/zero of=/big bs=64k; sleep "+
			"0.02; dd if=/dev/zero of=/more bs=64k; done"))
	check(t, err)
	f.Eventually(10*time.Second, "the exec runs", func() error {
		if r, err := s.Exec(ctx,
			script("test -e /began || exit 1; (sleep 1; touch /go) >/dev/null 2>&1 &")); err != nil ||
			*r.ExitCode != 0 {
			return fmt.Errorf("%v, %w", r, err)
		}
		return nil
	})
	w.Kill()
	f.Eventually(20*time.Second, "the disk is full", room(func(fs *unix.Statfs_t) bool { return fs.Bavail < 100 }))
	w.Restart()
	inState(f, "culprit", protocol.StateFailed, 20*time.Second)
	check(t, s.Refresh(ctx))
	if why := s.Info().Error; why == nil || why.Reason != protocol.ReasonDiskFull {
		t.Errorf("the sandbox failed with %v", why)
	}
	check(t, s.Delete(ctx))
	f.Eventually(20*time.Second, "there is room again",
		room(func(fs *unix.Statfs_t) bool { return fs.Bavail > fs.Blocks/3 }))
	if got := mustExec(ctx, t, neighbour, script("echo here")); got != "here\n" {
		t.Errorf("the neighbour printed %q", got)
	}
	f.Judge()
}
