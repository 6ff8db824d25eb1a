package worker

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/supervise"
)

// publisher follows the files of an exec's output and publishes what was not published yet, in
// order. The files are the container's word: no more is read than the supervisor announced, and a
// file that is shorter, or something else, ends the stream there.
type publisher struct {
	r        *execRun
	a        *attachment
	out, err outputStream
}

type outputStream struct {
	published int64 // acknowledged
	ended     bool  // the file has no more, whatever was announced
}

// publish brings both streams up to the sizes given.
func (p *publisher) publish(ctx context.Context, stdout, stderr int64) error {
	if stdout <= p.out.published && stderr <= p.err.published {
		return nil
	}
	run, _, closeRun, err := p.r.runDir(p.a)
	if err != nil {
		p.out.ended, p.err.ended = true, true // the directory is gone
		return nil
	}
	defer closeRun()
	for _, s := range []struct {
		name   string
		stream *outputStream
		size   int64
	}{{jetstream.Stdout, &p.out, stdout}, {jetstream.Stderr, &p.err, stderr}} {
		if s.size > s.stream.published && !s.stream.ended {
			if err := p.publishFile(ctx, run, s.name, s.stream, s.size); err != nil {
				return err
			}
		}
	}
	return nil
}

// publishFile publishes one stream up to size, several chunks at once, and counts what was
// acknowledged.
func (p *publisher) publishFile(ctx context.Context, run *os.Root, name string, stream *outputStream, size int64) error {
	f, err := supervise.OpenOutput(run, p.r.id, name)
	if err != nil {
		p.r.s.log.Warn("an output file cannot be read; the output ends here", "exec", p.r.id, "stream", name, "error", err)
		stream.ended = true
		return nil
	}
	defer f.Close()
	for !stream.ended && stream.published < size {
		if err := p.publishWindow(ctx, f, name, stream, size); err != nil {
			return err
		}
	}
	return nil
}

func (p *publisher) publishWindow(ctx context.Context, f *os.File, name string, stream *outputStream, size int64) error {
	type sent struct {
		end  int64
		done <-chan error
	}
	var onWay []sent
	at := stream.published
	for len(onWay) < jetstream.OutputWindow && at < size {
		data := make([]byte, min(size-at, jetstream.ChunkSize))
		n, err := f.ReadAt(data, at)
		if n == 0 || err != nil && err != io.EOF {
			break // truncated under our hands
		}
		done, err := p.r.s.w.conn.PublishOutput(p.r.s.key.tenant, p.r.s.key.id, p.r.id, p.chunk(name, at, data[:n]))
		if err != nil {
			return p.later(ctx, err)
		}
		p.r.s.w.cfg.Probe("output")
		at += int64(n)
		onWay = append(onWay, sent{at, done})
	}
	if len(onWay) == 0 {
		stream.ended = true
		return nil
	}
	for _, c := range onWay {
		if err := <-c.done; err != nil {
			return p.later(ctx, err) // from the last acknowledged byte on
		}
		stream.published = c.end
	}
	return nil
}

// chunk is a piece of a stream. Chunks before it may still be on their way, and not be stored in the
// end: only who follows what is acknowledged vouches for itself.
func (p *publisher) chunk(name string, at int64, data []byte) jetstream.Chunk {
	k := jetstream.Chunk{Stream: name, Offset: at, Data: data, NextStdout: p.out.published, NextStderr: p.err.published}
	next := &k.NextStdout
	if name == jetstream.Stderr {
		next = &k.NextStderr
	}
	if at == *next {
		*next += int64(len(data))
	}
	return k
}

// later waits before output is published again: it is safe on disk until NATS is back.
func (p *publisher) later(ctx context.Context, err error) error {
	p.r.s.log.Warn("output is published again later", "exec", p.r.id, "error", err)
	if !sleep(ctx, 500*time.Millisecond) {
		return ctx.Err()
	}
	return nil
}

// runDir opens the run directory of the container that the exec ran in: through the attachment, or
// from disk when there is none any more.
func (r *execRun) runDir(a *attachment) (run *os.Root, secret []byte, closeRun func(), err error) {
	if a != nil {
		return a.run, a.key, func() {}, nil
	}
	generation := uint64(0)
	r.s.journal.View(func(st *protocol.State, _ uint64) { generation = st.Sandbox.Generation })
	d := r.s.directory(generation)
	if r.service != "" {
		d = d.service(r.service)
	}
	if secret, err = d.secret(); err != nil {
		return nil, nil, nil, err
	}
	if run, err = os.OpenRoot(d.run()); err != nil {
		return nil, nil, nil, protocol.Errorf(protocol.NotFound, "", "open the run directory: %v", err)
	}
	return run, secret, func() { run.Close() }, nil
}
