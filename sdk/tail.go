package sdk

import (
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"slices"
	"sync/atomic"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/wake"
)

const (
	// liveBuffer is how many chunks a tail holds for a slow reader. The connection holds more. Chunks that do not fit
	// there either are read from the log later.
	liveBuffer = 64
	// maxAhead is how many bytes the log can store ahead of a byte that is still missing.
	maxAhead = jetstream.OutputWindow * jetstream.ChunkSize
)

// errEnough ends a read of the log once the sink wants no more.
var errEnough = errors.New("enough output")

// errStopped is the error of a sink whose caller has left the loop.
var errStopped = errors.New("the caller has stopped")

// sink takes output in order, without gap or repeat. One goroutine calls it.
type sink interface {
	write(stream string, offset int64, data []byte) error
	wants(stream string) bool // whether the sink takes more output of this stream
}

// tail follows one exec to its end: the event that ended it and, if wanted, its output. Only the goroutine of one call
// may use it.
type tail struct {
	client        *Client
	sandbox, exec string
	feed          *feed
	ended         chan protocol.Event
	failure       chan error // gets the error if the history cannot be read
	closers       []func()

	sink    sink
	live    chan liveChunk // nil: the call does not stream output
	missing wake.Signal    // output may be missing: read the log
	arrived atomic.Bool    // a chunk arrived since the last recheck
	check   *time.Timer    // fires at the next recheck
	stop    func()         // ends the subscription to live output
	done    chan struct{}
	offset  map[string]int64  // offset of the next wanted byte of each stream
	ahead   []jetstream.Chunk // chunks after bytes that are still missing
	next    uint64            // record in the output log at which the next read starts
	total   map[string]int64  // size of each stream, once the exec has ended
	held    []liveChunk       // chunks from hosts that may not be the sandbox's
	asked   time.Time         // when a chunk from another host last made the tail read the log

	// sums has, for each stream that was read from its first byte, the hash of the bytes that were passed to the sink.
	sums map[string]hash.Hash
}

// startTail begins to follow an exec, which need not exist yet. If stream is true, it subscribes to live output. The
// caller must close the tail.
func startTail(c *Client, sandbox, exec string, s sink, stream bool) (*tail, error) {
	f, err := c.feed(sandbox)
	if err != nil {
		return nil, err
	}
	t := &tail{client: c, sandbox: sandbox, exec: exec, feed: f, sink: s, closers: []func(){f.release},
		offset: map[string]int64{}, sums: map[string]hash.Hash{}, next: 1}
	var forget func()
	t.ended, forget = f.awaitExec(exec)
	t.closers = append(t.closers, forget)
	t.failure, forget = f.awaitFailure()
	t.closers = append(t.closers, forget)
	if !stream {
		return t, nil
	}
	t.live, t.missing, t.done = make(chan liveChunk, liveBuffer), wake.New(), make(chan struct{})
	t.stop, err = c.conn.LiveOutput(c.tenant, sandbox, exec, func(host string, k jetstream.Chunk) {
		t.arrived.Store(true)
		select {
		case t.live <- liveChunk{host, k}:
		case <-t.done:
		}
	})
	if err != nil {
		t.close()
		return nil, err
	}
	t.closers = append(t.closers, t.stop)
	stopOnLoss := c.onLoss(t.mayHaveMissed)
	t.closers = append(t.closers, t.recheck(), stopOnLoss, func() { close(t.done) })
	return t, nil
}

