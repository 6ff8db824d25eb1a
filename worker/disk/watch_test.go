package disk

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
)

// smallDisk mounts a file system of 16 MiB that represents a disk.
func smallDisk(t *testing.T) (dir string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("this test mounts a file system: run it as root")
	}
	dir = t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=16m"); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// watchOf returns a watch for a worker and an engine that share a disk.
func watchOf(dir string, log io.Writer, onStop func(protocol.SandboxKey, *protocol.Error)) *Watch {
	logger := slog.New(slog.NewTextHandler(log, nil))
	return New(Config{WorkerDir: dir, EngineDir: dir, ReserveDir: dir, OnStop: onStop, Logger: logger})
}

// fill writes a file into a sandbox's directory, and returns the error of writing it.
func fill(t *testing.T, home string, size int) error {
	t.Helper()
	if err := os.Mkdir(home, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	return os.WriteFile(filepath.Join(home, "output"), make([]byte, size), 0o600)
}

// process starts a process that represents a sandbox's container.
func process(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // the test may have killed the process
		_ = cmd.Wait()
	})
	return cmd
}

// The watch kills the sandbox that fills the disk. The watch has space for a note with the reason, because it releases
// its reserve.
func TestAWriterIsStoppedWithANoteAlthoughTheDiskIsFull(t *testing.T) {
	t.Parallel()
	dir := smallDisk(t)
	var logged bytes.Buffer
	var stopped *protocol.Error
	d := watchOf(dir, &logged, func(_ protocol.SandboxKey, why *protocol.Error) { stopped = why })
	d.unwatchedSince = time.Time{}
	home := filepath.Join(dir, "home")
	ctx := t.Context()
	d.check(ctx, time.Now())
	if !d.reserve.held || d.Full() != "" {
		t.Fatalf("on an empty disk, the reserve is held: %t, and the host is full: %q", d.reserve.held, d.Full())
	}
	if free, size := d.Fullest(); size != 16<<20 || free < size*9/10 || free > size {
		t.Errorf("%s of %s are free on an empty disk", free, size)
	}
	culprit := process(t)
	d.Track(one, culprit.Process.Pid, home)
	if err := fill(t, home, 64<<20); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk: got %v, want %v", err, unix.ENOSPC)
	}
	d.check(ctx, time.Now())
	if err := culprit.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the writer ended with %v, want killed; the log is\n%s", err, logged.String())
	}
	if stopped == nil || stopped.Reason != protocol.ReasonDiskFull || d.Full() == "" {
		t.Fatalf("the sandbox was stopped because of %v, and the host is full: %q", stopped, d.Full())
	}
	if note := ReadNote(home); note == nil || note.Message != stopped.Message {
		t.Errorf("the note says %v, want %v; the log is\n%s", note, stopped, logged.String())
	}
	if err := os.Remove(filepath.Join(home, "output")); err != nil {
		t.Fatal(err)
	}
	d.check(ctx, time.Now().Add(time.Minute))
	if d.Full() != "" || !d.reserve.held {
		t.Errorf("after space was freed, the reserve is held: %t, and the host is full: %q", d.reserve.held, d.Full())
	}
	if err := RemoveNote(home); err != nil || ReadNote(home) != nil {
		t.Errorf("removing the note: got %v; the note is now %v", err, ReadNote(home))
	}
}

// On a small disk, the reserve may be larger than disk_low.
func TestAFullDiskStaysFullAfterTheReserveIsReleased(t *testing.T) {
	t.Parallel()
	dir := smallDisk(t)
	d := New(Config{WorkerDir: dir, EngineDir: smallDisk(t), ReserveDir: dir, Low: mib / 2, Reserve: mib,
		Logger: slog.New(slog.DiscardHandler)})
	d.check(t.Context(), time.Now())
	if !d.reserve.held {
		t.Fatal("the reserve is not held on an empty disk")
	}
	foreign := filepath.Join(dir, "foreign") // no sandbox fills the disk
	if err := fill(t, foreign, 64<<20); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk: got %v, want %v", err, unix.ENOSPC)
	}
	for i := range 3 {
		d.check(t.Context(), time.Now())
		if d.Full() == "" || i > 0 && d.reserve.held {
			t.Fatalf("check %d: the host is full: %q; the reserve is held: %t", i, d.Full(), d.reserve.held)
		}
	}
	if err := os.RemoveAll(foreign); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		d.check(t.Context(), time.Now())
	}
	if d.Full() != "" || !d.reserve.held {
		t.Errorf("after space was freed, the host is full: %q; the reserve is held: %t", d.Full(), d.reserve.held)
	}
}

// A worker that starts on a full disk stops the sandbox that filled the disk, but not before it knows all sandboxes.
func TestASandboxThatFilledTheDiskWhileNoWorkerRanIsStopped(t *testing.T) {
	t.Parallel()
	dir := smallDisk(t)
	quarter := func(room) int64 { return mib / 4 }
	earlier := newReserve(dir, quarter)
	if err := earlier.hold(room{}); err != nil {
		t.Fatal(err)
	}
	earlier.mark(time.Now().Add(-time.Hour))
	var stopped []protocol.SandboxKey
	d := watchOf(dir, io.Discard, func(k protocol.SandboxKey, _ *protocol.Error) { stopped = append(stopped, k) })
	if time.Since(d.unwatchedSince) < 59*time.Minute {
		t.Fatalf("the last mark was %s ago, want an hour", time.Since(d.unwatchedSince))
	}
	track := func(k protocol.SandboxKey, size int, want error) {
		home := filepath.Join(dir, k.ID)
		if err := fill(t, home, size); !errors.Is(err, want) {
			t.Fatal(err)
		}
		d.Track(k, process(t).Process.Pid, home)
	}
	track(one, 2*mib, nil)
	d.check(t.Context(), time.Now())
	track(two, 64*mib, unix.ENOSPC)
	d.check(t.Context(), time.Now())
	if len(stopped) > 0 {
		t.Fatalf("the watch stopped %v before all sandboxes were known", stopped)
	}
	d.AllTracked()
	for range 3 {
		d.check(t.Context(), time.Now())
	}
	if len(stopped) != 1 || stopped[0] != two {
		t.Errorf("the watch stopped %v, want only %v", stopped, two)
	}
}
