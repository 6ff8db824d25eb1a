package sdk

import (
	"context"
	"io"
	"iter"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// Names of the output streams.
const (
	Stdout = jetstream.Stdout // "stdout"
	Stderr = jetstream.Stderr // "stderr"
)

// Chunk is a piece of output: bytes as the command wrote them, cut at any point.
type Chunk struct {
	Stream string `json:"stream"` // [Stdout] or [Stderr]
	Offset int64  `json:"offset"` // position of the first byte of Data in its stream; the stream starts at 0
	Data   []byte `json:"data"`

	// At is when the chunk was stored, by the store's clock. Only [Sandbox.Logs] sets it.
	At time.Time `json:"at,omitzero"`
}

// Output reads the exec's output, no matter when the exec ran: each stream in order, without gaps or repeats. With
// [WithFollow] the sequence continues until the exec has ended. Without WithFollow it ends with the output that is
// stored now. It also ends when ctx ends or after the first error.
//
// To resume an interrupted read, pass to [WithOffset] the offset after the last byte of each stream that arrived.
//
// Options: [WithFollow], [WithOffset]. Errors: not_found; internal with reason output_differs, after the last chunk, if
// a stream was read from offset 0 and its SHA-256 differs from the one in the exec's last event; out_of_range with
// reason output_not_kept if the log has lost part of the output, and with reason sequence_beyond_end for an offset
// beyond the end of an exec that has ended; unavailable or deadline_exceeded if the log cannot be read for
// [RequestTries] times the request timeout.
func (x *Exec) Output(ctx context.Context, opts ...OutputOption) iter.Seq2[Chunk, error] {
	o := settingsOf(opts, OutputOption.forOutput)
	return func(yield func(Chunk, error) bool) {
		s := &yielder{yield: yield}
		if err := x.output(ctx, o, s); err != nil && !s.stopped {
			yield(Chunk{}, failed(ctx, err, "read the output of exec "+x.ID()))
		}
	}
}

func (x *Exec) output(ctx context.Context, o *settings, s sink) error {
	if err := o.checkReading(); err != nil {
		return err
	}
	mode := findOnce
	if o.follow {
		mode = findForever
	}
	sandbox, err := x.find(ctx, mode)
	if err != nil {
		return err
	}
	t, err := startTail(x.client, sandbox, x.ID(), s, o.follow)
	if err != nil {
		return err
	}
	defer t.close()
	t.skipTo(o.offsets)
	info := x.Info()
	if !o.follow {
		now, err := t.newest(ctx, &info)
		if err != nil {
			return err
		}
		if !now.State.Terminal() {
			return t.readKept(ctx)
		}
		x.learn(now)
		info = *now
	}
	e, err := t.catchUpAndFollow(ctx, &info)
	if err != nil {
		return err
	}
	x.learnEnd(e)
	return t.drain(ctx, e)
}

// OutputPage asks a coordinator, once, for a piece of one stream of the exec's output, starting at a byte offset. limit
// is the number of bytes, 1 to [protocol.MaxOutputPage]; 0 means the maximum. The page may hold fewer bytes. It is
// empty if the exec has printed nothing after the offset yet. [Exec.Output] reads the whole output and can follow it.
//
// Errors: not_found; out_of_range with reason sequence_beyond_end for an offset beyond the end; resource_exhausted with
// reason too_many_reads.
func (x *Exec) OutputPage(ctx context.Context, stream string, offset int64, limit int) (*OutputPage, error) {
	sandbox, err := x.find(ctx, findOnce)
	if err != nil {
		return nil, err
	}
	reply, err := x.client.query(ctx, protocol.EndpointOutput,
		protocol.Query{Sandbox: sandbox, Exec: x.ID(), Stream: stream, Offset: offset, Limit: limit})
	if err != nil {
		return nil, err
	}
	return reply.Output, nil
}

// yielder is a sink that yields chunks to the caller's loop.
type yielder struct {
	yield   func(Chunk, error) bool
	stopped bool      // the caller has left its loop
	at      time.Time // when the current chunk was stored
}

func (s *yielder) write(stream string, offset int64, data []byte) error {
	if s.stopped || !s.yield(Chunk{Stream: stream, Offset: offset, Data: data, At: s.at}, nil) {
		s.stopped = true
		return errStopped
	}
	return nil
}

func (s *yielder) wants(string) bool { return !s.stopped }

// Reader reads one stream of the exec's output, [Stdout] or [Stderr], from a byte offset. At the end of the exec it
// returns io.EOF. Close the reader or end ctx to stop earlier; the exec continues. Errors are the same as for
// [Exec.Output].
func (x *Exec) Reader(ctx context.Context, stream string, offset int64) io.ReadCloser {
	ctx, cancel := context.WithCancel(ctx)
	r, w := io.Pipe()
	go func() {
		defer cancel()
		for k, err := range x.Output(ctx, WithFollow(true), WithOffset(stream, offset)) {
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

// Close stops the reader.
func (r *outputReader) Close() error {
	r.cancel()
	return r.PipeReader.Close()
}
