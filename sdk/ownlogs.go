package sdk

import (
	"context"
	"iter"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// Logs reads what the sandbox's own command printed, over all of its restarts: each stream in order and
// without repeat. Offsets count from the first byte that it ever printed. The host keeps the last
// MiB of each stream; if more comes before it is stored, output is lost, and the offsets jump. With follow
// the sequence goes on until the sandbox has failed or is deleted, or ctx ends. [Exec.Logs] reads what an
// exec prints, [Sandbox.ServiceLogs] what a service prints. Errors: not_found for an unknown sandbox;
// failed_precondition if it has no command of its own; unavailable or deadline_exceeded if the log cannot
// be read for [RequestTries] times the request timeout, unless it is followed.
func (s *Sandbox) Logs(ctx context.Context, follow bool) iter.Seq2[Chunk, error] {
	return func(yield func(Chunk, error) bool) {
		y := &yielder{yield: yield}
		err := s.Refresh(ctx)
		if err == nil && len(s.Info().Spec.Command) == 0 {
			err = protocol.Errorf(protocol.FailedPrecondition, "", "sandbox %s has no command of its own; the output of an exec is read by the exec's id", s.ID())
		}
		if err == nil {
			err = s.ownLogs(ctx, protocol.PrimaryLog, follow, y)
		}
		if err != nil && !y.stopped {
			yield(Chunk{}, failed(ctx, err, "read the output of the sandbox's command"))
		}
	}
}

// ServiceLogs reads what a service of the sandbox printed itself, over all of its restarts: each
// stream in order and without repeat. Offsets count from the first byte that it ever printed; where
// they jump, output was overrun before it could be kept: of each stream the host keeps the last MiB.
// With follow the sequence goes on with what comes until the sandbox has failed or is deleted, or ctx ends.
// Errors: not_found where there is no such sandbox; invalid_argument where it has no such service.
func (s *Sandbox) ServiceLogs(ctx context.Context, service string, follow bool) iter.Seq2[Chunk, error] {
	return func(yield func(Chunk, error) bool) {
		y := &yielder{yield: yield}
		err := s.Refresh(ctx)
		if info := s.Info(); err == nil {
			if _, known := info.Spec.Service(service); !known {
				err = protocol.Invalid("service", "the sandbox has no service %.80q", service)
			}
		}
		if err == nil {
			err = s.ownLogs(ctx, protocol.ServiceLog(service), follow, y)
		}
		if err != nil && !y.stopped {
			yield(Chunk{}, failed(ctx, err, "read the output of the service "+service))
		}
	}
}

// ownLogs reads the output of a container's own command, under its name in the log. The handle was
// refreshed.
func (s *Sandbox) ownLogs(ctx context.Context, log string, follow bool, y *yielder) error {
	c, info := s.client, s.Info()
	more := make(chan struct{}, 1)
	hear := func() {
		select {
		case more <- struct{}{}:
		default:
		}
	}
	deleted, watched := make(chan error, 1), make(chan struct{})
	if follow = follow && !silent(info.State); follow {
		stop, err := c.conn.LiveOutput(c.tenant, s.ID(), log, func(jetstream.Chunk) { hear() })
		if err != nil {
			return err
		}
		defer stop()
		stopOnLoss, err := c.conn.OnLoss(hear)
		if err != nil {
			return err
		}
		defer stopOnLoss()
		watching, cancel := context.WithCancel(ctx)
		defer func() { cancel(); <-watched }()
		go func() {
			defer close(watched)
			deleted <- c.untilSilent(watching, s.ID(), info.Sequence)
		}()
	}
	var pace pace
	recheck := time.NewTimer(pace.next(false)) // a server that dies takes along what it was about to pass on
	defer recheck.Stop()
	offset := map[string]int64{}
	away := time.Now().Add(c.logAway())
	for next, over := uint64(1), !follow; ; {
		var err error
		next, err = c.conn.ReadOutput(ctx, c.tenant, s.ID(), log, next, func(k jetstream.Chunk) error {
			skip := max(0, offset[k.Stream]-k.Offset)
			if skip >= int64(len(k.Data)) {
				return nil
			}
			offset[k.Stream] = k.Offset + int64(len(k.Data))
			y.at = k.At
			return y.write(k.Stream, k.Offset+skip, k.Data[skip:])
		})
		switch {
		case !isTransient(err):
			away = time.Now().Add(c.logAway())
		case over && ctx.Err() == nil && time.Now().After(away):
			return unread("sandbox "+s.ID(), err)
		case !isFinal(err) && pause(ctx, retryPause):
			continue
		}
		if err != nil || over {
			return err
		}
		select {
		case <-more:
			recheck.Reset(pace.next(false))
		case <-recheck.C:
			recheck.Reset(pace.next(true))
		case err := <-deleted:
			if err != nil {
				return err
			}
			over = true // what was printed until then is read once more
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// silent says whether nothing in a sandbox in this state will ever print again.
func silent(state protocol.SandboxState) bool {
	return state == protocol.StateFailed || state == protocol.StateDeleted
}

// untilSilent follows the events of a sandbox from one on until it has failed or is deleted.
func (c *Client) untilSilent(ctx context.Context, sandbox string, from uint64) error {
	for {
		var err error
		for e, failed := range c.Events(ctx, sandbox, from, true) {
			if err = failed; err != nil {
				break
			}
			if from = e.Sequence; silent(e.State) {
				return nil
			}
		}
		if !isTransient(err) || !pause(ctx, retryPause) {
			return err
		}
	}
}
