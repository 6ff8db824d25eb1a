package protocol

import "time"

// Checkup is what a coordinator tells `boxfleet doctor`, in addition to [Ping] and the hosts.
type Checkup struct {
	Server     string `json:"server"`      // version of the coordinator's NATS server
	MaxPayload Bytes  `json:"max_payload"` // size limit of a message on that server

	Cluster string `json:"cluster,omitempty"` // name of the cluster of this server; empty: it is alone

	// SyncAlways says that this server writes to disk before it acknowledges. False: unknown.
	SyncAlways bool `json:"sync_always,omitempty"`

	Leaderless bool `json:"leaderless,omitempty"` // no coordinator leads, so nothing is placed

	// CredentialsExpire is when NATS stops accepting the coordinator's credentials; zero: never, or it has none.
	// CredentialsIssued is when they were made; zero: unknown.
	CredentialsExpire time.Time `json:"credentials_expire,omitempty,omitzero"`
	CredentialsIssued time.Time `json:"credentials_issued,omitempty,omitzero"`

	// Owed lists what is owed for too long, the oldest first, at most [MaxOwed] items of OwedCount. OwedCount may be too low
	// if many sandboxes should stop or restart.
	Owed      []Owed `json:"owed,omitempty"`
	OwedCount int    `json:"owed_count,omitempty"`
}

// MaxOwed is how many items a [Checkup] lists.
const MaxOwed = 20

// Owed is something that the fleet should have done for a sandbox by now.
type Owed struct {
	Kind    OwedKind  `json:"kind"`
	Tenant  string    `json:"tenant"`
	Sandbox string    `json:"sandbox"`
	Exec    string    `json:"exec,omitempty"`
	Worker  string    `json:"worker,omitempty"` // empty: the sandbox has no host
	Since   time.Time `json:"since"`            // since when it is owed
}

// OwedKind says what is owed.
type OwedKind string

// The kinds of what is owed.
const (
	OwedPlacement OwedKind = "placement"  // a pending sandbox has no host
	OwedCreate    OwedKind = "create"     // its worker has not made it ready
	OwedRestart   OwedKind = "restart"    // a ready sandbox waits for the restart of its container
	OwedStop      OwedKind = "stop"       // its worker has not stopped it
	OwedDelete    OwedKind = "delete"     // its worker has not removed it
	OwedExecStart OwedKind = "exec_start" // an accepted exec has not started
	OwedExecEnd   OwedKind = "exec_end"   // an exec has not ended although its timeout has passed
)

// CoordinatorInfo is the name and the version of a coordinator that runs. The version is a semantic version: that of a
// build without one is 0.0.0, with the build's name after a plus sign.
type CoordinatorInfo struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}
