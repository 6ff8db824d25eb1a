package sdk

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/stream"
)

// stdinWindow limits the bytes that a writer keeps until the exec has taken them.
const stdinWindow = 256 << 10

// Stdin returns a writer to the stdin of an exec that was started with [ExecSpec].OpenStdin, no matter who started it.
// It continues where the last writer stopped; that writer's calls fail from then on. It waits until the exec has
// started.
//
// Write returns when the writer has kept the bytes. It blocks while the writer keeps 256 KiB that the command has not
// taken. Close passes on the end of the stdin: it returns when the command's pipe has taken everything. The writer
// survives interruptions of NATS and restarts of the worker without losing or repeating a byte.
//
// When ctx ends, the writer is detached, and the stdin stays open for another one.
//
// Errors, also of Write and Close: not_found; failed_precondition with reason exec_already_terminal, broken_pipe if no
// process of the exec has its stdin open any more, no_stdin, input_closed or unsupported; cancelled with reason
// input_taken_over if a newer writer took over; permission_denied; cancelled or deadline_exceeded when ctx ends.
func (x *Exec) Stdin(ctx context.Context) (io.WriteCloser, error) {
	w, err := x.attachStdin(ctx)
	if err != nil {
		return nil, err
	}
	return w, nil
}

func (x *Exec) attachStdin(ctx context.Context) (*stdinWriter, error) {
	w := newStdinWriter(x)
	w.ctx, w.detach = context.WithCancel(ctx)
	conn, state, err := w.openStream()
	if err != nil {
		w.detach()
		return nil, failed(ctx, err, "write to exec "+x.ID())
	}
	w.base, w.sent, w.eofTaken = state.Taken, state.Taken, state.Closed
	go w.run(conn)
	return w, nil
}

// stdinWriter keeps the bytes that the exec has not taken, and sends them over one stream after another.
type stdinWriter struct {
	exec   *Exec
	ctx    context.Context
	detach context.CancelFunc
	ended  chan struct{} // closed when the writer has ended

	mu       sync.Mutex
	changed  sync.Cond
	kept     []byte // bytes from base on
	base     int64  // number of bytes that the exec has taken
	sent     int64  // number of bytes sent over the present stream
	eof      bool   // Close was called
	eofSent  bool   // the end was sent over the present stream
	eofTaken bool
	lost     bool  // the present stream has ended
	err      error // why the writer has ended early
}

func newStdinWriter(x *Exec) *stdinWriter {
	w := &stdinWriter{exec: x, ended: make(chan struct{})}
	w.changed.L = &w.mu
	return w
}

// openStream opens a stream. It returns how much the exec has taken.
func (w *stdinWriter) openStream() (*stream.Conn, *protocol.StdinState, error) {
	r := protocol.StreamStdin{Exec: w.exec.ID(), Offset: w.base}
	ask := opening{repeats: true, open: protocol.StreamOpen{Kind: protocol.StreamKindStdin, Request: protocol.Encode(&r)}}
	conn, reply, err := ask.do(w.ctx, w.exec.sandbox)
	if err != nil {
		return nil, nil, err
	}
	if conn == nil {
		return nil, nil, protocol.Errorf(protocol.Internal, "", "the worker opened no stream")
	}
	state := &protocol.StdinState{}
	if err := protocol.Decode(reply.Result, state); err != nil {
		conn.Reset(err)
		return nil, nil, err
	}
	return conn, state, nil
}

// Write implements [io.Writer].
func (w *stdinWriter) Write(data []byte) (written int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		switch {
		case w.err != nil:
			return written, w.err
		case w.eof || w.eofTaken:
			return written, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonInputClosed, "the stdin is closed")
		}
		n := min(len(data)-written, stdinWindow-len(w.kept))
		w.kept = append(w.kept, data[written:written+n]...)
		written += n
		w.changed.Broadcast()
		if written == len(data) {
			return written, nil
		}
		w.changed.Wait()
	}
}

// Close implements [io.Closer].
func (w *stdinWriter) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.eof = true
	w.changed.Broadcast()
	for w.err == nil && !w.eofTaken {
		w.changed.Wait()
	}
	if w.eofTaken {
		return nil
	}
	return w.err
}

