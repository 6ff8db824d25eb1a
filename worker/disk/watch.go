package disk

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/diskuse"
)

// Config configures a [Watch]. All fields except Low and Reserve are required.
type Config struct {
	WorkerDir  string         // contains the directories of all sandboxes; its disk is the worker's disk
	EngineDir  string         // directory of the Docker engine; it may not exist on this machine
	ReserveDir string         // the reserve is kept below this directory, on the worker's disk
	Low        protocol.Bytes // free space below which sandboxes are stopped; 0: a tenth of the disk, at most 2 GiB
	Reserve    protocol.Bytes // held back for the worker; 0: a fiftieth of the disk, at most 32 MiB

	// OnStop is called before the processes of a sandbox are killed. The error is the reason why the sandbox fails.
	OnStop func(protocol.SandboxKey, *protocol.Error)
	Logger *slog.Logger
}

// Watch watches the free space on the host's disks, and stops the sandbox that would fill a disk:
//
//	enough free space  nothing is measured
//	near the limit     the sandboxes' use of the disk is measured once a second
//	below the limit    the fastest writer is stopped if it would fill the disk within a minute
//	below half of the  writers are stopped, the fastest first
//	limit
//
// The reason is written into the sandbox's directory; see [ReadNote]. A nil *Watch watches nothing.
type Watch struct {
	log     *slog.Logger
	limits  limits
	dirs    []string // WorkerDir and EngineDir
	layers  string   // directory in which the engine keeps the layers of containers
	reserve *reserve
	onStop  func(protocol.SandboxKey, *protocol.Error)

	mu         sync.Mutex
	containers map[int]container // containers by the PID of their first process
	copies     map[*copying]bool

	full     atomic.Pointer[string] // why the host takes no sandboxes; nil if it takes them
	fullest  atomic.Pointer[room]   // the disk with the smallest part free; nil: unknown
	allKnown atomic.Bool            // all containers that ran before this worker started are tracked

	// The following fields are used only by the goroutine of Run.
	before     *sample // the previous measurement; nil: nothing was measured since the disk last had enough space
	sampledAt  time.Time
	checkedAt  time.Time
	free       map[uint64]int64 // free bytes at checkedAt, by device
	stoppedAny bool             // a sandbox was stopped since the disk last had enough space
	warnedAt   time.Time        // when the watch last logged that the disk is full although no sandbox writes

	// unwatchedSince is when the previous worker last watched the disk. A sandbox may have filled the disk between that
	// time and the start of this worker. The watch checks this once, and then sets unwatchedSince to zero.
	unwatchedSince time.Time
}

// container is a running container.
type container struct {
	key   protocol.SandboxKey
	home  string // the sandbox's directory
	pid   int    // PID of the first process
	group string // control groups of its processes; see diskuse.Group
	layer string // directory of its writable layer; "": unknown

	device uint64 // the device with the layer
}

// copying is a tree that is being copied into a container.
type copying struct {
	key    protocol.SandboxKey
	device uint64
	bytes  atomic.Int64
	cancel context.CancelCauseFunc
}

const (
	checkPeriod   = 250 * time.Millisecond // the time between two checks of the free space
	measurePeriod = time.Second            // the time between two measurements of the sandboxes
	measureWithin = 2 * time.Second        // the time limit of one measurement
	recentWithin  = 15 * time.Second       // latestWriter compares sandboxes by data that changed within this time
)

// A writer is stopped if it would fill the remaining space within fillsWithin. If hardly any space remains, a writer is
// stopped if it writes faster than leastRate or leastInodes.
const (
	fillsWithin = time.Minute
	leastRate   = 64 << 10 // bytes a second
	leastInodes = 20       // inodes a second
)

// New returns a watch. It does nothing until Run is called.
func New(cfg Config) *Watch {
	limits := limits{low: cfg.Low, reserve: cfg.Reserve}
	reserve := newReserve(cfg.ReserveDir, limits.reserveOf)
	return &Watch{
		log: cfg.Logger, limits: limits, dirs: []string{cfg.WorkerDir, cfg.EngineDir},
		layers: filepath.Join(cfg.EngineDir, "overlay2"), reserve: reserve, unwatchedSince: reserve.lastMark(),
		onStop: cfg.OnStop, containers: map[int]container{}, copies: map[*copying]bool{}, free: map[uint64]int64{},
	}
}

