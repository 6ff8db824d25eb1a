package supervisor

import (
	"bytes"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// input is the stdin of an exec, as a pipe that stays open. It writes to the pipe without waiting. If the pipe is full,
// it holds one piece until the process reads; then a goroutine waits for room, which needs no thread. A nil input is
// the stdin of an exec without such a pipe.
type input struct {
	heldByAll *atomic.Int64 // bytes that all inputs of the supervisor hold

	mu      sync.Mutex
	pipe    *os.File        // nil: the process has not started, or nothing more is written
	raw     syscall.RawConn // the raw connection of the pipe
	taken   int64           // bytes written to the pipe
	closed  bool            // the end of the stdin was passed on
	over    *protocol.Error // why nothing more is written, if the end was not passed on or the exec has ended
	piece   *piece          // the piece that is being written
	waiting bool            // a goroutine waits for room in the pipe
	watcher answer
}

// piece is the part of an Input that is not written yet.
type piece struct {
	data   []byte
	eof    bool
	counts int64 // part of heldByAll
	answer answer
}

// answer answers an Input. It does not wait.
type answer func(*control.InputStatus, *protocol.Error)

var (
	errInputEnded = protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonExecTerminal,
		"the exec has ended, so it takes no more input")
	errBrokenPipe = protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonBrokenPipe,
		"no process of the exec has its stdin open any more")
	errInputClosed = protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonInputClosed,
		"the end of the exec's stdin was passed on, so it takes no more input")
)

func newInput(heldByAll *atomic.Int64) *input { return &input{heldByAll: heldByAll} }

// handleInput carries out an Input.
func (s *supervisor) handleInput(c *control.Input, reply func(control.Reply)) {
	answer := func(status *control.InputStatus, err *protocol.Error) {
		reply(control.Reply{Input: status, Error: err})
	}
	e := s.exec(c.ID)
	switch {
	case e == nil:
		answer(nil, unknownExec(c.ID))
	case e.input == nil:
		answer(nil, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonNoStdin,
			"exec %.80q was started without a stdin that stays open", c.ID))
	case len(c.Data) > control.MaxInput:
		answer(nil, &protocol.Error{Code: protocol.InvalidArgument, Reason: protocol.ReasonTooLarge, Field: "data",
			Message: "a piece of input is too large"})
	case c.Attach:
		e.input.attach(answer)
	case c.Watch:
		e.input.watch(answer)
	default:
		e.input.take(c, answer)
	}
}

// open begins to write to the pipe. The input takes over the pipe.
func (in *input) open(pipe *os.File) {
	raw, err := pipe.SyscallConn()
	if err != nil {
		panic("supervisor: " + err.Error()) // cannot happen: an open pipe has a raw connection
	}
	in.mu.Lock()
	in.pipe, in.raw = pipe, raw
	in.unlock(in.writeLocked())
}

// attach says how much was taken, and gives up the piece that waits.
func (in *input) attach(answer answer) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.giveUpLocked()
	if in.over != nil && !in.closed {
		answer(nil, in.over)
		return
	}
	answer(in.statusLocked(), nil)
}

// watch answers when nothing more can be written.
func (in *input) watch(answer answer) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.watcher != nil {
		in.watcher(in.statusLocked(), nil)
		in.watcher = nil
	}
	if in.over != nil {
		answer(nil, in.over)
		return
	}
	in.watcher = answer
}

// take writes a piece, except the bytes that were written before.
func (in *input) take(c *control.Input, answer answer) {
	in.mu.Lock()
	in.giveUpLocked()
	end := c.Offset + int64(len(c.Data))
	var refused *protocol.Error
	switch {
	case in.closed && c.Offset >= 0 && end <= in.taken: // everything was taken before
	case in.over != nil:
		refused = in.over
	case c.Offset < 0 || c.Offset > in.taken:
		refused = protocol.Errorf(protocol.OutOfRange, protocol.ReasonInputGap,
			"a piece of input begins at byte %d, but only %d bytes were taken before it", c.Offset, in.taken)
	case in.closed && end > in.taken:
		refused = errInputClosed
	}
	if refused != nil {
		answer(nil, refused)
		in.unlock(nil)
		return
	}
	p := &piece{eof: c.EOF && !in.closed && end >= in.taken, answer: answer}
	if end > in.taken {
		p.data = c.Data[in.taken-c.Offset:]
	}
	if len(p.data) == 0 && !p.eof {
		answer(in.statusLocked(), nil)
		in.unlock(nil)
		return
	}
	in.piece = p
	in.unlock(in.writeLocked())
}

