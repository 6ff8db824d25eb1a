package protocol

import "time"

// OperatorIntent holds an operator's requests for a host: cordon, drain and forget. It is stored under the host's id
// until the operator withdraws the requests or a coordinator has carried them out.
type OperatorIntent struct {
	Version  int         `json:"v"`
	HostID   string      `json:"host_id"`
	Worker   string      `json:"worker"`             // the host's name when the intent was recorded
	Cordoned bool        `json:"cordoned,omitempty"` // the host gets no new work
	Drain    *HostDrain  `json:"drain,omitempty"`    // move or end what runs on the host
	Forget   *HostForget `json:"forget,omitempty"`   // give the host up for good
	Time     time.Time   `json:"time"`
}

// HostDrain is the intent to move or end everything that runs on a host.
type HostDrain struct {
	Since time.Time `json:"since"`
	// Deadline is when the drain ends everything that still runs. Zero: the drain waits until everything has ended.
	Deadline time.Time `json:"deadline,omitempty,omitzero"`
}

// HostForget is the intent to give up everything on a host. After Done is set, the intent is kept until the host comes
// back or has no sandbox assigned. Until then, coordinators need the intent for sandboxes that failed on the host and
// are deleted later.
type HostForget struct {
	Since time.Time `json:"since"`
	Done  bool      `json:"done,omitempty"`
	// Token is the fencing token under which the host was forgotten. If a worker has a greater token, the host has come
	// back.
	Token   uint64 `json:"token,omitempty"`
	Refused *Error `json:"refused,omitempty"` // why the host cannot be forgotten yet
}

// Empty reports whether the operator has requested nothing for the host.
func (w *OperatorIntent) Empty() bool { return !w.Cordoned && w.Drain == nil && w.Forget == nil }
