package sdk

import (
	"sync/atomic"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// fleetStatus holds the coordinators' latest report on whether they decide requests.
type fleetStatus struct {
	latest atomic.Pointer[report]
}

type report struct {
	waiting *Error // why coordinators decide no requests; nil: they decide requests
	at      time.Time
}

func (s *fleetStatus) update(m *protocol.Status) {
	s.latest.Store(&report{waiting: m.Waiting, at: time.Now()})
}

// waiting returns why coordinators decide no creates and execs now. It returns nil if they do decide, or if their last
// report is too old.
func (s *fleetStatus) waiting() *Error {
	r := s.latest.Load()
	if r == nil || time.Since(r.at) > protocol.StatusAge {
		return nil
	}
	return r.waiting
}

// refusal returns an error if the event log is full and the request is a create or an exec: the client does not send
// such a request. It sends all other requests, because they free room. While the log is not full, refusal returns nil,
// even if coordinators decide no requests.
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
