package protocol

import "time"

// HostWish is what an operator wants of a host, kept under the host's id until it is taken back or carried out.
type HostWish struct {
	Version  int         `json:"v"`
	HostID   string      `json:"host_id"`
	Worker   string      `json:"worker"`             // the name that the host had then
	Cordoned bool        `json:"cordoned,omitempty"` // it gets no new work
	Drain    *HostDrain  `json:"drain,omitempty"`    // what is on it goes
	Forget   *HostForget `json:"forget,omitempty"`   // it does not come back
	Time     time.Time   `json:"time"`
}

// HostDrain is the wish that what runs on a host ends or goes elsewhere.
type HostDrain struct {
	Since    time.Time `json:"since"`
	Deadline time.Time `json:"deadline,omitempty,omitzero"` // what still runs then is ended; zero: it is waited for
}

// HostForget is the wish that everything on a host is given up. Once it is Done it holds until the host comes
// back, or nothing is on it, since sandboxes that failed there may be deleted later.
type HostForget struct {
	Since   time.Time `json:"since"`
	Done    bool      `json:"done,omitempty"`
	Token   uint64    `json:"token,omitempty"`   // fencing token under which it was done: a worker with a greater one has come back
	Refused *Error    `json:"refused,omitempty"` // why it is not done
}

// Empty says whether nothing is wanted of the host.
func (w *HostWish) Empty() bool { return !w.Cordoned && w.Drain == nil && w.Forget == nil }