// run sends the input over one stream after another. It returns when the end of the input was passed on, or when the
// exec takes no more.
func (w *stdinWriter) run(conn *stream.Conn) {
	defer close(w.ended)
	defer w.detach()
	defer context.AfterFunc(w.ctx, func() { w.end(ctxEnded(w.ctx.Err(), "write to exec "+w.exec.ID())) })()
	defer context.AfterFunc(w.exec.client.ctx, w.detach)()
	for {
		err := w.use(conn)
		if w.hasEnded() {
			return
		}
		if err != nil && !mayReopen(err) {
			w.end(err)
			return
		}
		if conn = w.reopen(); conn == nil {
			return
		}
	}
}

// mayReopen reports whether another stream may continue after an error.
func mayReopen(err error) bool {
	switch protocol.CodeOf(err) {
	case protocol.Unavailable, protocol.DeadlineExceeded, protocol.ResourceExhausted:
		return true
	}
	reason := protocol.AsError(err).Reason
	return reason == protocol.ReasonStreamClosed || reason == protocol.ReasonNotHere || reason == protocol.ReasonLeaseLost
}

// reopen opens the next stream, and continues at the byte that the exec expects.
func (w *stdinWriter) reopen() *stream.Conn {
	for {
		conn, state, err := w.openStream()
		if err == nil {
			err = w.continueAt(state)
			if err == nil {
				return conn
			}
			conn.Reset(err)
		}
		if !mayReopen(err) {
			w.end(err)
			return nil
		}
		if !backoff.Sleep(w.ctx, retryPause) {
			return nil
		}
	}
}

func (w *stdinWriter) continueAt(state *protocol.StdinState) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if state.Taken > w.base+int64(len(w.kept)) {
		return protocol.Errorf(protocol.Cancelled, protocol.ReasonInputTakenOver,
			"another writer has written to the exec's stdin")
	}
	w.takenLocked(state.Taken)
	w.sent, w.eofSent, w.lost = w.base, false, false
	if state.Closed {
		w.eofTaken = true
	}
	w.changed.Broadcast()
	return nil
}

func (w *stdinWriter) takenLocked(taken int64) {
	if taken > w.base && taken <= w.base+int64(len(w.kept)) {
		w.kept = w.kept[:copy(w.kept, w.kept[taken-w.base:])]
		w.base = taken
	}
}

func (w *stdinWriter) end(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil && !w.eofTaken {
		w.err = err
	}
	w.changed.Broadcast()
}

func (w *stdinWriter) hasEnded() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err != nil || w.eofTaken
}

// use sends over a stream until it or the writer ends.
func (w *stdinWriter) use(conn *stream.Conn) error {
	stop := context.AfterFunc(w.ctx, func() { conn.Reset(nil) })
	defer stop()
	var receiving sync.WaitGroup
	var ended error
	receiving.Go(func() {
		ended = w.receive(conn)
		w.mu.Lock()
		w.lost = true
		w.changed.Broadcast()
		w.mu.Unlock()
	})
	w.send(conn)
	receiving.Wait()
	if w.hasEnded() && ended == nil {
		_ = conn.Close() // returns no error
	} else {
		conn.Reset(nil)
	}
	return ended
}

// send sends the written bytes, until the stream or the writer ends.
func (w *stdinWriter) send(conn *stream.Conn) {
	buffer := make([]byte, protocol.StreamFrame)
	for {
		n, eof, ok := w.next(buffer)
		if !ok {
			return
		}
		var err error
		if eof {
			err = conn.CloseWrite()
		} else {
			_, err = conn.Write(buffer[:n])
		}
		if err != nil {
			return
		}
	}
}

// next waits for bytes to send, or the end. ok is false if the stream or the writer has ended.
func (w *stdinWriter) next(buffer []byte) (n int, eof, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		if w.lost || w.err != nil || w.eofTaken {
			return 0, false, false
		}
		if n := copy(buffer, w.kept[max(0, w.sent-w.base):]); n > 0 {
			w.sent += int64(n)
			return n, false, true
		}
		if w.eof && !w.eofSent {
			w.eofSent = true
			return 0, true, true
		}
		w.changed.Wait()
	}
}

