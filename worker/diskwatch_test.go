package worker

import (
	"bytes"
	"context"
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
	"github.com/boxfleet/boxfleet/worker/diskuse"
)

var (
	one = key{Tenant: "default", ID: "one"}
	two = key{Tenant: "default", ID: "two"}
)

// sampleOf is a sample of two sandboxes: bytes on device 1, and bytes written.
func sampleOf(second int, free, oneHas, twoHas, oneWrote, twoWrote int64) *diskSample {
	use := func(n int64) diskuse.Usage {
		return diskuse.Usage{Device: 1, Bytes: n, Entries: n / mib, Recent: n, Whole: true}
	}
	return &diskSample{
		at: time.Unix(int64(second), 0), free: map[uint64]int64{1: free},
		use:     map[diskSource]diskuse.Usage{{one, "layer"}: use(oneHas), {two, "layer"}: use(twoHas)},
		written: map[diskSource]int64{{one, "processes"}: oneWrote, {two, "processes"}: twoWrote},
	}
}

const mib = 1 << 20

func TestTheFastestWriterIsBlamed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before, now *diskSample
		device      uint64
		key         key
		by          string
	}{
		"who grew the most":                     {sampleOf(0, 900*mib, 100*mib, 0, 0, 0), sampleOf(1, 800*mib, 110*mib, 90*mib, 10*mib, 90*mib), 1, two, byUsage},
		"not who has the most":                  {sampleOf(0, 900*mib, 800*mib, 0, 0, 0), sampleOf(1, 890*mib, 800*mib, 10*mib, 0, 10*mib), 1, two, byUsage},
		"not who writes the same bytes again":   {sampleOf(0, 900*mib, 100*mib, 0, 0, 0), sampleOf(1, 890*mib, 100*mib, 10*mib, 500*mib, 10*mib), 1, two, byUsage},
		"who writes to what has no name":        {sampleOf(0, 900*mib, 100*mib, 0, 0, 0), sampleOf(1, 800*mib, 101*mib, 0, 1*mib, 99*mib), 1, two, byWritten},
		"nobody who wrote a small part of it":   {sampleOf(0, 900*mib, 100*mib, 0, 0, 0), sampleOf(1, 800*mib, 100*mib, 0, 20*mib, 0), 1, key{}, byUsage},
		"nobody, where the disk loses nothing":  {sampleOf(0, 900*mib, 100*mib, 0, 0, 0), sampleOf(1, 900*mib, 100*mib, 0, 500*mib, 0), 1, key{}, byUsage},
		"nobody, for what is on another device": {sampleOf(0, 900*mib, 100*mib, 0, 0, 0), sampleOf(1, 800*mib, 200*mib, 0, 0, 0), 2, key{}, byUsage},
	} {
		if got := fastestWriter(c.before, c.now, c.device, false); got.key != c.key || got.by != c.by {
			t.Errorf("%s: got %+v", name, got)
		}
	}
	part := sampleOf(1, 0, 300*mib, 1*mib, 0, 0)
	part.use[diskSource{one, "layer"}] = diskuse.Usage{Device: 1, Bytes: 300 * mib}
	if got := fastestWriter(sampleOf(0, mib, 0, 0, 0, 0), part, 1, false); got.key != two {
		t.Errorf("what was counted in part is compared: %+v", got)
	}
	part = sampleOf(1, 800*mib, 100*mib, 0, 90*mib, 10*mib)
	part.use[diskSource{two, "layer"}] = diskuse.Usage{Device: 1}
	if got := fastestWriter(sampleOf(0, 900*mib, 100*mib, 0, 0, 0), part, 1, false); got.key != two || got.by != byWritten {
		t.Errorf("who was not counted whole is not asked first: %+v", got)
	}
	if got := fastestWriter(sampleOf(0, mib, 0, 0, 0, 0), sampleOf(1, mib, 9*mib, 2*mib, 0, 0), 1, true); got.key != one || got.rate != 9 {
		t.Errorf("of files: %+v", got)
	}
}

func TestWhatIsLowGoesByTheDisk(t *testing.T) {
	t.Parallel()
	const gib = 1 << 30
	for name, c := range map[string]struct {
		limits diskLimits
		room   diskRoom
		lost   int64
		level  diskLevel
		inodes bool
	}{
		"much":                      {diskLimits{}, diskRoom{free: 100 * gib, size: 250 * gib}, 0, diskCalm, false},
		"twice what is low":         {diskLimits{}, diskRoom{free: 3 * gib, size: 250 * gib}, 0, diskNear, false},
		"soon low":                  {diskLimits{}, diskRoom{free: 5 * gib, size: 250 * gib}, 2 * gib, diskNear, false},
		"low":                       {diskLimits{}, diskRoom{free: gib + 1, size: 250 * gib}, 0, diskLow, false},
		"half of it":                {diskLimits{}, diskRoom{free: gib - 1, size: 250 * gib}, 0, diskDire, false},
		"a small disk":              {diskLimits{}, diskRoom{free: 300 * mib, size: gib}, 0, diskCalm, false},
		"low as the operator says":  {diskLimits{low: 10 * gib}, diskRoom{free: 9 * gib, size: 250 * gib}, 0, diskLow, false},
		"inodes":                    {diskLimits{}, diskRoom{free: 100 * gib, size: 250 * gib, inodes: 1000, allInodes: 1_000_000}, 0, diskDire, true},
		"inodes that have no bound": {diskLimits{}, diskRoom{free: 100 * gib, size: 250 * gib}, 0, diskCalm, false},
	} {
		if level, inodes := c.limits.level(c.room, c.lost); level != c.level || inodes != c.inodes {
			t.Errorf("%s: level %d, by inodes %v", name, level, inodes)
		}
	}
}

