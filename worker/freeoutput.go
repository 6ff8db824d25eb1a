package worker

import (
	"os"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/worker/supervise"
)

// freeLeast is how much of an output file is given back to the disk at once, at least, and freePause how long
// a worker rests between two times: each is a write to the file system's journal, which the flushes of others
// on the same disk wait for.
const (
	freeLeast = 4 << 20
	freePause = 100 * time.Millisecond
)

// freeing is when a worker freed something last.
type freeing struct {
	mu sync.Mutex
	at time.Time
}

// may says whether it may free some more now.
func (f *freeing) may(now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.at) < freePause {
		return false
	}
	f.at = now
	return true
}

// outputStream is how far one stream of an exec has come.
type outputStream struct {
	published int64 // acknowledged
	ended     bool  // the file has no more, whatever was announced

	// What was acknowledged is freed on the disk when a server that is killed does not lose it any more.
	freed   int64 // on the disk: it reads as zeros, and is never published again
	settled int64 // was acknowledged keepOutput ago
	marked  int64 // was acknowledged at
	at      time.Time
	never   bool // this file system frees nothing
}

// goTo makes published what the log has. A log that has nothing at all, though it once had, gave that up,
// since it was too old or too much.
func (s *outputStream) goTo(published int64, nothing bool) {
	if nothing {
		published = max(published, s.settled)
	}
	published = max(published, s.freed)
	s.ended = s.ended && published >= s.published
	s.published = published
	s.settled, s.marked = min(s.settled, published), min(s.marked, published)
}

// settle notes the output that the log acknowledged long enough ago to be freed.
func (s *outputStream) settle(now time.Time, after time.Duration) {
	if now.Sub(s.at) >= after {
		s.settled, s.marked, s.at = s.marked, s.published, now
	}
	if after == 0 {
		s.settled = s.published
	}
}

// holds says whether something is on the disk that is in the log, too.
func (s *outputStream) holds() bool { return !s.never && s.published-s.freed >= freeLeast }

// free gives back to the disk what the log has of a stream. Where that fails the file stays as it is until
// its exec is forgotten.
func (p *publisher) free(f *os.File, s *outputStream) {
	after := p.settles
	if !p.r.s.w.conn.MayLoseOutput() {
		after = 0
	}
	now := time.Now()
	if s.settle(now, after); s.never || s.settled-s.freed < freeLeast || !p.r.s.w.freeing.may(now) {
		return
	}
	freed, err := supervise.FreeOutput(f, s.freed, s.settled)
	if err != nil {
		s.never = true
		p.r.s.log.Info("published output stays on the disk until its exec has ended", "exec", p.r.id, "error", err)
		return
	}
	s.freed = freed
}

// holds says whether published output is on the disk that may be freed later.
func (p *publisher) holds() bool { return p.out.holds() || p.err.holds() }

// freeLater frees the output of both streams that was published some time ago.
func (p *publisher) freeLater(run *os.Root) {
	p.eachFile(run, func(f *os.File, s *outputStream) {
		if s.holds() {
			p.free(f, s)
		}
	})
}

// learnFreed takes over what an earlier worker freed of the files.
func (p *publisher) learnFreed() {
	run, _, closeRun, err := p.r.runDir(p.a)
	if err != nil {
		return
	}
	defer closeRun()
	p.eachFile(run, func(f *os.File, s *outputStream) {
		freed, err := supervise.FreedOutput(f)
		if err != nil {
			p.r.s.log.Warn("what was freed of an output file is not known", "exec", p.r.id, "error", err)
		}
		s.freed = max(s.freed, freed)
	})
}

func (p *publisher) eachFile(run *os.Root, visit func(*os.File, *outputStream)) {
	for name, s := range map[string]*outputStream{jetstream.Stdout: &p.out, jetstream.Stderr: &p.err} {
		f, err := supervise.OpenOutput(run, p.r.id, name)
		if err != nil {
			continue // there is none
		}
		visit(f, s)
		f.Close()
	}
}
