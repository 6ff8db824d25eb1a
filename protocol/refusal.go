package protocol

import (
	"slices"
	"time"
)

const (
	// A host that refused a sandbox is passed over for refusalFirst, doubled with each refusal up to refusalMost.
	refusalFirst = 2 * time.Second
	refusalMost  = time.Minute

	// maxRefusals is how many hosts' refusals a sandbox remembers, the newest.
	maxRefusals = 16
)

// Refusal is that a host's worker had no room for a sandbox which was assigned to it.
type Refusal struct {
	HostID string    `json:"host_id"`
	Worker string    `json:"worker"`
	Reason string    `json:"reason"`          // of what it had too little
	Times  int       `json:"times,omitempty"` // so often, since the sandbox was last ready
	Until  time.Time `json:"until"`           // the host is passed over until then
}

// refused takes an assignment back. A sandbox that is resumed stays bound to its host.
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
	if !b.Resuming { // nothing was made there
		b.Worker, b.HostID = "", ""
	}
}

// replaced gives up what was made of a sandbox, so that it is made again on another host.
func (b *Sandbox) replaced(e *Event) {
	b.Assigned, b.Worker, b.HostID, b.Phase, b.Pull = false, "", "", "", nil
	b.Container, b.Subnet, b.Boot, b.Ports, b.ReadyAt = "", "", "", nil, time.Time{}
	b.Reason, b.Error, b.Refusals = e.Reason, nil, nil
	b.primaryOver(e)
	b.servicesStart(e.Time, false)
}
