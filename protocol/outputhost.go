package protocol

import (
	"slices"
	"time"
)

// LeftHost is a host that a sandbox was moved away from.
type LeftHost struct {
	HostID string    `json:"host_id"`
	Until  time.Time `json:"until"` // when the sandbox was moved
}

// maxLeft is the largest number of hosts in [State.Left]. Readers ask for the output of each of these hosts.
const maxLeft = 16

// leave records that the sandbox leaves its host.
func (s *State) leave(e *Event) {
	if s.Sandbox.HostID == "" {
		return
	}
	left := append(slices.Clone(s.Left), LeftHost{s.Sandbox.HostID, e.Time}) // clones of the state share the old list
	s.Left = left[max(0, len(left)-maxLeft):]
}

// OutputHost is a host whose worker may publish the output of a sandbox, with the period in which this is allowed.
type OutputHost struct {
	ID          string
	From, Until time.Time // by the store's clock; zero: no limit
}

// outputSlack extends the periods of both hosts around a move, because the time of the move and the time of stored
// output may come from the clocks of different servers.
const outputSlack = time.Minute

// Covers reports whether the host's worker could publish output at this time.
func (h OutputHost) Covers(at time.Time) bool {
	return !at.Before(h.From) && (h.Until.IsZero() || !at.After(h.Until))
}

// OutputHosts returns the sandbox's earlier hosts and its present host, in order. Output that another host publishes
// for the sandbox is forged. A host that the sandbox returned to is in the list more than once.
func (s *State) OutputHosts() []OutputHost {
	hosts := make([]OutputHost, 0, len(s.Left)+1)
	var from time.Time
	for _, left := range s.Left {
		hosts = append(hosts, OutputHost{left.HostID, from, left.Until.Add(outputSlack)})
		from = left.Until.Add(-outputSlack)
	}
	if id := s.Sandbox.HostID; id != "" {
		hosts = append(hosts, OutputHost{ID: id, From: from})
	}
	return hosts
}
