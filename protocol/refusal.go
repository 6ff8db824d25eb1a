package protocol

import (
	"slices"
	"time"
)

const (
	// After a host has refused a sandbox, placement skips the host for refusalFirst. Each further refusal doubles the
	// time, up to refusalMost.
	refusalFirst = 2 * time.Second
	refusalMost  = time.Minute

	// maxRefusals is the number of hosts whose last refusal a sandbox remembers.
	maxRefusals = 16
)

// Refusal records that a worker had no room for a sandbox assigned to it.
type Refusal struct {
	HostID string    `json:"host_id"`
	Worker string    `json:"worker"`
	Reason string    `json:"reason"`          // which resource was short
	Times  int       `json:"times,omitempty"` // number of refusals since the sandbox was last ready
	Until  time.Time `json:"until"`           // placement skips the host until then
}

// refused revokes the assignment. A sandbox that is being resumed stays bound to its host.
func (b *Sandbox) refused(e *Event) {
	r := Refusal{HostID: b.HostID, Worker: b.Worker, Times: 1, Until: e.Time}
	if e.Error != nil {
		r.Reason = e.Error.Message
	}
	kept := make([]Refusal, 0, len(b.Refusals)+1) // a clone of the state shares the list
	for _, before := range b.Refusals {
		if before.HostID == r.HostID {
			r.Times += before.Times
		} else {
			kept = append(kept, before)
		}
	}
	pause := refusalMost
	if r.Times <= 5 {
		pause = min(refusalFirst<<(r.Times-1), refusalMost)
	}
	r.Until = e.Time.Add(pause)
	kept = append(kept, r)
	b.Refusals = slices.Clone(kept[max(0, len(kept)-maxRefusals):])
	b.Assigned, b.Phase, b.Pull = false, "", nil
	if !b.Resuming { // the sandbox has nothing on the host
		b.Worker, b.HostID = "", ""
	}
}

// replaced clears everything that describes the old host, so that the sandbox is created on another host.
func (b *Sandbox) replaced(e *Event) {
	b.Assigned, b.Worker, b.HostID, b.Phase, b.Pull = false, "", "", "", nil
	b.Container, b.Subnet, b.Boot, b.Ports, b.ReadyAt = "", "", "", nil, time.Time{}
	b.Reason, b.Error, b.Refusals = e.Reason, nil, nil
	b.primaryEnded(e)
	b.servicesStart(e.Time, false)
}
