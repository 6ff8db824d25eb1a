package output

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/worker/supervise"
)

// To free a part of a file, the file system writes to its journal, and each process that syncs a file on the same disk
// waits for this write. A worker therefore frees at least freeLeast bytes at a time, at most once per freePause.
const (
	freeLeast = 4 << 20
	freePause = 100 * time.Millisecond
)

// lastFree records when a worker last freed output.
type lastFree struct {
	mu sync.Mutex
	at time.Time
}

// mayFree reports whether the worker may free output now. If so, mayFree records this time as the time of the last
// free.
func (l *lastFree) mayFree(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.at) < freePause {
		return false
	}
	l.at = now
	return true
}

// freeing records how much of a stream's file was freed on disk. The worker frees output only when a crash of the
// server can no longer lose this output.
type freeing struct {
	freed  int64 // number of bytes freed at the start of the file: they read as zeros, and are never published again
	synced int64 // number of bytes at the start of the file that a crash of the server cannot lose
	marked int64 // the published offset at markedAt; becomes the value of synced later
	never  bool  // this file system cannot free parts of a file

	markedAt time.Time
}

// moveTo sets the published offset to the offset in the log. If the log is empty although it had a part of the output
// before, the log's limits on age or size have removed this output. The output is then not published again.
func (s *stream) moveTo(published int64, empty bool) {
	if empty {
		published = max(published, s.synced)
	}
	published = max(published, s.freed)
	s.ended = s.ended && published >= s.published
	s.published = published
	s.synced, s.marked = min(s.synced, published), min(s.marked, published)
}

// sync updates synced. Acknowledged output survives a crash of the server once this time has passed since the
// acknowledgement.
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

// free frees published output of a stream on disk. If that fails, the output stays on disk until the supervisor forgets
// the exec.
func (p *Exec) free(f *os.File, s *stream) {
	after := p.syncAfter
	if !p.host.conn.MayLoseOutput() {
		after = 0
	}
	now := time.Now()
	if s.sync(now, after); s.never || s.synced-s.freed < freeLeast || !p.host.freed.mayFree(now) {
		return
	}
	p.saveHashes()
	freed, err := supervise.FreeOutput(f, s.freed, s.synced)
	if err != nil {
		s.never = true
		p.cfg.Logger.Info("could not free published output on disk; the output file stays until the exec has ended",
			"exec", p.name, "error", err)
		return
	}
	s.freed = freed
}

// freeLater frees output that was published some time ago. Error: the error of ctx.
func (p *Exec) freeLater(ctx context.Context, run *os.Root) (err error) {
	p.eachFile(run, func(f *os.File, s *stream) {
		if err != nil || !s.mayFree() {
			return
		}
		if err = s.hashUpTo(ctx, f, s.published); err == nil {
			p.free(f, s)
		}
	})
	return err
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
			p.cfg.Logger.Warn("could not find out how much of an exec's output file an earlier worker freed on disk",
				"exec", p.name, "error", err)
		}
		s.freed = max(s.freed, freed)
	})
}

// eachFile calls visit for the files of both streams. It leaves out a file that cannot be opened.
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
