package sandbox

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/attach"
	"github.com/boxfleet/boxfleet/worker/decide"
)

const (
	reachTimeout = 10 * time.Second      // how long to wait for a supervisor to connect
	reachPeriod  = 50 * time.Millisecond // pause between two checks
)

// Reach waits until the supervisor of a service's container, or of the primary container if service is "", is
// connected, and returns the connection. It waits at most 10 s. Errors: invalid_argument with field service if the
// sandbox has no such service; failed_precondition if the sandbox is not ready, is not on this host, or the host's lock
// is not held; unavailable if the container does not run or its supervisor does not connect.
func (s *Sandbox) Reach(ctx context.Context, service string) (*attach.Attachment, error) {
	until := time.Now().Add(reachTimeout)
	for {
		if err := reachableNow(ctx, s, service); err != nil {
			return nil, err
		}
		if a := s.conn.attachmentOf(service); a != nil {
			return a, nil
		}
		if time.Now().After(until) || !backoff.Sleep(ctx, reachPeriod) {
			what := "the sandbox"
			if service != "" {
				what = "service " + service
			}
			return nil, protocol.Errorf(protocol.Unavailable, protocol.ReasonSupervisorUnhealthy,
				"the container of %s does not run now, or its supervisor is not connected", what)
		}
	}
}

// reachableNow is like reachable, but reads the log before it says that the sandbox is not ready: the client may have
// seen the event before the answer to the worker's own append has arrived.
func reachableNow(ctx context.Context, s *Sandbox, service string) error {
	err := s.reachable(service)
	if err == nil || protocol.AsError(err).Reason != protocol.ReasonSandboxNotReady {
		return err
	}
	if err := s.journal.Refresh(ctx); err != nil {
		return err
	}
	return s.reachable(service)
}

// reachable returns why clients may not work in the sandbox now, or nil.
func (s *Sandbox) reachable(service string) error {
	if err := s.host.Fence(); err != nil {
		return err
	}
	var err error
	s.journal.View(func(st *protocol.State, _ uint64) {
		b := &st.Sandbox
		if left := s.left(b); left != nil {
			err = left
			return
		}
		if _, known := b.Services[service]; service != "" && !known {
			err = protocol.Invalid("service", "the sandbox has no service %.80q", service)
		}
	})
	return err
}

// Left returns why the sandbox does not run on this host any more, or is about to end; nil: it should run.
func (s *Sandbox) Left() (why *protocol.Error) {
	s.journal.View(func(st *protocol.State, _ uint64) { why = s.left(&st.Sandbox) })
	return why
}

// left returns why nobody may work in the sandbox on this host, or nil.
func (s *Sandbox) left(b *protocol.Sandbox) *protocol.Error {
	refuse := func(reason, why string) *protocol.Error {
		return protocol.Errorf(protocol.FailedPrecondition, reason, "sandbox %s %s", s.key.ID, why)
	}
	switch {
	case b.State == protocol.StateNone, b.HostID != s.host.ID:
		return refuse(protocol.ReasonNotHere, "is not on worker "+s.host.Worker)
	case b.State == protocol.StateDeleting, b.State == protocol.StateDeleted, b.Desired == protocol.StateDeleted:
		return refuse(protocol.ReasonSandboxDeleted, "was deleted")
	case b.State == protocol.StateFailed, b.Desired == protocol.StateFailed:
		return refuse(protocol.ReasonSandboxFailed, "has failed")
	case b.State == protocol.StateStopped, b.State == protocol.StateReady && b.Desired == protocol.StateStopped:
		return refuse(protocol.ReasonSandboxStopped, "is stopped: resume it first")
	case b.State != protocol.StateReady:
		return refuse(protocol.ReasonSandboxNotReady, "is "+string(b.State)+": wait until it is ready")
	}
	return nil
}

// Used appends an event that says how clients use streams into the sandbox. Errors: decide.ErrSuperseded if the sandbox
// is not on this host any more; those of an append.
func (s *Sandbox) Used(ctx context.Context, uses []protocol.StreamUse) error {
	h := s.history()
	return h.Append(ctx, h.generation(), func(st *protocol.State) []protocol.Event { return decide.Used(st, uses) })
}

// IdleTTL returns how long the sandbox may be without activity before it is stopped; 0: for ever.
func (s *Sandbox) IdleTTL() (ttl time.Duration) {
	s.history().View(func(st *protocol.State) { ttl = st.Sandbox.Spec.IdleTTL.Std() })
	return ttl
}
