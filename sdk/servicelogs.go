package sdk

import (
	"context"
	"iter"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// ServiceLogs reads what a service of the sandbox printed itself, over all of its restarts: each
// stream in order and without repeat. Offsets count from the first byte that it ever printed; where
// they jump, output was overrun before it could be kept: of each stream the host keeps the last MiB.
// With follow the sequence goes on with what comes until the sandbox is deleted, or ctx ends.
// Errors: not_found where there is no such sandbox; invalid_argument where it has no such service.
func (s *Sandbox) ServiceLogs(ctx context.Context, service string, follow bool) iter.Seq2[Chunk, error] {
	return func(yield func(Chunk, error) bool) {
		y := &yielder{yield: yield}
		if err := s.serviceLogs(ctx, service, follow, y); err != nil && !y.stopped {
			yield(Chunk{}, failed(ctx, err, "read the output of the service "+service))
		}
	}
}

func (s *Sandbox) serviceLogs(ctx context.Context, service string, follow bool, y *yielder) error {
	if err := s.Refresh(ctx); err != nil {
		return err
	}
	info := s.Info()
	if _, known := info.Spec.Service(service); !known {
		return protocol.Invalid("service", "the sandbox has no service %.80q", service)
	}
	c, log := s.client, protocol.ServiceLog(service)
	more := make(chan struct{}, 1)
	hear := func() {
		select {
		case more <- struct{}{}:
		default:
		}
	}
	deleted, watched := make(chan error, 1), make(chan struct{})
	if follow = follow && info.State != protocol.StateDeleted; follow {
		stop, err := c.conn.LiveOutput(c.tenant, s.id, log, func(jetstream.Chunk) { hear() })
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
			deleted <- c.untilDeleted(watching, s.id, info.Sequence)
		}()
	}
	var pace pace
	recheck := time.NewTimer(pace.next(false)) // a server that dies takes along what it was about to pass on
	defer recheck.Stop()
	offset := map[string]int64{}
	for next, over := uint64(1), !follow; ; {
		var err error
		next, err = c.conn.ReadOutput(ctx, c.tenant, s.id, log, next, func(k jetstream.Chunk) error {
			skip := max(0, offset[k.Stream]-k.Offset)
			if skip >= int64(len(k.Data)) {
				return nil
			}
			offset[k.Stream] = k.Offset + int64(len(k.Data))
			return y.write(k.Stream, k.Offset+skip, k.Data[skip:])
		})
		if isTransient(err) && pause(ctx, retryPause) {
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

// untilDeleted follows the events of a sandbox from one on until it is deleted.
func (c *Client) untilDeleted(ctx context.Context, sandbox string, from uint64) error {
	for {
		var err error
		for e, failed := range c.Events(ctx, sandbox, from, true) {
			if err = failed; err == nil {
				from = e.Sequence
			}
		}
		if !isTransient(err) || !pause(ctx, retryPause) {
			return err
		}
	}
}