func (in *input) statusLocked() *control.InputStatus {
	return &control.InputStatus{Taken: in.taken, Closed: in.closed}
}

// giveUpLocked answers the piece that waits, and drops it.
func (in *input) giveUpLocked() {
	if p := in.piece; p != nil {
		in.dropLocked()
		p.answer(in.statusLocked(), nil)
	}
}

func (in *input) dropLocked() {
	in.heldByAll.Add(-in.piece.counts)
	in.piece = nil
}

// unlock releases the lock, and closes a pipe to which nothing more is written. Closing waits for the goroutine that
// waits for room, and that goroutine needs the lock.
func (in *input) unlock(unused *os.File) {
	in.mu.Unlock()
	if unused != nil {
		unused.Close()
	}
}

// writeLocked writes as much of the piece as the pipe takes now. It returns the pipe if nothing more is written to it.
func (in *input) writeLocked() (unused *os.File) {
	if in.pipe == nil || in.piece == nil || in.waiting {
		in.holdLocked()
		return nil
	}
	var full bool
	if err := in.raw.Control(func(fd uintptr) { full, unused = in.fillLocked(int(fd)) }); err != nil {
		return nil // the pipe was closed, which needs the lock
	}
	if full {
		in.holdLocked()
		if in.piece != nil {
			in.waiting = true
			go in.waitForRoom(in.raw)
		}
	}
	return unused
}

// holdLocked counts the bytes of the piece. If the supervisor holds too many already, it keeps only the next byte: when
// the process reads, the answer says how much was taken, and the worker sends the rest again.
func (in *input) holdLocked() {
	p := in.piece
	if p == nil || p.counts > 0 {
		return
	}
	size := int64(len(p.data))
	if in.heldByAll.Add(size) > control.MaxHeldInput && size > 1 {
		in.heldByAll.Add(1 - size)
		p.data, p.eof, size = bytes.Clone(p.data[:1]), false, 1
	}
	p.counts = size
}

// fillLocked writes the piece to the pipe. full says that the pipe takes no more now.
func (in *input) fillLocked(fd int) (full bool, unused *os.File) {
	for p := in.piece; len(p.data) > 0; {
		n, err := unix.Write(fd, p.data)
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return true, nil
		case err != nil:
			return false, in.overLocked(errBrokenPipe)
		default:
			p.data = p.data[n:]
			in.taken += int64(n)
		}
	}
	p := in.piece
	in.dropLocked()
	if p.eof {
		in.closed = true
		unused, in.pipe = in.pipe, nil
	}
	p.answer(in.statusLocked(), nil)
	return false, unused
}

// waitForRoom writes the waiting pieces as the process reads, until no piece waits.
func (in *input) waitForRoom(raw syscall.RawConn) {
	var unused *os.File
	_ = raw.Write(func(fd uintptr) (done bool) { // an error means that the pipe was closed
		in.mu.Lock()
		defer in.mu.Unlock()
		var full bool
		if in.pipe != nil && in.piece != nil {
			full, unused = in.fillLocked(int(fd))
		}
		in.waiting = full
		return !full
	})
	if unused != nil {
		unused.Close()
	}
}

// overLocked ends the input early. It returns the pipe, to which nothing more is written.
func (in *input) overLocked(why *protocol.Error) (unused *os.File) {
	in.over = why
	unused, in.pipe = in.pipe, nil
	if p := in.piece; p != nil {
		in.dropLocked()
		p.answer(nil, why)
	}
	if in.watcher != nil {
		in.watcher(nil, why)
		in.watcher = nil
	}
	return unused
}

// end ends the input with its exec.
func (in *input) end(why *protocol.Error) {
	if in == nil {
		return
	}
	in.mu.Lock()
	in.unlock(in.overLocked(why))
}
