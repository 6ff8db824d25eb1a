package sdk

import (
	"context"
	"iter"
	"sync/atomic"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/wake"
)

// Logs reads the output of the sandbox's own command or, with [WithService], of a service, across all restarts: each
// stream in order and without repeat. Offsets count from the first byte ever printed. The host buffers the last MiB of
// each stream until that output is stored. If a command prints more in the meantime, output is lost, and the offsets
// skip the lost bytes.
//
// With [WithFollow] the sequence continues until the sandbox has failed or is deleted, also during outages of NATS. It
// also ends when ctx ends or after the first error. [Exec.Output] reads what an exec prints.
//
// Options: [WithFollow], [WithOffset], [WithService]. Errors: not_found; failed_precondition if the sandbox has no
// command of its own; invalid_argument if it has no such service; unavailable or deadline_exceeded if the log cannot be
// read for [RequestTries] times the request timeout, unless it is followed.
func (s *Sandbox) Logs(ctx context.Context, opts ...LogsOption) iter.Seq2[Chunk, error] {
	o := settingsOf(opts, LogsOption.forLogs)
	what := "the sandbox's command"
	if o.service != "" {
		what = "the service " + o.service
	}
	return func(yield func(Chunk, error) bool) {
		y := &yielder{yield: yield}
		log, err := logName(ctx, s, o)
		if err == nil {
			err = readLog(ctx, s, log, o, y)
		}
		if err != nil && !y.stopped {
			yield(Chunk{}, failed(ctx, err, "read the output of "+what))
		}
	}
}

// logName refreshes the handle and returns the name of the requested output in the log of output.
func logName(ctx context.Context, s *Sandbox, o *settings) (string, error) {
	if err := o.checkReading(); err != nil {
		return "", err
	}
	if err := s.Refresh(ctx); err != nil {
		return "", err
	}
	info := s.Info()
	if o.service == "" {
		if len(info.Spec.Command) == 0 {
			return "", protocol.Errorf(protocol.FailedPrecondition, "",
				"sandbox %s has no command of its own; to read the output of an exec, name the exec by its id", info.ID)
		}
		return protocol.PrimaryLog, nil
	}
	if _, known := info.Spec.Service(o.service); !known {
		return "", protocol.Invalid("service", "the sandbox has no service %.80q", o.service)
	}
	return protocol.ServiceLog(o.service), nil
}

// LogsPage does the same as [Exec.OutputPage] for the output of the sandbox's own command or, with [WithService], of a
// service.
func (s *Sandbox) LogsPage(ctx context.Context, stream string, offset int64, limit int, opts ...LogsPageOption) (
	*OutputPage, error) {
	o := settingsOf(opts, LogsPageOption.forLogsPage)
	reply, err := s.client.query(ctx, protocol.EndpointOutput,
		protocol.Query{Sandbox: s.ID(), Service: o.service, Stream: stream, Offset: offset, Limit: limit})
	if err != nil {
		return nil, err
	}
	return reply.Output, nil
}

// logReader reads the output of a container's own command.
type logReader struct {
	client       *Client
	sandbox, log string
	sink         *yielder
	next         uint64           // record of the log to continue from
	offset       map[string]int64 // offset of the next byte of each stream

	host    atomic.Pointer[string] // id of the host that the sandbox is on; nil: unknown
	asked   atomic.Int64           // when output from another host last made the reader read the log; nanoseconds
	changed wake.Signal            // the log may have more output
	ended   chan error             // gets nil once the sandbox will print no more
	closers []func()
}

// readLog reads a log of the sandbox, whose handle has just been refreshed.
func readLog(ctx context.Context, s *Sandbox, log string, o *settings, y *yielder) error {
	info := s.Info()
	r := &logReader{client: s.client, sandbox: info.ID, log: log, sink: y, next: 1, offset: map[string]int64{},
		changed: wake.New(), ended: make(chan error, 1)}
	for stream, offset := range o.offsets {
		r.offset[stream] = offset
	}
	if !o.follow || isSilent(info.State) {
		return r.readToEnd(ctx)
	}
	defer r.close()
	if err := r.subscribe(ctx, info.Sequence); err != nil {
		return err
	}
	return r.follow(ctx)
}

