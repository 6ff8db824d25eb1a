package sdk

import (
	"context"
	"io"
	"iter"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// Names of the streams of an exec.
const (
	Stdout = jetstream.Stdout
	Stderr = jetstream.Stderr
)

// Chunk is a piece of an exec's output: bytes as the command wrote them, cut anywhere.
type Chunk struct {
	Stream string `json:"stream"` // [Stdout] or [Stderr]
	Offset int64  `json:"offset"` // of the first byte in its stream, from 0
	Data   []byte `json:"data"`

	// At is when it was stored, by the store's clock. [Sandbox.Logs] and [Sandbox.ServiceLogs] say it;
	// elsewhere it is zero.
	At time.Time `json:"at,omitzero"`
}

// destination is where one stream of a call goes: to a writer, or into memory up to a limit.
type destination struct {
	w     io.Writer
	limit int64
	data  []byte
}

func (d *destination) write(data []byte) error {
	if d.w != nil {
		_, err := d.w.Write(data)
		if err != nil {
			return &failure{protocol.Errorf(protocol.Cancelled, "", "write output: %v", err), err}
		}
		return nil
	}
	room := d.limit - int64(len(d.data))
	if int64(len(data)) > room {
		data = data[:room]
	}
	d.data = append(d.data, data...)
	return nil
}

func (d *destination) wants() bool { return d.w != nil || int64(len(d.data)) < d.limit }

// destinations are the sink of a call.
type destinations struct{ stdout, stderr destination }

func (c *call) destinations() *destinations {
	return &destinations{
		stdout: destination{w: c.stdout, limit: c.collect},
		stderr: destination{w: c.stderr, limit: c.collect},
	}
}

// streams says whether output is wanted as it comes.
func (c *call) streams() bool { return c.stdout != nil || c.stderr != nil }

func (d *destinations) of(stream string) *destination {
	if stream == Stdout {
		return &d.stdout
	}
	return &d.stderr
}

func (d *destinations) write(stream string, _ int64, data []byte) error {
	return d.of(stream).write(data)
}

func (d *destinations) wants(stream string) bool { return d.of(stream).wants() }

// result makes the result of an exec that has ended, with its output.
func (d *destinations) result(ctx context.Context, t *tail, e *protocol.Event) (*Result, error) {
	r := resultOf(e)
	err := t.drain(ctx, e)
	r.Stdout, r.Stderr = d.stdout.data, d.stderr.data
	r.Incomplete = d.stdout.w == nil && int64(len(r.Stdout)) < r.StdoutBytes || d.stderr.w == nil && int64(len(r.Stderr)) < r.StderrBytes
	if err != nil {
		return r, failed(ctx, err, "read the output of exec "+r.ID)
	}
	return r, r.Err()
}

// LogsOptions says what output is read.
type LogsOptions struct {
	FromStdout int64 // offset of the first byte wanted
	FromStderr int64
	Follow     bool // go on until the exec has ended; else what is there now
}

// Logs reads an exec's output, whenever it ran: each stream in order, without gap or repeat. The
// sequence ends with the first error. Errors: out_of_range with reason output_not_kept where the
// log lacks something of what is wanted, and for an offset beyond the end of an exec that has ended;
// unavailable or deadline_exceeded where the log cannot be read for [RequestTries] times the request timeout.
func (x *Exec) Logs(ctx context.Context, o LogsOptions) iter.Seq2[Chunk, error] {
	return func(yield func(Chunk, error) bool) {
		s := &yielder{yield: yield}
		if err := x.logs(ctx, o, s); err != nil && !s.stopped {
			yield(Chunk{}, failed(ctx, err, "read the output of exec "+x.info.ID))
		}
	}
}

func (x *Exec) logs(ctx context.Context, o LogsOptions, s *yielder) error {
	if o.FromStdout < 0 || o.FromStderr < 0 {
		return protocol.Invalid("offset", "must not be negative")
	}
	t, err := x.client.tail(x.info.Sandbox, x.info.ID, s, o.Follow)
	if err != nil {
		return err
	}
	defer t.close()
	t.offset[Stdout], t.offset[Stderr] = o.FromStdout, o.FromStderr
	if !o.Follow {
		info, err := t.newest(ctx, &x.info)
		if err != nil {
			return err
		}
		if !info.State.Terminal() {
			return t.readKept(ctx)
		}
		x = x.sandbox.exec(info)
	}
	e, err := t.catchUpAndFollow(ctx, &x.info)
	if err != nil {
		return err
	}
	x.sandbox.saw(e.Sequence)
	return t.drain(ctx, e)
}

// yielder is the sink of Logs.
type yielder struct {
	yield   func(Chunk, error) bool
	stopped bool
	at      time.Time // of the chunk that is written now
}

func (s *yielder) write(stream string, offset int64, data []byte) error {
	if s.stopped || !s.yield(Chunk{Stream: stream, Offset: offset, Data: data, At: s.at}, nil) {
		s.stopped = true
		return errStopped
	}
	return nil
}

func (s *yielder) wants(string) bool { return !s.stopped }

// Reader reads one stream of the exec's output, [Stdout] or [Stderr], from the first byte to the
// end of the exec, which is io.EOF. Close it, or end ctx, to stop earlier.
func (x *Exec) Reader(ctx context.Context, stream string) io.ReadCloser {
	ctx, cancel := context.WithCancel(ctx)
	r, w := io.Pipe()
	go func() {
		defer cancel()
		for k, err := range x.Logs(ctx, LogsOptions{Follow: true}) {
			if err != nil {
				w.CloseWithError(err)
				return
			}
			if k.Stream != stream {
				continue
			}
			if _, err := w.Write(k.Data); err != nil {
				return // the reader was closed
			}
		}
		w.Close()
	}()
	return &outputReader{r, cancel}
}

type outputReader struct {
	*io.PipeReader
	cancel context.CancelFunc
}

// Close ends the reading.
func (r *outputReader) Close() error {
	r.cancel()
	return r.PipeReader.Close()
}
