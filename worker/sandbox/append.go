package sandbox

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/decide"
)

// history is the sandbox's history as its services and execs use it.
type history struct{ s *Sandbox }

func (h history) View(read func(st *protocol.State)) {
	h.s.journal.View(func(st *protocol.State, _ uint64) { read(st) })
}

// Append appends what choose returns for the newest state, if the sandbox is still this host's in this generation. It
// returns decide.ErrSuperseded if choose returns nothing.
func (h history) Append(ctx context.Context, generation uint64, choose decide.Decision) error {
	_, err := h.appendEvents(ctx, generation, choose)
	return err
}

// appendEvents appends as Append does, and returns the events as they are in the log.
func (h history) appendEvents(ctx context.Context, generation uint64, choose decide.Decision) (
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

func (h history) generation() (generation uint64) {
	h.View(func(st *protocol.State) { generation = st.Sandbox.Generation })
	return generation
}

func (s *Sandbox) history() history { return history{s} }

// append is history.Append.
func (s *Sandbox) append(ctx context.Context, generation uint64, choose decide.Decision) error {
	return s.history().Append(ctx, generation, choose)
}

// fail appends that the sandbox failed, and before it the end of its execs.
func (s *Sandbox) fail(ctx context.Context, b *protocol.Sandbox, why *protocol.Error) error {
	if stopped := s.diskStop.noted(b.Generation); stopped != nil {
		why = stopped
	}
	s.log.Warn("the sandbox failed", "error", why)
	return s.append(ctx, b.Generation, func(st *protocol.State) []protocol.Event {
		return decide.Failed(st, s.conn.ownRun(), why)
	})
}
