package sdk

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

const (
	// liveRoom is how many chunks wait for a slow reader here; more wait in the connection, and
	// what finds no room there is read from the log later.
	liveRoom = 64
	// liveIdle is how long chunks that are still missing at the end are waited for, before the log
	// is read: they come on another subscription than the events.
	liveIdle = 50 * time.Millisecond
	// logPatience is how long the log may lag behind the event that ended an exec: a replica of a
	// cluster that is behind may answer.
	logPatience = 5 * time.Second
	// outputReach is how far ahead of a missing byte output may be stored.
	outputReach = jetstream.OutputWindow * jetstream.ChunkSize
)

// errEnough ends reading output that nobody wants more of.
var errEnough = errors.New("enough output")

// errStopped is the sink's, whose caller has stopped ranging.
var errStopped = errors.New("the caller has stopped")

// sink takes output in order, without gap or repeat. It is called by one goroutine.
type sink interface {
	write(stream string, offset int64, data []byte) error
	wants(stream string) bool // more output of it
}

// tail follows one exec to its end: the event that ends it and, where output is wanted, its
// output. It belongs to the goroutine of one call.
type tail struct {
	client        *Client
	sandbox, exec string
	feed          *feed
	ended         chan protocol.Event
	closers       []func()

	sink    sink
	live    chan jetstream.Chunk // nil: output is not streamed
	missing chan struct{}        // has room for one: read the log
	heard   atomic.Bool          // something came since the last recheck
	check   *time.Timer          // until the next recheck
	deafen  func()               // ends hearing output live
	done    chan struct{}
	offset  map[string]int64  // of the next byte wanted of each stream
	ahead   []jetstream.Chunk // that were stored ahead of what is still missing
	next    uint64            // record of the log to read on from
	total   map[string]int64  // bytes of each stream, once the exec has ended
}

// satisfied says whether the sink has all that it wants and that there is.
func (t *tail) satisfied() bool {
	for _, stream := range []string{Stdout, Stderr} {
		total, known := t.total[stream]
		if t.sink.wants(stream) && (!known || t.offset[stream] < total) {
			return false
		}
	}
	return true
}

// tail begins to follow an exec, which need not exist yet. With stream, output is heard live. The
// caller must close it.
func (c *Client) tail(sandbox, exec string, s sink, stream bool) (*tail, error) {
	f, err := c.feed(sandbox)
	if err != nil {
		return nil, err
	}
	t := &tail{client: c, sandbox: sandbox, exec: exec, feed: f, sink: s, closers: []func(){f.release},
		offset: map[string]int64{}, next: 1}
	var forget func()
	t.ended, forget = f.awaitExec(exec)
	t.closers = append(t.closers, forget)
	if !stream {
		return t, nil
	}
	t.live, t.missing, t.done = make(chan jetstream.Chunk, liveRoom), make(chan struct{}, 1), make(chan struct{})
	t.deafen, err = c.conn.LiveOutput(c.tenant, sandbox, exec, func(k jetstream.Chunk) {
		t.heard.Store(true)
		select {
		case t.live <- k:
		case <-t.done:
		}
	})
	if err != nil {
		t.close()
		return nil, err
	}
	t.closers = append(t.closers, t.deafen)
	stopOnLoss, err := c.conn.OnLoss(t.mayHaveMissed)
	if err != nil {
		t.close()
		return nil, err
	}
	t.closers = append(t.closers, t.recheck(), stopOnLoss, func() { close(t.done) })
	return t, nil
}

// recheck has the log read after each silence: a server that dies takes along what it was about to
// pass on, and the last chunk before a silence has none behind it that would show the gap.
func (t *tail) recheck() (stop func()) {
	var pace pace
	t.check = time.NewTimer(pace.next(false))
	go func() {
		for {
			select {
			case <-t.check.C:
				silent := !t.heard.Swap(false)
				if silent {
					t.mayHaveMissed()
				}
				t.check.Reset(pace.next(silent))
			case <-t.done:
				return
			}
		}
	}()
	return func() { t.check.Stop() }
}

func (t *tail) close() {
	for _, c := range t.closers {
		c()
	}
}

func (t *tail) mayHaveMissed() {
	select {
	case t.missing <- struct{}{}:
	default:
	}
}

