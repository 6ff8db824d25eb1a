package worker

import (
	"context"
	"errors"
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
//
// What was acknowledged is compared with what the log has after each reconnect: a single server that is
// killed loses what it acknowledged last.
type publisher struct {
	r        *execRun
	a        *attachment
	out, err outputStream

	settles    time.Duration // after so long a server that is killed does not lose what it acknowledged
	checked    bool          // published is what the log has, as of
	reconnects uint64        // so many reconnects
	unsure     bool          // a chunk may have been sent after a reconnect, so the last one says nothing of those before
	refused    time.Time     // since when the log of output takes nothing, though NATS is there; zero: it does
	ending     bool          // everything in its sandbox is ended
	until      time.Time     // from then on the exec's end does not wait for its output; zero: it does
}

// outputRetry is the pause after the log of output took nothing.
const outputRetry = 500 * time.Millisecond

// lastTry is how long output is published at least once the exec has ended, or NATS is back.
const lastTry = 2 * time.Second

// notTaken says that the log of output did not take some: it is safe on disk until it does.
type notTaken struct{ err error }

func (n *notTaken) Error() string { return "output is not published: " + n.err.Error() }

// newPublisher begins with an exec of which nothing is published, or, adopted, with one of which the
// log says how much is.
//
// Of an exec with a timeout the coordinators say that its exit code is not known when they hear nothing
// for a minute after it should have ended. Output that is more than the log takes until then must not
// keep back the code, which is known here.
func newPublisher(r *execRun, a *attachment, x *protocol.Exec, adopted bool) *publisher {
	p := &publisher{r: r, a: a, settles: keepOutput, checked: !adopted, reconnects: r.s.w.conn.Reconnects()}
	age := time.Duration(0)
	if adopted {
		age = r.s.w.conn.Now().Sub(x.StartedAt)
	}
	p.startedAgo(x, age)
	return p
}

// startedAgo takes over how long ago the exec was started.
func (p *publisher) startedAgo(x *protocol.Exec, age time.Duration) {
	if x.Spec.Timeout > 0 {
		p.until = time.Now().Add(x.Spec.Timeout.Std() + x.Spec.Grace.Std() + p.r.s.w.cfg.OutputWithin - max(age, 0))
	}
}

// tryOnce leaves room for a last try.
func (p *publisher) tryOnce() {
	if last := time.Now().Add(lastTry); !p.until.IsZero() && p.until.Before(last) {
		p.until = last
	}
}

// late says whether the exec's end waits for its output no longer. The end of a sandbox waits for what its
// rate lets through in a last try.
func (p *publisher) late() bool {
	if !p.ending && p.a != nil && p.a.ending.Load() {
		p.ending = true
		if last := time.Now().Add(lastTry); p.until.IsZero() || p.until.After(last) {
			p.until = last
		}
	}
	return !p.until.IsZero() && time.Now().After(p.until) || p.r.s.diskStopped() != nil
}

// current says whether published is what the log has.
func (p *publisher) current() bool {
	return p.checked && !p.unsure && p.reconnects == p.r.s.w.conn.Reconnects()
}

// check makes published what the log has.
func (p *publisher) check(ctx context.Context) error {
	if p.current() {
		return nil
	}
	conn := p.r.s.w.conn
	reconnects := conn.Reconnects()
	stdout, stderr, err := conn.OutputEnd(ctx, p.r.s.key.Tenant, p.r.s.key.ID, p.r.id)
	if err != nil {
		return p.later(err)
	}
	if p.unsure { // all of it once more; readers pass over what they have
		stdout, stderr = 0, 0
	}
	if !p.checked {
		p.learnFreed()
	}
	nothing := !p.unsure && stdout == 0 && stderr == 0
	p.out.goTo(stdout, nothing)
	p.err.goTo(stderr, nothing)
	p.checked, p.unsure, p.reconnects = true, false, reconnects
	return nil
}

// later notes that the log of output takes nothing now. A NATS that is away takes no end either, so that
// does not count.
func (p *publisher) later(err error) error {
	if !p.r.s.w.conn.Connected() {
		p.refused = time.Time{}
		p.tryOnce()
	} else if p.refused.IsZero() {
		p.refused = time.Now()
	}
	p.r.s.log.Warn("output is published again later", "exec", p.r.id, "error", err)
	return &notTaken{err}
}

// hopeless says why the exec's end should not wait for its output any longer, nil where it should: the log
// of output has taken nothing for too long, or not enough in time. The log of events must be there
// meanwhile: else the end has to wait in any case.
func (p *publisher) hopeless(ctx context.Context, refused *notTaken) *protocol.Error {
	if why := p.r.s.diskStopped(); why != nil { // the log of output may lie on the same disk
		return why
	}
	silent := !p.refused.IsZero() && time.Since(p.refused) >= p.r.s.w.cfg.OutputPatience
	switch {
	case !silent && !p.late() || p.r.s.journal.Refresh(ctx) != nil:
		return nil
	case p.refused.IsZero() && p.ending:
		return protocol.Errorf(protocol.DeadlineExceeded, protocol.ReasonOutputNotKept,
			"the log of output did not take all of it within %s after the sandbox was ended", lastTry)
	case p.refused.IsZero():
		return protocol.Errorf(protocol.DeadlineExceeded, protocol.ReasonOutputNotKept,
			"not all output could be stored within %s after the exec's timeout", p.r.s.w.cfg.OutputWithin)
	}
	return protocol.Errorf(protocol.Unavailable, protocol.ReasonOutputNotKept, "output could not be stored for %s: %v",
		time.Since(p.refused).Round(time.Second), refused.err)
}

// publishAll publishes the rest of the output of an exec that has ended. lost says why some of it is
// missing in the log, nil where none is.
func (p *publisher) publishAll(ctx context.Context, stdout, stderr int64) (lost *protocol.Error, err error) {
	p.tryOnce()
	for {
		err := p.publish(ctx, stdout, stderr)
		var refused *notTaken
		switch {
		case err == nil && p.current():
			return nil, nil
		case err == nil:
			continue // NATS went away meanwhile
		case !errors.As(err, &refused):
			return nil, err
		}
		if lost := p.hopeless(ctx, refused); lost != nil {
			return lost, nil
		}
		if !sleep(ctx, outputRetry) {
			return nil, ctx.Err()
		}
	}
}

// publish brings both streams up to the sizes given. The error is *notTaken where that is to be tried
// again.
func (p *publisher) publish(ctx context.Context, stdout, stderr int64) error {
	if err := p.check(ctx); err != nil {
		return err
	}
	if stdout <= p.out.published && stderr <= p.err.published && !p.holds() {
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
	p.freeLater(run)
	return nil
}

// publishFile publishes one stream up to size, several chunks at once, and counts what was
// acknowledged.
func (p *publisher) publishFile(ctx context.Context, run *os.Root, name string, stream *outputStream, size int64) (err error) {
	f, err := supervise.OpenOutput(run, p.r.id, name)
	if err != nil {
		p.r.s.log.Warn("an output file cannot be read; the output ends here", "exec", p.r.id, "stream", name, "error", err)
		stream.ended = true
		return nil
	}
	defer f.Close()
	var sent pieces
	defer sent.abandon()
	look := time.NewTicker(outputRetry)
	defer look.Stop()
	for at := stream.published; at < size && !stream.ended || len(sent.onWay) > 0; {
		var next *turn
		var granted <-chan struct{}
		if at < size && !stream.ended && !sent.full() {
			if p.late() {
				return &notTaken{errLate}
			}
			next = p.r.s.w.outlet.ask(p.r.s.key, min(size-at, jetstream.ChunkSize))
			granted = next.granted
		}
		for waits := true; waits; {
			select {
			case err := <-sent.oldest():
				if err != nil {
					next.giveBack()
					return p.later(err) // from the last acknowledged byte on
				}
				stream.published, p.refused = sent.settle(), time.Time{}
				p.free(f, stream)
				waits = next != nil
			case <-granted:
				if at, err = p.send(f, name, stream, &sent, next, at); err != nil {
					return err
				}
				waits = false
			case <-look.C:
				if next != nil && p.late() {
					next.done()
					return &notTaken{errLate}
				}
			case <-ctx.Done():
				next.giveBack()
				return ctx.Err()
			}
		}
	}
	return nil
}

// send sends the chunk that has its turn, and says where the next one begins.
func (p *publisher) send(f *os.File, name string, stream *outputStream, sent *pieces, t *turn, at int64) (next int64, err error) {
	data := make([]byte, t.size)
	n, err := f.ReadAt(data, at)
	if n == 0 || err != nil && err != io.EOF { // truncated under our hands
		t.done()
		stream.ended = true
		return at, nil
	}
	stored, err := p.r.s.w.conn.PublishOutput(p.r.s.key.Tenant, p.r.s.key.ID, p.r.id, p.chunk(name, at, data[:n]))
	if err != nil {
		t.done()
		return at, p.later(err)
	}
	sent.add(at+int64(n), stored, t)
	if !p.current() {
		p.unsure = true
		return at, p.later(errReconnected)
	}
	p.r.s.w.cfg.Probe("output")
	return at + int64(n), nil
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

// errLate is why no more output is published before the exec's end.
var errLate = protocol.Errorf(protocol.DeadlineExceeded, "", "the time for it is over")

// errReconnected is why output is compared with the log again.
var errReconnected = protocol.Errorf(protocol.Unavailable, "", "NATS went away meanwhile")

// Files of an exec that has ended are kept for a moment, as far as they are small and few.
const (
	keepOutput     = 2 * time.Second
	keepOutputMost = 8 << 20 // bytes of one exec
	keepFilesMost  = 256     // execs of one worker
	keepAway       = time.Minute
)

// keep forgets an exec whose output is in the log: where a single server may still lose some of it, a
// little later, and only when the log has it all.
func (p *publisher) keep() {
	w := p.r.s.w
	stdout, stderr := p.out.published, p.err.published // what the end says of it
	published := stdout + stderr
	p.until = time.Time{}
	cheap := published > 0 && published <= keepOutputMost && w.kept.Load() < keepFilesMost
	if p.a == nil {
		return
	}
	if !cheap || !w.conn.MayLoseOutput() {
		p.a.forget(p.r.id)
		return
	}
	w.kept.Add(1)
	go func() {
		defer w.kept.Add(-1)
		ctx, cancel := context.WithTimeout(context.Background(), keepAway)
		defer cancel()
		ctx, end := p.a.during(ctx)
		defer end()
		for pause := keepOutput; sleep(ctx, pause); pause = outputRetry {
			if w.conn.Connected() && p.publish(ctx, stdout, stderr) == nil && p.current() {
				break
			}
		}
		p.a.forget(p.r.id)
	}()
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