// Track watches a sandbox's container, whose first process is pid, until that process ends. home is the sandbox's
// directory.
func (d *Watch) Track(k protocol.SandboxKey, pid int, home string) {
	if d == nil {
		return
	}
	c := container{key: k, home: home, pid: pid, group: diskuse.Group(pid), layer: diskuse.Layer(pid)}
	if c.layer != "" && !filepath.IsAbs(c.layer) {
		c.layer = filepath.Join(d.layers, c.layer)
	}
	if r, ok := readRoom(cmp.Or(c.layer, d.dirs[1])); ok {
		c.device = r.device
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.containers[pid] = c
}

// AllTracked tells the watch that Track has been called for all containers that ran before this worker started. Before
// that, the watch cannot tell which sandbox filled a disk while no worker ran.
func (d *Watch) AllTracked() { d.allKnown.Store(true) }

// Copy watches a copy into a container of a sandbox. The caller also writes the copied bytes to the returned counter,
// and calls done at the end. If the copy fills the disk, the returned context ends, and its cause is the error with
// which the sandbox fails.
func (d *Watch) Copy(ctx context.Context, k protocol.SandboxKey) (_ context.Context, counter io.Writer, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	c := &copying{key: k, cancel: cancel}
	if d == nil {
		return ctx, c, func() { cancel(nil) }
	}
	c.device = deviceOf(d.dirs[1])
	d.mu.Lock()
	defer d.mu.Unlock()
	d.copies[c] = true
	return ctx, c, func() {
		cancel(nil)
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.copies, c)
	}
}

// Write counts the copied bytes.
func (c *copying) Write(p []byte) (int, error) {
	c.bytes.Add(int64(len(p)))
	return len(p), nil
}

// Full returns why the host should take no new sandboxes, or "" if it may take them.
func (d *Watch) Full() string {
	if d == nil {
		return ""
	}
	if why := d.full.Load(); why != nil {
		return *why
	}
	return ""
}

// Fullest returns the free space and the size of the disk of which the smallest part is free, or zeros if that is
// unknown. The free space is rounded down to a hundredth of the disk.
func (d *Watch) Fullest() (free, size protocol.Bytes) {
	if d == nil {
		return 0, 0
	}
	r := d.fullest.Load()
	if r == nil || r.size < 100 {
		return 0, 0
	}
	return protocol.Bytes(r.free - r.free%(r.size/100)), protocol.Bytes(r.size)
}

// Run watches until ctx ends.
func (d *Watch) Run(ctx context.Context) {
	for {
		d.check(ctx, time.Now())
		select {
		case <-ctx.Done():
			return
		case <-time.After(checkPeriod):
		}
	}
}

// shortage describes the disk with the most urgent shortage of free space.
type shortage struct {
	room
	level  level
	inodes bool // the disk is short of inodes, and not of bytes
}

// check reads the free space of all disks. If a disk is short of space, check stops the sandbox that fills the disk.
func (d *Watch) check(ctx context.Context, now time.Time) {
	worst, free := d.readRooms(now)
	d.checkedAt, d.free = now, free
	d.setFull(worst)
	firstKnown := !d.unwatchedSince.IsZero() && d.allKnown.Load()
	if firstKnown {
		d.before = nil // without an earlier sample, chooseWriter chooses the sandbox that wrote last
		defer func() { d.unwatchedSince = time.Time{} }()
	}
	if d.unwatchedSince.IsZero() {
		d.reserve.mark(now)
	}
	if worst.level == enough {
		d.before, d.stoppedAny = nil, false
		return
	}
	mayWait := worst.level == near && d.before != nil || d.stoppedAny
	if mayWait && !firstKnown && now.Sub(d.sampledAt) < measurePeriod {
		return
	}
	taken := d.measure(ctx, free)
	w, found := d.chooseWriter(taken, worst)
	d.before, d.sampledAt = taken, time.Now()
	switch {
	case found:
		d.stop(w, worst)
		d.before, d.stoppedAny = nil, true
	case worst.level == critical:
		d.fullForNoSandbox(worst, now)
	}
}

