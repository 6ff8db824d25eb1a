package protocol

import "time"

// Checkup is the part of a coordinator's state that `boxfleet doctor` reads, in addition to [Ping] and the hosts.
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

	// Owed lists the work that is late, the oldest first: at most [MaxOwed] of the OwedCount items. OwedCount may be too
	// low if many sandboxes should stop or restart.
	Owed      []Owed `json:"owed,omitempty"`
	OwedCount int    `json:"owed_count,omitempty"`

	// Sealed says what is sealed to other fleet keys than the one to which clients seal now.
	Sealed []SealedTo `json:"sealed,omitempty"`
}

// SealedTo says how much is sealed to a fleet key. Users and viewers of a tenant see what is sealed for their tenant.
type SealedTo struct {
	Key       string `json:"key"`                 // public fleet key
	Missing   bool   `json:"missing,omitempty"`   // the coordinator lacks the key, so it cannot open the values
	Versions  int    `json:"versions,omitempty"`  // kept versions of secrets
	Sandboxes int    `json:"sandboxes,omitempty"` // living sandboxes that have sensitive variables, or execs with them
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

// OwedKind is the kind of a late step.
type OwedKind string

// The kinds of late steps.
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

	// FleetKey is the public fleet key to which the coordinator lets clients seal. [NoFleetKey]: it has none. Empty: a
	// coordinator of an earlier version, which does not say.
	FleetKey string `json:"fleet_key,omitempty"`
}

// NoFleetKey stands for the fleet key of a coordinator that has none.
const NoFleetKey = "none"
