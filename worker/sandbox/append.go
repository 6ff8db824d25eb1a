package sandbox

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/decide"
)

// history lets the sandbox's services and execs read the sandbox's history and append to it.
type history struct{ s *Sandbox }

func (h history) View(read func(st *protocol.State)) {
	h.s.journal.View(func(st *protocol.State, _ uint64) { read(st) })
}

// Append calls choose with the newest state, and appends the events that choose returns. It returns
// decide.ErrSuperseded if choose returns no events, or if the sandbox is no longer assigned to this host in this
// generation.
func (h history) Append(ctx context.Context, generation uint64, choose decide.Decision) error {
	_, err := h.AppendEvents(ctx, generation, choose)
	return err
}

// AppendEvents does what Append does. It also returns the events as they are stored in the log, with their sequence
// numbers.
func (h history) AppendEvents(ctx context.Context, generation uint64, choose decide.Decision) (
	[]protocol.Event, error) {
	events, err := h.s.journal.Do(ctx, func(st *protocol.State, _ time.Time) ([]protocol.Event, error) {
		if err := h.s.host.Fence(); err != nil {
			return nil, err
		}
		return decide.Here(st, h.s.host.ID, generation, choose), nil
	})
	if err == nil && len(events) == 0 {
		return nil, decide.ErrSuperseded
	}
	return events, err
}

// Refresh reads the events that other writers have appended.
func (h history) Refresh(ctx context.Context) error { return h.s.journal.Refresh(ctx) }

func (h history) generation() (generation uint64) {
	h.View(func(st *protocol.State) { generation = st.Sandbox.Generation })
	return generation
}

func (s *Sandbox) history() history { return history{s} }

// append does what history.Append does.
func (s *Sandbox) append(ctx context.Context, generation uint64, choose decide.Decision) error {
	return s.history().Append(ctx, generation, choose)
}

// fail appends the events that end the sandbox's own command and its execs, and then the event sandbox.failed with the
// given error. If the disk watch stopped the sandbox, sandbox.failed has the disk watch's error instead.
func (s *Sandbox) fail(ctx context.Context, b *protocol.Sandbox, why *protocol.Error) error {
	if stopped := s.diskStop.noted(b.Generation); stopped != nil {
		why = stopped
	}
	s.log.Warn("the sandbox failed", "error", why)
	return s.append(ctx, b.Generation, func(st *protocol.State) []protocol.Event {
		return decide.Failed(st, s.conn.ownRun(), why)
	})
}
