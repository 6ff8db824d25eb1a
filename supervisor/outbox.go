package supervisor

import (
	"io"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/supervisor/control"
)

const (
	writeSize  = 64 << 10 // number of bytes that are collected for one write
	inlineRoom = 4 << 20  // maximum size of waiting inline output; further results are sent without their output
	repliesMax = 4096     // number of waiting entries above which no more commands are read
)

// outbox is the queue of messages to be sent on one connection. Its size is limited even if the worker does not read:
// the outbox has at most one Output and one Result of each exec, and no more commands are read while too many entries
// wait.
type outbox struct {
	mu      sync.Mutex
	changed sync.Cond // signals that entries, due or closed has changed
	entries []entry
	due     bool           // the entries should be written now
	soon    bool           // a timer runs that will make the entries due
	outputs map[*exec]bool // execs with an Output among the entries
	inline  int            // size of the waiting inline output
	closed  bool
}

// replySoon is how long a reply that is not urgent waits for another entry. A short command ends within this time, and
// its result is sent in the same write as the reply. That saves a write, and wakes up the worker once instead of twice.
const replySoon = 2 * time.Millisecond

// entry is a notice, an exec with output sizes to send, or a channel that is closed when all earlier entries are
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

// putSoon adds a notice that may wait up to replySoon before it is sent.
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

// flush waits until all entries are written, but not longer than the given time.
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

// waitForRoom waits until at most repliesMax entries wait to be written, or the outbox is closed. While the worker does
// not read, no entry is written.
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

// take waits until entries are due, and removes and returns all entries. It returns no entries if the outbox is closed
// and empty.
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

// write writes the entries to w until the outbox is closed. Entries that wait at the same time are written together.
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

// appendOutput appends a notice with the current sizes of an exec's output. It appends nothing for an ended exec,
// because the result has the sizes.
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
