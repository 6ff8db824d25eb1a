package streams

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/stream"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/attach"
)

const (
	execPeriod = 5 * time.Millisecond  // pause between two checks whether the exec has started
	inputPause = 50 * time.Millisecond // pause after a piece of which the supervisor took nothing
)

// stdin writes a stream to the stdin of an exec.
func stdin(ctx context.Context, c *Call) (*jetstream.StreamAnswer, error) {
	var r protocol.StreamStdin
	if err := protocol.DecodeStrict(protocol.ContentMsgpack, c.Open.Request, &r); err != nil {
		return nil, err
	}
	if err := r.Validate(); err != nil {
		return nil, err
	}
	if err := notBulk(c); err != nil {
		return nil, err
	}
	a, err := c.startedExec(ctx, r.Exec)
	if err != nil {
		return nil, err
	}
	w := &inputWriter{call: c, container: a, exec: r.Exec, ended: make(chan struct{})}
	w.open, w.stop = context.WithCancelCause(context.Background())
	if err := c.server.inputs.takeOver(ctx, w); err != nil {
		return nil, err
	}
	c.AtEnd(w.end)
	status, err := w.attach(ctx)
	if err != nil {
		return nil, err
	}
	if status.Taken < r.Offset {
		return nil, protocol.Errorf(protocol.OutOfRange, protocol.ReasonInputGap,
			"the client begins at byte %d, but the exec has taken only %d bytes", r.Offset, status.Taken)
	}
	w.status = status
	return &jetstream.StreamAnswer{
		Result: protocol.Encode(&protocol.StdinState{Taken: status.Taken, Closed: status.Closed}), Serve: w.serve,
	}, nil
}

// startedExec waits until an exec has started, and returns its container.
func (c *Call) startedExec(ctx context.Context, id string) (*attach.Attachment, error) {
	for {
		service, started, err := c.sandbox.ExecInput(ctx, id)
		if err != nil {
			return nil, err
		}
		if started {
			return c.Container(ctx, service)
		}
		if !backoff.Sleep(ctx, execPeriod) {
			return nil, ctx.Err()
		}
	}
}

// inputs holds the writer to the stdin of each exec. An exec has at most one writer.
type inputs struct {
	mu     sync.Mutex
	byExec map[inputKey]*inputWriter
}

type inputKey struct {
	sandbox protocol.SandboxKey
	exec    string
}

func newInputs() *inputs { return &inputs{byExec: map[inputKey]*inputWriter{}} }

// takeOver makes w the writer of its exec, after the earlier writer has ended.
func (i *inputs) takeOver(ctx context.Context, w *inputWriter) error {
	i.mu.Lock()
	earlier := i.byExec[w.key()]
	i.byExec[w.key()] = w
	i.mu.Unlock()
	if earlier == nil {
		return nil
	}
	earlier.stop(errTakenOver)
	select {
	case <-earlier.ended:
		return nil
	case <-ctx.Done():
		go func() { // a third writer must wait for the first one, too
			<-earlier.ended
			w.end()
		}()
		return ctx.Err()
	}
}

var errTakenOver = protocol.Errorf(protocol.Cancelled, protocol.ReasonInputTakenOver,
	"a newer writer writes to the exec's stdin")

// inputWriter writes one stream to the stdin of an exec.
type inputWriter struct {
	call      *Call
	container *attach.Attachment
	exec      string
	open      context.Context // ends with its cause when a newer writer takes over
	stop      context.CancelCauseFunc
	status    control.InputStatus
	once      sync.Once
	ended     chan struct{}

	// ending is true once the client has sent everything. From then on, only the answers to the last pieces say whether
	// the exec took them. The end of the exec is then no error, because an exec usually ends when its input does.
	ending atomic.Bool
}

func (w *inputWriter) key() inputKey { return inputKey{w.call.Key, w.exec} }

func (w *inputWriter) end() {
	w.once.Do(func() {
		w.stop(nil)
		i := w.call.server.inputs
		i.mu.Lock()
		if i.byExec[w.key()] == w {
			delete(i.byExec, w.key())
		}
		i.mu.Unlock()
		close(w.ended)
	})
}

// attach asks how much the exec has taken. The log may report the exec's start before the supervisor knows the exec.
func (w *inputWriter) attach(ctx context.Context) (control.InputStatus, error) {
	for {
		status, err := w.container.Link.Input(ctx, control.Input{ID: w.exec, Attach: true})
		if protocol.CodeOf(err) != protocol.NotFound {
			return status, err
		}
		if _, _, err := w.call.sandbox.ExecInput(ctx, w.exec); err != nil {
			return status, err
		}
		if !backoff.Sleep(ctx, execPeriod) {
			return status, ctx.Err()
		}
	}
}

// serve copies the stream until the client, the exec or a newer writer ends it.
func (w *inputWriter) serve(ctx context.Context, conn *stream.Conn) error {
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	defer context.AfterFunc(w.open, func() {
		conn.Reset(context.Cause(w.open))
		cancel()
	})()
	if !w.status.Closed {
		watching.Go(func() {
			_, err := w.container.Link.Input(ctx, control.Input{ID: w.exec, Watch: true})
			if err != nil && ctx.Err() == nil && !w.ending.Load() {
				conn.Reset(w.endError(err))
				cancel()
			}
		})
	}
	err := w.copy(ctx, conn)
	if cause := context.Cause(w.open); cause != nil {
		return cause
	}
	return err
}

func (w *inputWriter) copy(ctx context.Context, conn *stream.Conn) error {
	buffer := make([]byte, control.MaxInput)
	for offset := w.status.Taken; ; {
		n, err := conn.Read(buffer)
		if err != nil && err != io.EOF {
			return nil // the stream has ended; the stdin stays open for the next one
		}
		w.ending.Store(err == io.EOF)
		offset, err = w.write(ctx, conn, control.Input{ID: w.exec, Offset: offset, Data: buffer[:n], EOF: err == io.EOF})
		switch {
		case err == errPassedOn:
			return nil
		case err != nil && ctx.Err() != nil:
			return nil
		case err != nil:
			return w.endError(err)
		}
	}
}

// errPassedOn says that the end of the stdin was passed on.
var errPassedOn = errors.New("the end was passed on")

// write writes a piece, and tells the client how much was taken. It returns the next offset.
func (w *inputWriter) write(ctx context.Context, conn *stream.Conn, in control.Input) (int64, error) {
	for {
		status, err := w.container.Link.Input(ctx, in)
		if err != nil {
			return in.Offset, err
		}
		moved := max(0, min(status.Taken-in.Offset, int64(len(in.Data))))
		in.Offset, in.Data = in.Offset+moved, in.Data[moved:]
		w.call.Sent(int(moved))
		if moved > 0 || in.EOF {
			if _, err := conn.Write(binary.BigEndian.AppendUint64(nil, uint64(in.Offset))); err != nil {
				return in.Offset, err
			}
		}
		switch {
		case in.EOF && len(in.Data) == 0 && status.Closed:
			return in.Offset, errPassedOn
		case len(in.Data) == 0 && !in.EOF:
			return in.Offset, nil
		case moved == 0 && !backoff.Sleep(ctx, inputPause):
			return in.Offset, ctx.Err()
		}
	}
}

// endError returns why the exec takes no more input. A supervisor forgets an exec soon after its end.
func (w *inputWriter) endError(err error) error {
	if protocol.CodeOf(err) == protocol.NotFound {
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonExecTerminal,
			"exec %s has ended, so it takes no more input", w.exec)
	}
	return err
}
