package supervisor

import (
	"io"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/supervisor/control"
)

const (
	writeSize  = 64 << 10 // bytes collected for one write
	inlineRoom = 4 << 20  // output waiting in an outbox; further results are sent without theirs
	repliesMax = 4096     // entries waiting at which no more commands are read
)

// outbox holds what is to be sent on one connection, in order. Its size is limited even if the worker does not read: an
// exec has at most one Output and one Result in it, and no more commands are read while too many replies wait.
type outbox struct {
	mu      sync.Mutex
	changed sync.Cond // due, closed
	entries []entry
	due     bool           // entries are to be written now
	soon    bool           // entries are to be written soon: a timer runs
	outputs map[*exec]bool // execs with a waiting Output
	inline  int
	closed  bool
}

// replySoon is how long a reply that is not urgent waits for something else to be sent. A short command ends within
// this time, and its result takes the reply along: that saves a write here, and a wake-up of the worker, for each exec.
const replySoon = 2 * time.Millisecond

// entry is a notice, an exec whose output sizes are to be sent, or a mark that is closed once everything before it is
// written.
type entry struct {
	notice  *control.Notice
	exec    *exec
	written chan struct{}
}

func newOutbox() *outbox {
	b := &outbox{outputs: map[*exec]bool{}}
	b.changed.L = &b.mu
	return b
}

func (b *outbox) put(n *control.Notice) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r := n.Result; r != nil && r.Inline {
		size := len(r.Stdout) + len(r.Stderr)
		if b.inline+size > inlineRoom {
			bare := r.WithoutOutput()
			n = &control.Notice{Result: &bare}
		} else {
			b.inline += size
		}
	}
	b.add(entry{notice: n})
}

// putSoon adds a notice that may wait for replySoon.
func (b *outbox) putSoon(n *control.Notice) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	b.entries = append(b.entries, entry{notice: n})
	if b.due || b.soon {
		return
	}
	b.soon = true
	time.AfterFunc(replySoon, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.soon = false
		if len(b.entries) > 0 {
			b.due = true
			b.changed.Broadcast()
		}
	})
}

func (b *outbox) putOutput(e *exec) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.outputs[e] {
		b.outputs[e] = true
		b.add(entry{exec: e})
	}
}

func (b *outbox) add(e entry) {
	if b.closed {
		return
	}
	b.entries = append(b.entries, e)
	b.due = true
	b.changed.Broadcast()
}

// flush waits until everything is written, but not longer than bound.
func (b *outbox) flush(bound time.Duration) {
	mark := entry{written: make(chan struct{})}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return
	}
	b.add(mark)
	b.mu.Unlock()
	select {
	case <-mark.written:
	case <-time.After(bound):
	}
}

// waitForRoom waits until the worker has read enough that more of its commands may be read.
func (b *outbox) waitForRoom() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.entries) > repliesMax && !b.closed {
		b.changed.Wait()
	}
}

func (b *outbox) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.changed.Broadcast()
}

// take waits until entries are due and returns all of them; none if the outbox is closed.
func (b *outbox) take() []entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	for !b.due && !b.closed {
		b.changed.Wait()
	}
	taken := b.entries
	b.entries, b.inline, b.due = nil, 0, false
	clear(b.outputs)
	b.changed.Broadcast()
	return taken
}

// write writes entries as they come, those that wait together in one write, until the outbox is closed.
func (b *outbox) write(w io.Writer) error {
	var buf []byte
	flush := func() error {
		_, err := w.Write(buf)
		buf = buf[:0]
		return err
	}
	for {
		entries := b.take()
		if len(entries) == 0 {
			return nil
		}
		var written []chan struct{}
		for _, e := range entries {
			switch {
			case e.notice != nil:
				buf = control.Append(buf, e.notice)
			case e.exec != nil:
				buf = appendOutput(buf, e.exec)
			default:
				written = append(written, e.written)
			}
			if len(buf) >= writeSize {
				if err := flush(); err != nil {
					return err
				}
			}
		}
		if err := flush(); err != nil {
			return err
		}
		if cap(buf) > 2*writeSize {
			buf = nil
		}
		for _, w := range written {
			close(w)
		}
	}
}

// appendOutput appends an exec's current sizes, unless its result has them.
func appendOutput(buf []byte, e *exec) []byte {
	status, begun := e.status()
	if !begun || status.Result != nil {
		return buf
	}
	return control.Append(
		buf,
		&control.Notice{Output: &control.Output{ID: e.id, Stdout: status.StdoutBytes, Stderr: status.StderrBytes}},
	)
}
