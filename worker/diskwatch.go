package worker

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/diskuse"
)

// diskWatch looks at the room on the host's disks, and stops the sandbox that would fill one.
//
//	much        nothing is measured
//	near low    what sandboxes have on the disk, once a second
//	low         the fastest writer is stopped, if it would fill the disk within a minute
//	half of it  sandboxes that write are stopped, the fastest first
//
// It works without the log and without the host's lock, and goes on while NATS is away, which may have
// stopped for want of the same room: it ends processes that it has seen to be a sandbox's, and nothing else. Why
// is kept beside the sandbox, and appended by its mailbox.
type diskWatch struct {
	log     *slog.Logger
	limits  diskLimits
	dirs    []string // of the worker and of the engine
	layers  string   // of containers, in the engine's directory
	reserve *diskReserve
	stopped func(key, *protocol.Error) // hears of a sandbox that was stopped

	mu         sync.Mutex
	containers map[int]diskContainer // by the process that each began with
	copies     map[*diskCopy]bool

	short atomic.Pointer[string] // why the host takes nothing now; nil: it does
	seen  atomic.Bool            // what runs on the host from before this worker is known

	// The watch's own.
	before  *diskSample
	looked  time.Time // when the room was read last
	free    map[uint64]int64
	sampled time.Time
	acted   bool      // somebody was stopped since there was room
	told    time.Time // when it was said last that nobody is to blame
	away    time.Time // since when no worker looked, until it was asked who wrote meanwhile; zero: it was
}

// diskContainer is a container that runs.
type diskContainer struct {
	key   key
	home  string // the sandbox's directory
	pid   int
	group string // of all its processes
	layer string

	device uint64 // of its layer
}

// diskCopy is a tree on its way into a container.
type diskCopy struct {
	key    key
	device uint64
	bytes  atomic.Int64
	cancel context.CancelCauseFunc
}

// How often disks are looked at, and sandboxes measured.
const (
	diskPeriod    = 250 * time.Millisecond
	measurePeriod = time.Second
	measureWithin = 2 * time.Second
	recentWithin  = 15 * time.Second
)

// A writer is to blame that fills what is left within fillsWithin, or, where nearly nothing is left, that
// writes more than leastRate bytes a second.
const (
	fillsWithin = time.Minute
	leastRate   = 64 << 10
	leastFiles  = 20 // the same of files
)

func newDiskWatch(w *worker) *diskWatch {
	limits := diskLimits{low: w.cfg.DiskLow, reserve: w.cfg.DiskReserve}
	reserve := newDiskReserve(w.dir, limits.reserveOf)
	return &diskWatch{
		log: w.log, limits: limits, dirs: []string{w.cfg.StateDir, w.info.RootDir}, layers: filepath.Join(w.info.RootDir, "overlay2"),
		reserve: reserve, away: reserve.lookedAt(), stopped: w.diskStopped,
		containers: map[int]diskContainer{}, copies: map[*diskCopy]bool{}, free: map[uint64]int64{},
	}
}