// readRooms reads the free space of all disks. It takes the reserve if the worker's disk has enough free space. A
// released reserve does not count as free space: else a release could make a full disk count as not full.
func (d *Watch) readRooms(now time.Time) (worst shortage, free map[uint64]int64) {
	free = map[uint64]int64{}
	var fullest *room
	own := deviceOf(d.dirs[0])
	defer func() { d.fullest.Store(fullest) }()
	for i, dir := range d.dirs {
		r, ok := readRoom(dir)
		if !ok {
			continue
		}
		if r.device == own && !d.reserve.held {
			r.free = max(r.free-d.limits.reserveOf(r), 0)
		}
		if fullest == nil || float64(r.free)/float64(r.size) < float64(fullest.free)/float64(fullest.size) {
			fullest = &r
		}
		lost := int64(0)
		if was, known := d.free[r.device]; known {
			lost = int64(float64(was-r.free) / max(now.Sub(d.checkedAt).Seconds(), 0.01))
		}
		free[r.device] = r.free
		l, inodes := d.limits.level(r, lost)
		if l > worst.level {
			worst = shortage{r, l, inodes}
		}
		if i == 0 && l == enough && !d.reserve.held {
			if err := d.reserve.hold(r); err != nil {
				d.log.Warn("could not reserve space for the worker on the worker's disk; retrying", "error", err)
			}
		}
	}
	return worst, free
}

// setFull records whether one of the disks is low. While a disk is low, the host takes no new sandboxes.
func (d *Watch) setFull(s shortage) {
	if s.level < low {
		d.full.Store(nil)
		return
	}
	why := fmt.Sprintf("the disk of %s has %s of free space, less than worker.disk_low (%s)",
		s.dir, protocol.Bytes(s.free), protocol.Bytes(d.limits.lowOf(s.room)))
	if s.inodes {
		why = fmt.Sprintf("the disk of %s has only %d free inodes", s.dir, s.room.inodes)
	}
	d.full.Store(&why)
}

// fullForNoSandbox handles a disk that is full although no sandbox writes to the disk. It releases the worker's
// reserve, and warns the operator.
func (d *Watch) fullForNoSandbox(s shortage, now time.Time) {
	if s.device == deviceOf(d.dirs[0]) && d.reserve.held {
		d.releaseReserve()
	}
	if now.Sub(d.warnedAt) > time.Minute {
		d.warnedAt = now
		d.log.Warn("a disk of the host is full, and no sandbox is writing to the disk; free some space",
			"disk", s.dir, "free", protocol.Bytes(s.free), "inodes", s.room.inodes)
	}
}

// chooseWriter returns the sandbox to stop, and false if no sandbox should be stopped.
func (d *Watch) chooseWriter(now *sample, s shortage) (_ writer, found bool) {
	if s.level < low {
		return writer{}, false
	}
	limit := d.limits.lowOf(s.room)
	if d.before == nil {
		// The disk filled up between two checks, or before this worker started, so no rates are known. Stop a sandbox only
		// if it made large writes recently. Stop only one sandbox, because the other sandboxes may have written their data
		// long before.
		w := latestWriter(now, s.device)
		allKnown := d.unwatchedSince.IsZero() || d.allKnown.Load()
		return w, s.level == critical && !d.stoppedAny && !s.inodes && allKnown && w.rate >= float64(limit/4)
	}
	w := fastestWriter(d.before, now, s.device, s.inodes)
	least, left := float64(leastRate), s.free-limit/2
	if s.inodes {
		least, left = leastInodes, s.room.inodes-d.limits.lowInodesOf(s.room)/2
	}
	if s.level == low {
		least = max(least, float64(left)/fillsWithin.Seconds())
	}
	return w, w.rate >= least
}
