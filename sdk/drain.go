package sdk

import (
	"context"
	"encoding/hex"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

const (
	// drainIdle is how long a tail waits for the next live chunk of an ended exec before it reads the log. Chunks and
	// events arrive on different subscriptions: live chunks may come after the event that ended the exec.
	drainIdle = 50 * time.Millisecond
	// maxLogLag is how long the log may lack output of an exec that has ended. The replica that answers a read may lag
	// behind.
	maxLogLag = 5 * time.Second
)

// drain passes the remaining output of an ended exec to the sink. It then checks the hashes of the streams that were
// read completely.
func (t *tail) drain(ctx context.Context, e *Event) error {
	d := e.Exec
	if d.Inline {
		for _, k := range []jetstream.Chunk{{Stream: Stdout, Data: d.Stdout}, {Stream: Stderr, Data: d.Stderr}} {
			if err := t.take(k); err != nil {
				return err
			}
		}
		return t.checkEnd(d)
	}
	t.total = map[string]int64{Stdout: d.StdoutBytes, Stderr: d.StderrBytes}
	if err := t.drainLive(ctx); err != nil {
		return err
	}
	if err := t.drainLog(ctx); err != nil {
		return err
	}
	return t.checkEnd(d)
}

// drainLive takes live chunks until the output is complete or no chunk arrives for drainIdle.
func (t *tail) drainLive(ctx context.Context) error {
	if t.live == nil {
		return nil
	}
	idle := time.NewTimer(drainIdle)
	defer idle.Stop()
	for !t.satisfied() {
		select {
		case k := <-t.live:
			if err := t.takeLive(k); err != nil {
				return err
			}
			idle.Reset(drainIdle)
		case <-idle.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// drainLog reads the log until the output is complete.
func (t *tail) drainLog(ctx context.Context) error {
	return t.readUntil(ctx, t.satisfied, func() error {
		return protocol.Errorf(protocol.OutOfRange, protocol.ReasonOutputNotKept,
			"exec %s: the output after byte %d of stdout and %d of stderr is no longer kept",
			t.exec, t.offset[Stdout], t.offset[Stderr])
	})
}

// readKept passes to the sink the output of a running exec that the log has now. If the log lacks bytes before the
// output that it has, the missing bytes may be stored a little later: see [jetstream.OutputWindow].
func (t *tail) readKept(ctx context.Context) error {
	read := false
	complete := func() bool {
		first := !read
		read = true
		return !first && len(t.ahead) == 0 || !t.sink.wants(Stdout) && !t.sink.wants(Stderr)
	}
	return t.readUntil(ctx, complete, func() error {
		k := t.ahead[0]
		return outputNotKept(t.exec, k.Stream, t.offset[k.Stream], k.Offset)
	})
}

// readUntil reads the log repeatedly until the function enough returns true. If the log gets nothing new for maxLogLag,
// readUntil returns the error of the function missing.
func (t *tail) readUntil(ctx context.Context, enough func() bool, missing func() error) error {
	within := t.client.giveUpAfter()
	deadline, giveUp := time.Now().Add(maxLogLag), time.Now().Add(within)
	for interval := 10 * time.Millisecond; !enough(); interval *= 2 {
		before := t.next
		err := t.readLog(ctx)
		if !isTransient(err) {
			giveUp = time.Now().Add(within)
		}
		switch {
		case err != nil && (!isTransient(err) || isFinal(err)):
			return err
		case err != nil && ctx.Err() == nil && time.Now().After(giveUp):
			return unreadable("exec "+t.exec, err)
		case err != nil: // an error does not mean that the log lags: NATS may be electing a leader
			if !backoff.Sleep(ctx, retryPause) {
				return ctx.Err()
			}
			deadline = time.Now().Add(maxLogLag)
		case t.next != before:
			deadline = time.Now().Add(maxLogLag)
		case time.Now().After(deadline):
			return missing()
		case !enough() && !backoff.Sleep(ctx, interval):
			return ctx.Err()
		}
	}
	return nil
}

// checkEnd compares the streams that were read with their hashes in the exec's last event.
func (t *tail) checkEnd(d *protocol.ExecDetails) error {
	if err := t.checkOffsets(d); err != nil {
		return err
	}
	if err := t.checkHash(Stdout, d.StdoutBytes, d.StdoutSHA256); err != nil {
		return err
	}
	return t.checkHash(Stderr, d.StderrBytes, d.StderrSHA256)
}

// checkHash compares a stream that was read completely with its hash in the exec's last event, if the event has one.
func (t *tail) checkHash(stream string, size int64, want string) error {
	sum := t.sums[stream]
	if want == "" || sum == nil || t.offset[stream] != size {
		return nil
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != want {
		return protocol.Errorf(protocol.Internal, protocol.ReasonOutputDiffers,
			"the %s of exec %s is not what its worker published: %d bytes with the SHA-256 %s arrived, but the exec's "+
				"last event has %s; do not use this output, and ask an operator to check who wrote it", stream, t.exec,
			size, got, want)
	}
	return nil
}

// checkOffsets refuses offsets beyond the end of a stream. Only [WithOffset] can ask for such an offset.
func (t *tail) checkOffsets(d *protocol.ExecDetails) error {
	for stream, size := range map[string]int64{Stdout: d.StdoutBytes, Stderr: d.StderrBytes} {
		if at := t.offset[stream]; at > size {
			return protocol.Errorf(protocol.OutOfRange, protocol.ReasonSequenceBeyondEnd,
				"there is no byte %d of %s: exec %s wrote %d bytes", at, stream, t.exec, size)
		}
	}
	return nil
}

func outputNotKept(exec, stream string, from, to int64) error {
	return protocol.Errorf(protocol.OutOfRange, protocol.ReasonOutputNotKept,
		"exec %s: bytes %d to %d of %s are no longer kept; the next byte that is kept is %d",
		exec, from, to, stream, to)
}

// unreadable returns the error of a call that gave up reading the log of output.
func unreadable(what string, err error) error {
	e := *protocol.AsError(err)
	e.Message = "the output of " + what + " is missing: its log cannot be read: " + e.Message
	return &e
}