// track has a container of a sandbox watched from now on, until its process pid has ended.
func (d *diskWatch) track(k key, pid int, home string) {
	if d == nil {
		return
	}
	c := diskContainer{key: k, home: home, pid: pid, group: diskuse.Group(pid), layer: diskuse.Layer(pid)}
	if c.layer != "" && !filepath.IsAbs(c.layer) {
		c.layer = filepath.Join(d.layers, c.layer)
	}
	if room, known := readRoom(cmp.Or(c.layer, d.dirs[1])); known {
		c.device = room.device
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.containers[pid] = c
}

// copying counts what is copied into a container of a sandbox, and ends it where that fills the disk. The
// caller calls done.
func (d *diskWatch) copying(ctx context.Context, k key) (_ context.Context, count *diskCopy, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	c := &diskCopy{key: k, cancel: cancel}
	if d == nil {
		return ctx, c, func() { cancel(nil) }
	}
	if room, known := readRoom(d.dirs[1]); known {
		c.device = room.device
	}
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

// Write counts what is copied.
func (c *diskCopy) Write(p []byte) (int, error) {
	c.bytes.Add(int64(len(p)))
	return len(p), nil
}

// full says why the host should take no new sandboxes, "" while it should.
func (d *diskWatch) full() string {
	if d == nil {
		return ""
	}
	if why := d.short.Load(); why != nil {
		return *why
	}
	return ""
}

// run watches until ctx ends.
func (d *diskWatch) run(ctx context.Context) {
	for {
		d.look(ctx, time.Now())
		if !sleep(ctx, diskPeriod) {
			return
		}
	}
}

// look looks at all disks once.
func (d *diskWatch) look(ctx context.Context, now time.Time) {
	worst, level, inodes := diskRoom{}, diskCalm, false
	free := map[uint64]int64{}
	for i, dir := range d.dirs {
		room, known := readRoom(dir)
		if !known {
			continue
		}
		lost := int64(0)
		if was, looked := d.free[room.device]; looked {
			lost = int64(float64(was-room.free) / max(now.Sub(d.looked).Seconds(), 0.01))
		}
		free[room.device] = room.free
		l, byInodes := d.limits.level(room, lost)
		if l > level {
			worst, level, inodes = room, l, byInodes
		}
		if i == 0 && l == diskCalm && !d.reserve.held {
			if err := d.reserve.hold(room); err != nil {
				d.log.Warn("no room is held back on the worker's disk", "error", err)
			}
		}
	}
	d.looked, d.free = now, free
	d.say(worst, level, inodes)
	back := !d.away.IsZero() && d.seen.Load()
	if back {
		d.before = nil // it is asked once who wrote while no worker looked
		defer func() { d.away = time.Time{} }()
	}
	if d.away.IsZero() {
		d.reserve.look(now)
	}
	if level == diskCalm {
		d.before, d.acted = nil, false
		return
	}
	if now.Sub(d.sampled) < measurePeriod && (level == diskNear && d.before != nil || d.acted) && !back {
		return
	}
	sample := d.measure(ctx, free)
	writer, blamed := d.blame(sample, worst, level, inodes)
	d.before, d.sampled = sample, time.Now()
	switch {
	case blamed:
		d.stop(writer, worst, inodes)
		d.before, d.acted = nil, true
	case level == diskDire:
		if worst.device == deviceOf(d.dirs[0]) && d.reserve.held {
			d.release()
		}
		if now.Sub(d.told) > time.Minute {
			d.told = now
			d.log.Warn("a disk is full, and no sandbox writes to it now: make room on it", "disk", worst.dir, "free", protocol.Bytes(worst.free), "inodes", worst.inodes)
		}
	}
}

// say keeps new sandboxes away from a host whose disk is low.
func (d *diskWatch) say(room diskRoom, level diskLevel, inodes bool) {
	if level < diskLow {
		d.short.Store(nil)
		return
	}
	why := fmt.Sprintf("the disk of %s has %s left, and worker.disk_low is %s", room.dir, protocol.Bytes(room.free), protocol.Bytes(d.limits.lowOf(room)))
	if inodes {
		why = fmt.Sprintf("the disk of %s has %d inodes left", room.dir, room.inodes)
	}
	d.short.Store(&why)
}

// blame says which sandbox is to be stopped, if any.
func (d *diskWatch) blame(sample *diskSample, room diskRoom, level diskLevel, inodes bool) (diskWriter, bool) {
	if level < diskLow {
		return diskWriter{}, false
	}
	if d.before == nil {
		// It was filled between two looks, or while no worker looked. Later, who was not stopped has a right to what it wrote before.
		writer := latestWriter(sample, room.device)
		return writer, level == diskDire && !d.acted && !inodes && (d.away.IsZero() || d.seen.Load()) && writer.rate >= float64(d.limits.lowOf(room)/4)
	}
	writer := fastestWriter(d.before, sample, room.device, inodes)
	least, left := float64(leastRate), room.free-d.limits.lowOf(room)/2
	if inodes {
		least, left = leastFiles, room.inodes-d.limits.lowInodesOf(room)/2
	}
	if level == diskLow {
		least = max(least, float64(left)/fillsWithin.Seconds())
	}
	return writer, writer.rate >= least
}

// measure measures every sandbox, those first that wrote the most since the sample before: there may be more
// than time for it.
func (d *diskWatch) measure(ctx context.Context, free map[uint64]int64) *diskSample {
	ctx, cancel := context.WithTimeout(ctx, measureWithin)
	defer cancel()
	sample := &diskSample{at: time.Now(), free: free, use: map[diskSource]diskuse.Usage{}, written: map[diskSource]int64{}}
	since := sample.at.Add(-recentWithin)
	if !d.away.IsZero() && d.away.Before(since) {
		since = d.away
	}
	containers := d.running()
	groups := map[string]bool{}
	for _, c := range containers {
		groups[c.group] = true
	}
	processes := diskuse.Processes(groups)
	for _, c := range containers {
		sample.written[c.source("processes")] = diskuse.Written(processes[c.group])
	}
	d.mu.Lock()
	for c := range d.copies {
		n := c.bytes.Load()
		sample.use[diskSource{c.key, fmt.Sprintf("copy %p", c)}] = diskuse.Usage{Device: c.device, Bytes: n, Recent: n, Whole: true}
	}
	d.mu.Unlock()
	for _, c := range byWriting(containers, sample, d.before) {
		sample.use[c.source("removed files")] = diskuse.Unnamed(ctx, processes[c.group], c.device, since)
		for what, dir := range map[string]string{"layer": c.layer, "home": c.home} {
			source := c.source(what)
			if what == "home" { // one for all containers of a sandbox
				source = diskSource{c.key, what}
			}
			if _, known := sample.use[source]; known || dir == "" || ctx.Err() != nil {
				continue
			}
			if use, err := diskuse.Tree(ctx, dir, since); err == nil {
				sample.use[source] = use
			}
		}
	}
	return sample
}

func (c diskContainer) source(what string) diskSource {
	return diskSource{c.key, fmt.Sprintf("%s %d", what, c.pid)}
}