// receive reads how much the exec has taken.
func (w *stdinWriter) receive(conn *stream.Conn) error {
	var number [protocol.StdinTakenSize]byte
	for {
		_, err := io.ReadFull(conn, number[:])
		w.mu.Lock()
		switch {
		case err == io.EOF && w.eofSent:
			w.eofTaken, err = true, nil
			w.changed.Broadcast()
			w.mu.Unlock()
			return nil
		case err != nil:
			w.mu.Unlock()
			if err == io.EOF || err == io.ErrUnexpectedEOF {
				return protocol.Errorf(protocol.Unavailable, protocol.ReasonStreamLost, "the worker closed the stream")
			}
			return err
		}
		w.takenLocked(int64(binary.BigEndian.Uint64(number[:])))
		w.changed.Broadcast()
		w.mu.Unlock()
	}
}

// inlineStdin reports whether a reader is a buffer or a file that is small enough to travel with the request.
func inlineStdin(r io.Reader) bool {
	switch b := r.(type) {
	case *bytes.Buffer:
		return b.Len() <= protocol.MaxStdin
	case *bytes.Reader:
		return b.Len() <= protocol.MaxStdin
	case *strings.Reader:
		return b.Len() <= protocol.MaxStdin
	case *os.File:
		info, err := b.Stat()
		return err == nil && info.Mode().IsRegular() && info.Size() <= protocol.MaxStdin
	}
	return false
}

// takeStdin puts the input into the spec if it is small, and otherwise says that stdin stays open. It returns the
// reader to copy, or nil.
func takeStdin(r io.Reader, spec *ExecSpec) (io.Reader, error) {
	switch {
	case r == nil:
		return nil, nil
	case len(spec.Stdin) > 0:
		return nil, protocol.Invalid("spec.stdin", "must not be set together with WithStdin")
	case inlineStdin(r) && !spec.OpenStdin:
		data, err := io.ReadAll(r)
		if err != nil {
			return nil, &typedError{protocol.Errorf(protocol.Cancelled, "", "read stdin: %v", err), err}
		}
		spec.Stdin = data
		return nil, nil
	}
	spec.OpenStdin = true
	return r, nil
}

// CopyStdin copies a reader to the stdin of an exec, as [Exec.Stdin] does, and passes on the end of the reader. It
// returns without an error when the exec takes no more input, unless the exec took none from the start. If that happens
// during a Read, or ctx ends then, a goroutine stays until the reader returns. An error of the reader is returned after
// the end of the stdin was passed on.
//
// Errors: those of [Exec.Stdin] and of the reader.
func (x *Exec) CopyStdin(ctx context.Context, r io.Reader) error {
	w, err := x.attachStdin(ctx)
	if err != nil {
		return err
	}
	return w.copyFrom(r)
}

func (w *stdinWriter) copyFrom(r io.Reader) error {
	defer w.detach()
	copied := make(chan error, 1)
	go func() {
		_, err := io.Copy(struct{ io.Writer }{w}, r)
		copied <- errors.Join(err, w.Close())
	}()
	select {
	case err := <-copied:
		return stdinError(err)
	case <-w.ended:
		w.mu.Lock()
		defer w.mu.Unlock()
		return stdinError(w.err)
	}
}

// copyStdin is CopyStdin for an exec whose request may not be decided yet.
func (x *Exec) copyStdin(ctx context.Context, r io.Reader) error {
	for {
		w, err := x.attachStdin(ctx)
		if err == nil {
			return w.copyFrom(r)
		}
		if protocol.CodeOf(err) != protocol.NotFound && !mayReopen(err) || !backoff.Sleep(ctx, retryPause) {
			return stdinError(err)
		}
	}
}

// stdinError returns nil for an error that says that the command took no more input.
func stdinError(err error) error {
	var e *Error
	if errors.As(err, &e) {
		switch e.Reason {
		case protocol.ReasonExecTerminal, protocol.ReasonBrokenPipe:
			return nil
		}
	}
	return err
}
