package sdk

import (
	"sync/atomic"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// fleetStatus is the coordinators' latest report of why they decide nothing.
type fleetStatus struct {
	latest atomic.Pointer[report]
}

type report struct {
	waiting *Error // nil: they decide
	at      time.Time
}

func (s *fleetStatus) update(m *protocol.Status) {
	s.latest.Store(&report{waiting: m.Waiting, at: time.Now()})
}

// waiting is why coordinators decide no creates and execs now; nil if they do, or have not reported lately.
func (s *fleetStatus) waiting() *Error {
	r := s.latest.Load()
	if r == nil || time.Since(r.at) > protocol.StatusAge {
		return nil
	}
	return r.waiting
}

// refusal is the error of a create or exec that is not worth storing, because the log has no room for its events. Other
// requests go through: they free room. While the fleet is merely unavailable, all requests are stored.
func (s *fleetStatus) refusal(verb string) error {
	if verb != protocol.VerbCreate && verb != protocol.VerbExec {
		return nil
	}
	waiting := s.waiting()
	if waiting == nil || waiting.Code != protocol.ResourceExhausted {
		return nil
	}
	refusal := *waiting
	refusal.Message = "no " + verb + " is accepted now: " + waiting.Message
	return &refusal
}
