package output

import (
	"os"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/worker/supervise"
)

// Freeing writes to the file system's journal, and everybody who syncs a file on the same disk waits for that. So a
// worker frees at least freeLeast bytes of a file at a time, and rests for freePause between two times.
const (
	freeLeast = 4 << 20
	freePause = 100 * time.Millisecond
)

// lastFree is when a worker last freed something.
type lastFree struct {
	mu sync.Mutex
	at time.Time
}

// mayFree reports whether the worker may free something now.
func (l *lastFree) mayFree(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.at) < freePause {
		return false
	}
	l.at = now
	return true
}

// freeing is how much of a stream's file was freed on disk. Only what a crash of the server cannot lose is freed.
type freeing struct {
	freed  int64 // this much was freed: it reads as zeros, and is never published again
	synced int64 // the log has this much for good
	marked int64 // the published offset at markedAt; it becomes synced after a while
	never  bool  // this file system cannot free parts of a file

	markedAt time.Time
}

// moveTo sets the published offset to the log's. If the log is empty but had some of the output before, it has dropped
// that output as too old or too much, and the output is not published again.
func (s *stream) moveTo(published int64, empty bool) {
	if empty {
		published = max(published, s.synced)
	}
	published = max(published, s.freed)
	s.ended = s.ended && published >= s.published
	s.published = published
	s.synced, s.marked = min(s.synced, published), min(s.marked, published)
}

// sync updates how much output the log has for good: the output that it acknowledged longer ago than this duration.
func (s *stream) sync(now time.Time, after time.Duration) {
	if now.Sub(s.markedAt) >= after {
		s.synced, s.marked, s.markedAt = s.marked, s.published, now
	}
	if after == 0 {
		s.synced = s.published
	}
}

// mayFree reports whether the file has published output that may be freed now or later.
func (s *stream) mayFree() bool { return !s.never && s.published-s.freed >= freeLeast }

func (p *Exec) mayFree() bool { return p.streams[0].mayFree() || p.streams[1].mayFree() }

// free frees, on disk, what the log has of a stream. If that fails, the file stays as it is until its exec is
// forgotten.
func (p *Exec) free(f *os.File, s *stream) {
	after := p.syncAfter
	if !p.host.conn.MayLoseOutput() {
		after = 0
	}
	now := time.Now()
	if s.sync(now, after); s.never || s.synced-s.freed < freeLeast || !p.host.freed.mayFree(now) {
		return
	}
	freed, err := supervise.FreeOutput(f, s.freed, s.synced)
	if err != nil {
		s.never = true
		p.cfg.Logger.Info("cannot free published output; it stays on disk for now", "exec", p.name, "error", err)
		return
	}
	s.freed = freed
}

// freeLater frees what was published some time ago.
func (p *Exec) freeLater(run *os.Root) {
	p.eachFile(run, func(f *os.File, s *stream) {
		if s.mayFree() {
			p.free(f, s)
		}
	})
}

// readFreed reads from the files how much an earlier worker freed.
func (p *Exec) readFreed() {
	run, done, err := p.cfg.Sandbox.RunDir()
	if err != nil {
		return
	}
	defer done()
	p.eachFile(run, func(f *os.File, s *stream) {
		freed, err := supervise.FreedOutput(f)
		if err != nil {
			p.cfg.Logger.Warn("could not tell how much of an output file was freed", "exec", p.name, "error", err)
		}
		s.freed = max(s.freed, freed)
	})
}

// eachFile visits the files of both streams that exist.
func (p *Exec) eachFile(run *os.Root, visit func(*os.File, *stream)) {
	for i, name := range names {
		f, err := supervise.OpenOutput(run, p.name, name)
		if err != nil {
			continue
		}
		visit(f, &p.streams[i])
		f.Close()
	}
}