func TestTheReserveIsHeldAndGivenAway(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := newDiskReserve(dir, func(diskRoom) int64 { return mib })
	for range 2 { // again after it was given away
		if err := r.hold(diskRoom{}); err != nil || !r.held {
			t.Fatal(err)
		}
		if use, err := diskuse.Tree(context.Background(), dir, time.Now()); err != nil || use.Bytes < mib || use.Entries < reserveInodes {
			t.Errorf("holds %+v, %v", use, err)
		}
		if again := newDiskReserve(dir, nil); !again.held {
			t.Error("the next worker does not know of it")
		}
		if err := r.release(); err != nil || r.held {
			t.Fatal(err)
		}
		if left, _ := os.ReadDir(r.dir); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	}
}

// On a full disk the worker can still note why it stopped somebody, with no log and no engine.
func TestAFullDiskLeavesRoomForTheNote(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root may mount")
	}
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=16m"); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	var logged bytes.Buffer
	var heard *protocol.Error
	d := &diskWatch{
		log: slog.New(slog.NewTextHandler(io.MultiWriter(&logged), nil)), dirs: []string{dir, dir}, containers: map[int]diskContainer{},
		copies: map[*diskCopy]bool{}, free: map[uint64]int64{}, stopped: func(_ key, why *protocol.Error) { heard = why },
	}
	d.reserve = newDiskReserve(dir, d.limits.reserveOf)
	home := filepath.Join(dir, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	d.look(ctx, time.Now())
	if !d.reserve.held || d.full() != "" {
		t.Fatalf("with much room: %q", d.full())
	}
	// A process of its own control group, as far as is known here, that has a sandbox's directory.
	culprit := exec.Command("sleep", "1000")
	if err := culprit.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = culprit.Process.Kill() })
	d.track(one, culprit.Process.Pid, home)
	if err := os.WriteFile(filepath.Join(home, "output"), make([]byte, 64<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk does not fill: %v", err)
	}
	d.look(ctx, time.Now())
	if err := culprit.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the culprit ended with %v\n%s", err, logged.String())
	}
	if heard == nil || heard.Reason != protocol.ReasonDiskFull || d.full() == "" {
		t.Errorf("stopped for %v, the host says %q", heard, d.full())
	}
	if _, err := os.Stat(filepath.Join(home, diskNote)); err != nil {
		t.Errorf("%v\n%s", err, logged.String())
	}
	if err := os.Remove(filepath.Join(home, "output")); err != nil {
		t.Fatal(err)
	}
	d.look(ctx, time.Now().Add(time.Minute))
	if d.full() != "" || !d.reserve.held {
		t.Errorf("with room again: %q, a reserve: %v", d.full(), d.reserve.held)
	}
}

// A worker that starts on a full disk stops the sandbox that filled it meanwhile, once it knows all sandboxes.
func TestWhoFilledADiskWhileNoWorkerLookedIsStopped(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root may mount")
	}
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=16m"); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	var stopped []key
	d := &diskWatch{
		log: slog.New(slog.DiscardHandler), dirs: []string{dir, dir}, containers: map[int]diskContainer{},
		copies: map[*diskCopy]bool{}, free: map[uint64]int64{}, stopped: func(k key, _ *protocol.Error) { stopped = append(stopped, k) },
	}
	d.reserve = newDiskReserve(dir, func(diskRoom) int64 { return mib / 4 })
	if err := d.reserve.hold(diskRoom{}); err != nil {
		t.Fatal(err)
	}
	d.reserve.look(time.Now().Add(-time.Hour))
	if d.away = newDiskReserve(dir, nil).lookedAt(); time.Since(d.away) < 59*time.Minute {
		t.Fatalf("a worker looked last %s ago", time.Since(d.away))
	}
	track := func(k key, size int, want error) {
		home := filepath.Join(dir, k.ID)
		if err := os.Mkdir(home, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(home, "output"), make([]byte, size), 0o600); !errors.Is(err, want) {
			t.Fatal(err)
		}
		process := exec.Command("sleep", "1000")
		if err := process.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = process.Process.Kill(); _ = process.Wait() })
		d.track(k, process.Process.Pid, home)
	}
	track(one, 2*mib, nil)
	d.look(t.Context(), time.Now())
	track(two, 64*mib, unix.ENOSPC)
	d.look(t.Context(), time.Now())
	if len(stopped) > 0 {
		t.Fatalf("stopped before all are known: %v", stopped)
	}
	d.seen.Store(true)
	for range 3 {
		d.look(t.Context(), time.Now())
	}
	if len(stopped) != 1 || stopped[0] != two {
		t.Errorf("stopped: %v", stopped)
	}
}