// recheck starts a goroutine that makes the tail read the log after each silence. A server that dies after storing a
// chunk may not have published it. If that was the last chunk, no later chunk reveals the gap.
func (t *tail) recheck() (stop func()) {
	var pause recheckPause
	t.check = time.NewTimer(pause.next(false))
	go func() {
		for {
			select {
			case <-t.check.C:
				silent := !t.arrived.Swap(false)
				if silent {
					t.mayHaveMissed()
				}
				t.check.Reset(pause.next(silent))
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

// skipTo makes streams start at the given offsets.
func (t *tail) skipTo(offsets map[string]int64) {
	for stream, offset := range offsets {
		t.offset[stream] = offset
	}
}

func (t *tail) mayHaveMissed() { t.missing.Wake() }

// untilEnd waits for the end of the exec that a submission requests. The end may arrive before the answer to the
// request.
func (t *tail) untilEnd(ctx context.Context, sub *submission) (*Event, error) {
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
		case err := <-t.failure:
			return nil, err
		case k := <-t.live:
			if err := t.takeLive(k); err != nil {
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
		t.feed.coverFrom(reply.Exec.Sequence, reply.Exec.Record)
	}
}

// catchUpAndFollow waits for the end of an exec that was accepted before the tail subscribed.
func (t *tail) catchUpAndFollow(ctx context.Context, info *ExecInfo) (*Event, error) {
	info, err := t.newest(ctx, info)
	if err != nil {
		return nil, err
	}
	if info.State.Terminal() {
		return t.endOf(ctx, info)
	}
	t.feed.replay(info.Sequence, info.Record)
	if t.live != nil {
		t.mayHaveMissed()
	}
	for {
		select {
		case e := <-t.ended:
			return &e, nil
		case err = <-t.failure:
		case k := <-t.live:
			err = t.takeLive(k)
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

// newest reads the exec again. If no coordinator answers, it returns info, and the caller learns all later changes from
// the history.
func (t *tail) newest(ctx context.Context, info *ExecInfo) (*ExecInfo, error) {
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

// endOf reads the event that ended the exec from the log.
func (t *tail) endOf(ctx context.Context, info *ExecInfo) (*Event, error) {
	b, err := t.client.reads.AtRecord(ctx, info.Sandbox, info.Record)
	for isTransient(err) && backoff.Sleep(ctx, retryPause) { // NATS may be electing a leader
		b, err = t.client.reads.AtRecord(ctx, info.Sandbox, info.Record)
	}
	if err != nil {
		return nil, err
	}
	for i := range b.Events {
		if e := &b.Events[i]; b.Sandbox == info.Sandbox && e.Exec != nil && e.Exec.ID == info.ID && e.Exec.State.Terminal() {
			return e, nil
		}
	}
	return nil, protocol.Errorf(protocol.Internal, "",
		"exec %s: record %d does not contain the event that ended the exec", info.ID, info.Record)
}

// take passes the new part of a chunk to the sink. If bytes before the chunk are missing, take drops the chunk and
// requests a read of the log.
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
	fresh := k.Data[at-k.Offset:]
	if at == 0 {
		t.sums[k.Stream] = sha256.New()
	}
	if sum := t.sums[k.Stream]; sum != nil {
		sum.Write(fresh) // never fails
	}
	if err := t.sink.write(k.Stream, at, fresh); err != nil {
		return err
	}
	return t.takeAhead()
}

// takeAhead passes on the held chunks that are next in their stream.
func (t *tail) takeAhead() error {
	for i, k := range t.ahead {
		if k.Offset <= t.offset[k.Stream] {
			t.ahead = slices.Delete(t.ahead, i, i+1)
			return errors.Join(t.take(k), t.takeAhead())
		}
	}
	return nil
}

// readLog passes to the sink the output that the log has and the sink lacks.
func (t *tail) readLog(ctx context.Context) error {
	read, err := t.client.reads.Output(ctx, t.sandbox, t.exec, t.next, t.takeStored)
	t.next = read.Next
	if errors.Is(err, errEnough) {
		return nil
	}
	if err != nil {
		return err
	}
	t.feed.isOn(read.Host)
	return t.takeHeld()
}

// takeStored takes a chunk that was read from the log. The chunk says how much of each stream had been stored before
// it. If the missing bytes had been stored, they have expired.
func (t *tail) takeStored(k jetstream.Chunk) error {
	if at := t.offset[k.Stream]; k.Offset > at {
		stored := map[string]int64{Stdout: k.NextStdout, Stderr: k.NextStderr}[k.Stream]
		if stored > at || k.Offset > at+maxAhead {
			return outputNotKept(t.exec, k.Stream, at, k.Offset)
		}
		t.addAhead(k)
		return nil
	}
	if err := t.take(k); err != nil {
		return err
	}
	if t.satisfied() {
		return errEnough
	}
	return nil
}

// addAhead holds a chunk until the bytes before it arrive. maxAhead limits how far a chunk can be ahead.
func (t *tail) addAhead(k jetstream.Chunk) {
	known := func(a jetstream.Chunk) bool {
		return a.Stream == k.Stream && a.Offset == k.Offset && len(a.Data) >= len(k.Data)
	}
	if !slices.ContainsFunc(t.ahead, known) {
		t.ahead = append(t.ahead, k)
	}
}

// catchUp reads the log. If the log cannot be read now, catchUp schedules another attempt.
func (t *tail) catchUp(ctx context.Context) error {
	err := t.readLog(ctx)
	if isTransient(err) && backoff.Sleep(ctx, retryPause) {
		t.mayHaveMissed()
		return nil
	}
	return err
}

// satisfied reports whether the sink has all the existing output that it wants.
func (t *tail) satisfied() bool {
	for _, stream := range []string{Stdout, Stderr} {
		total, known := t.total[stream]
		if t.sink.wants(stream) && (!known || t.offset[stream] < total) {
			return false
		}
	}
	return true
}
