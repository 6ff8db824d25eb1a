package disk

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/boxfleet/boxfleet/worker/diskuse"
)

// measure measures all sandboxes. Its time limit, measureWithin, may be too short for all of them, so it begins with
// the sandboxes that wrote the most since the previous sample.
func (d *Watch) measure(ctx context.Context, free map[uint64]int64) *sample {
	ctx, cancel := context.WithTimeout(ctx, measureWithin)
	defer cancel()
	taken := &sample{at: time.Now(), free: free, use: map[source]diskuse.Usage{}, written: map[source]int64{}}
	since := taken.at.Add(-recentWithin)
	if !d.unwatchedSince.IsZero() && d.unwatchedSince.Before(since) {
		since = d.unwatchedSince
	}
	containers := d.running()
	groups := map[string]bool{}
	for _, c := range containers {
		groups[c.group] = true
	}
	processes := diskuse.Processes(groups)
	for _, c := range containers {
		taken.written[c.source("processes")] = diskuse.Written(processes[c.group])
	}
	d.mu.Lock()
	for c := range d.copies {
		n := c.bytes.Load()
		usage := diskuse.Usage{Device: c.device, Bytes: n, Recent: n, Complete: true}
		taken.use[source{c.key, fmt.Sprintf("copy %p", c)}] = usage
	}
	d.mu.Unlock()
	for _, c := range mostWrittenFirst(containers, taken, d.before) {
		taken.use[c.source("deleted files")] = diskuse.Deleted(ctx, processes[c.group], c.device, since)
		taken.measureTree(ctx, c.source("layer"), c.layer, since)
		taken.measureTree(ctx, source{c.key, "home"}, c.home, since) // one directory for all containers of the sandbox
	}
	return taken
}

// measureTree measures a directory, unless this sample already has a measurement of the directory.
func (s *sample) measureTree(ctx context.Context, src source, dir string, since time.Time) {
	if _, known := s.use[src]; known || dir == "" || ctx.Err() != nil {
		return
	}
	if use, err := diskuse.Tree(ctx, dir, since); err == nil {
		s.use[src] = use
	}
}

func (c container) source(what string) source {
	return source{c.key, fmt.Sprintf("%s %d", what, c.pid)}
}

// running returns the tracked containers that still run, and forgets the tracked containers that have ended.
func (d *Watch) running() []container {
	d.mu.Lock()
	defer d.mu.Unlock()
	var running []container
	for pid, c := range d.containers {
		if c.group == "" || diskuse.Group(pid) != c.group {
			delete(d.containers, pid)
			continue
		}
		running = append(running, c)
	}
	return running
}

// mostWrittenFirst sorts containers by how much their processes wrote since the previous sample.
func mostWrittenFirst(containers []container, now, before *sample) []container {
	wrote := func(c container) int64 {
		n := now.written[c.source("processes")]
		if before != nil {
			n -= before.written[c.source("processes")]
		}
		return n
	}
	slices.SortFunc(containers, func(a, b container) int { return cmp.Compare(wrote(b), wrote(a)) })
	return containers
}