// subscribe starts watching for new output and for the end of the sandbox.
func (r *logReader) subscribe(ctx context.Context, sequence uint64) error {
	stop, err := r.client.conn.LiveOutput(r.client.tenant, r.sandbox, r.log, r.heard)
	if err != nil {
		return err
	}
	r.closers = append(r.closers, stop)
	stopOnLoss := r.client.onLoss(r.changed.Wake)
	watching, cancel := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		r.ended <- untilSilent(watching, r.client, r.sandbox, sequence)
	}()
	r.closers = append(r.closers, stopOnLoss, func() { cancel(); <-watched })
	return nil
}

// heard wakes the reader. Output from another host than the sandbox's may be forged, so such output wakes the reader at
// most once in otherHostPause.
func (r *logReader) heard(host string, _ jetstream.Chunk) {
	if known := r.host.Load(); known != nil && *known != host {
		now, last := time.Now().UnixNano(), r.asked.Load()
		if now-last < int64(otherHostPause) || !r.asked.CompareAndSwap(last, now) {
			return
		}
	}
	r.changed.Wake()
}

func (r *logReader) close() {
	for i := len(r.closers) - 1; i >= 0; i-- {
		r.closers[i]()
	}
}

// read passes to the sink the output that the log has and the sink lacks.
func (r *logReader) read(ctx context.Context) error {
	read, err := r.client.reads.Output(ctx, r.sandbox, r.log, r.next, func(k jetstream.Chunk) error {
		skip := max(0, r.offset[k.Stream]-k.Offset)
		if skip >= int64(len(k.Data)) {
			return nil
		}
		r.offset[k.Stream] = k.Offset + int64(len(k.Data))
		r.sink.at = k.At
		return r.sink.write(k.Stream, k.Offset+skip, k.Data[skip:])
	})
	r.next = read.Next
	if read.Host != "" {
		r.host.Store(&read.Host)
	}
	return err
}

// readToEnd reads the log to its present end. If the log cannot be read, it retries for giveUpAfter.
func (r *logReader) readToEnd(ctx context.Context) error {
	for giveUp := time.Now().Add(r.client.giveUpAfter()); ; {
		err := r.read(ctx)
		switch {
		case !isTransient(err):
			return err
		case ctx.Err() == nil && time.Now().After(giveUp):
			return unreadable("sandbox "+r.sandbox, err)
		case isFinal(err) || !backoff.Sleep(ctx, retryPause):
			return err
		}
	}
}

// follow reads the log again after each change until the sandbox has ended.
func (r *logReader) follow(ctx context.Context) error {
	var interval recheckPause
	recheck := time.NewTimer(interval.next(false)) // a server that dies may have stored output without publishing it
	defer recheck.Stop()
	for {
		err := r.read(ctx)
		if isTransient(err) && !isFinal(err) && backoff.Sleep(ctx, retryPause) {
			continue
		}
		if err != nil {
			return err
		}
		select {
		case <-r.changed:
			recheck.Reset(interval.next(false))
		case <-recheck.C:
			recheck.Reset(interval.next(true))
		case err := <-r.ended:
			if err != nil {
				return err
			}
			return r.readToEnd(ctx)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// isSilent reports whether a sandbox in this state will never print again.
func isSilent(state SandboxState) bool {
	return state == protocol.StateFailed || state == protocol.StateDeleted
}

// untilSilent follows a sandbox's events, starting with the event that has the number from, until the sandbox has
// failed or is deleted.
func untilSilent(ctx context.Context, c *Client, sandbox string, from uint64) error {
	for {
		var err error
		for e, failed := range eventsOf(ctx, c, sandbox, from, true) {
			if err = failed; err != nil {
				break
			}
			if from = e.Sequence; isSilent(e.State) {
				return nil
			}
		}
		if !isTransient(err) || !backoff.Sleep(ctx, retryPause) {
			return err
		}
	}
}