// untilEnd waits for the end of the exec that a submission asks for. The end may be heard before
// the answer.
func (t *tail) untilEnd(ctx context.Context, sub *submission) (*protocol.Event, error) {
	replies, found := sub.replies, (<-chan *protocol.Reply)(sub.found)
	for {
		var reply *protocol.Reply
		select {
		case e := <-t.ended:
			return &e, nil
		case reply = <-replies:
		case reply = <-found:
		case err := <-sub.failed:
			return nil, sub.explain(err)
		case k := <-t.live:
			if err := t.take(k); err != nil {
				return nil, err
			}
			continue
		case <-t.missing:
			if err := t.catchUp(ctx); err != nil {
				return nil, err
			}
			continue
		case <-ctx.Done():
			return nil, sub.explain(ctxEnded(ctx.Err(), "exec "+t.exec))
		}
		if !sub.isOutcome(reply) {
			continue
		}
		replies, found = nil, nil
		if err := sub.check(reply); err != nil {
			return nil, err
		}
		if !reply.Changed {
			return t.catchUpAndFollow(ctx, reply.Exec)
		}
		t.feed.knows(reply.Exec.Sequence, reply.Exec.Record)
	}
}

// catchUpAndFollow waits for the end of an exec that was there before the tail.
func (t *tail) catchUpAndFollow(ctx context.Context, info *protocol.Exec) (*protocol.Event, error) {
	info, err := t.newest(ctx, info)
	if err != nil {
		return nil, err
	}
	if info.State.Terminal() {
		return t.client.endOf(ctx, info)
	}
	t.feed.replay(info.Sequence, info.Record)
	if t.live != nil {
		t.mayHaveMissed()
	}
	for {
		select {
		case e := <-t.ended:
			return &e, nil
		case k := <-t.live:
			err = t.take(k)
		case <-t.missing:
			err = t.catchUp(ctx)
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err != nil {
			return nil, err
		}
	}
}

// newest reads the exec again. Where no coordinator answers, what the caller knows is enough: the
// history after it tells the rest.
func (t *tail) newest(ctx context.Context, info *protocol.Exec) (*protocol.Exec, error) {
	if info.State.Terminal() {
		return info, nil
	}
	reply, err := t.client.conn.Query(ctx, t.client.tenant, protocol.EndpointExec,
		&protocol.Query{Sandbox: t.sandbox, Exec: t.exec, MinSequence: info.Sequence})
	if err == nil {
		return reply.Exec, nil
	}
	if isTransient(err) && info.Sequence != 0 {
		return info, nil
	}
	return nil, err
}

// endOf reads the event that ended an exec.
func (c *Client) endOf(ctx context.Context, info *protocol.Exec) (*protocol.Event, error) {
	b, err := c.conn.Record(ctx, info.Record)
	for isTransient(err) && pause(ctx, retryPause) { // while a leader is elected
		b, err = c.conn.Record(ctx, info.Record)
	}
	if err != nil {
		return nil, err
	}
	for i := range b.Events {
		if e := &b.Events[i]; b.Sandbox == info.Sandbox && e.Exec != nil && e.Exec.ID == info.ID && e.Exec.State.Terminal() {
			return e, nil
		}
	}
	return nil, protocol.Errorf(protocol.Internal, "", "exec %s: record %d does not hold its end", info.ID, info.Record)
}

// take hands a chunk on, as far as it is new. A chunk before which something is missing is left to
// the log.
func (t *tail) take(k jetstream.Chunk) error {
	at := t.offset[k.Stream]
	end := k.Offset + int64(len(k.Data))
	switch {
	case k.Offset > at:
		t.mayHaveMissed()
		return nil
	case end <= at:
		return nil
	}
	t.offset[k.Stream] = end
	if err := t.sink.write(k.Stream, at, k.Data[at-k.Offset:]); err != nil {
		return err
	}
	return t.takeAhead()
}

// takeAhead hands on what follows now of what was stored ahead.
func (t *tail) takeAhead() error {
	for i, k := range t.ahead {
		if k.Offset <= t.offset[k.Stream] {
			t.ahead = slices.Delete(t.ahead, i, i+1)
			return errors.Join(t.take(k), t.takeAhead())
		}
	}
	return nil
}

// readLog hands on what the log has and the sink has not.
func (t *tail) readLog(ctx context.Context) error {
	var err error
	t.next, err = t.client.conn.ReadOutput(ctx, t.client.tenant, t.sandbox, t.exec, t.next, func(k jetstream.Chunk) error {
		if at := t.offset[k.Stream]; k.Offset > at {
			stored := map[string]int64{Stdout: k.NextStdout, Stderr: k.NextStderr}[k.Stream]
			if stored > at || k.Offset > at+outputReach { // what is missing was there
				return outputNotKept(t.exec, k.Stream, at, k.Offset)
			}
			t.keepAhead(k)
			return nil
		}
		if err := t.take(k); err != nil {
			return err
		}
		if t.satisfied() {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// keepAhead keeps a chunk until what is before it comes. They are few: none reaches further than
// outputReach.
func (t *tail) keepAhead(k jetstream.Chunk) {
	known := func(a jetstream.Chunk) bool {
		return a.Stream == k.Stream && a.Offset == k.Offset && len(a.Data) >= len(k.Data)
	}
	if !slices.ContainsFunc(t.ahead, known) {
		t.ahead = append(t.ahead, k)
	}
}

// catchUp reads the log, and again later where it cannot be read now.
func (t *tail) catchUp(ctx context.Context) error {
	err := t.readLog(ctx)
	if isTransient(err) && pause(ctx, retryPause) {
		t.mayHaveMissed()
		return nil
	}
	return err
}

func outputNotKept(exec, stream string, from, to int64) error {
	return protocol.Errorf(protocol.OutOfRange, protocol.ReasonOutputNotKept, "exec %s: bytes %d to %d of %s are no longer kept; the oldest that is kept after them is %d", exec, from, to, stream, to)
}

// drain hands on all output of an exec that has ended.
func (t *tail) drain(ctx context.Context, e *protocol.Event) error {
	d := e.Exec
	if d.Inline {
		for _, k := range []jetstream.Chunk{{Stream: Stdout, Data: d.Stdout}, {Stream: Stderr, Data: d.Stderr}} {
			if err := t.take(k); err != nil {
				return err
			}
		}
		return t.inRange(d)
	}
	t.total = map[string]int64{Stdout: d.StdoutBytes, Stderr: d.StderrBytes}
	if err := t.drainLive(ctx); err != nil {
		return err
	}
	if err := t.drainLog(ctx); err != nil {
		return err
	}
	return t.inRange(d)
}

// drainLog reads the log until everything is there.
func (t *tail) drainLog(ctx context.Context) error {
	return t.readUntil(ctx, t.satisfied, func() error {
		return protocol.Errorf(protocol.OutOfRange, protocol.ReasonOutputNotKept,
			"exec %s: the output after byte %d of stdout and %d of stderr is no longer kept", t.exec, t.offset[Stdout], t.offset[Stderr])
	})
}

// readKept reads what the log has now of an exec that runs. A gap may close for a while: see
// [jetstream.OutputWindow].
func (t *tail) readKept(ctx context.Context) error {
	read := false
	whole := func() bool {
		first := !read
		read = true
		return !first && len(t.ahead) == 0 || !t.sink.wants(Stdout) && !t.sink.wants(Stderr)
	}
	return t.readUntil(ctx, whole, func() error {
		k := t.ahead[0]
		return outputNotKept(t.exec, k.Stream, t.offset[k.Stream], k.Offset)
	})
}

// readUntil reads the log until enough says that it need not be read again, or until what is missing did
// not come in time: missing is the error then.
func (t *tail) readUntil(ctx context.Context, enough func() bool, missing func() error) error {
	within := t.client.logAway()
	deadline, away := time.Now().Add(logPatience), time.Now().Add(within)
	for interval := 10 * time.Millisecond; !enough(); interval *= 2 {
		before := t.next
		err := t.readLog(ctx)
		if !isTransient(err) {
			away = time.Now().Add(within)
		}
		switch {
		case err != nil && (!isTransient(err) || isFinal(err)):
			return err
		case err != nil && ctx.Err() == nil && time.Now().After(away):
			return unread("exec "+t.exec, err)
		case err != nil: // while a leader is elected; that is not the log's lag
			if !pause(ctx, retryPause) {
				return ctx.Err()
			}
			deadline = time.Now().Add(logPatience)
		case t.next != before:
			deadline = time.Now().Add(logPatience)
		case time.Now().After(deadline):
			return missing()
		case !enough() && !pause(ctx, interval):
			return ctx.Err()
		}
	}
	return nil
}

// logAway bounds how long a reader waits for a log of output that cannot be read: longer than a leader is
// elected. It may be gone.
func (c *Client) logAway() time.Duration { return RequestTries * c.requestTimeout }

// unread is the error where the log of output could not be read for too long.
func unread(what string, err error) error {
	e := *protocol.AsError(err)
	e.Message = "the output of " + what + " is missing: its log cannot be read: " + e.Message
	return &e
}

// inRange refuses offsets beyond the end, which only a caller can have asked for.
func (t *tail) inRange(d *protocol.ExecDetails) error {
	for stream, size := range map[string]int64{Stdout: d.StdoutBytes, Stderr: d.StderrBytes} {
		if at := t.offset[stream]; at > size {
			return protocol.Errorf(protocol.OutOfRange, protocol.ReasonSequenceBeyondEnd, "there is no byte %d of %s: exec %s wrote %d", at, stream, t.exec, size)
		}
	}
	return nil
}

// drainLive takes live chunks until everything is there or none comes any more.
func (t *tail) drainLive(ctx context.Context) error {
	if t.live == nil {
		return nil
	}
	idle := time.NewTimer(liveIdle)
	defer idle.Stop()
	for !t.satisfied() {
		select {
		case k := <-t.live:
			if err := t.take(k); err != nil {
				return err
			}
			idle.Reset(liveIdle)
		case <-idle.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
