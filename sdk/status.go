package sdk

import (
	"sync/atomic"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// status is why coordinators do not decide, as they last said it.
type status struct {
	last atomic.Pointer[said]
}

type said struct {
	why *protocol.Error
	at  time.Time
}

func (s *status) hear(m *protocol.Status) { s.last.Store(&said{why: m.Waiting, at: time.Now()}) }

// waits is why coordinators decide no creates and execs now, nil where they do, or say nothing.
func (s *status) waits() *protocol.Error {
	h := s.last.Load()
	if h == nil || time.Since(h.at) > protocol.StatusAge {
		return nil
	}
	return h.why
}

// refuses is the error of a request that need not be stored, since the log has no room for its events.
// Requests that end something are taken. While the fleet only does not answer, all are.
func (s *status) refuses(verb string) error {
	if verb != protocol.VerbCreate && verb != protocol.VerbExec {
		return nil
	}
	why := s.waits()
	if why == nil || why.Code != protocol.ResourceExhausted {
		return nil
	}
	refused := *why
	refused.Message = verb + " is not taken: " + why.Message
	return &refused
}
