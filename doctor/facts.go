package doctor

import (
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
)

// Facts is what `boxfleet doctor` has learned about a fleet. A part that could not be read is nil, and the field after
// it has the error. An error of code permission_denied means that the credentials do not show this part.
type Facts struct {
	Version string    // version of this program
	Wall    time.Time // the time by this machine's clock
	You     You

	Servers []Certificate // certificates of the NATS servers that the client's URLs name and that use TLS
	Own     *Certificate  // certificate that the client shows to NATS servers; nil: none

	NotConnected *protocol.Error // why there is no connection to NATS; nil: connected

	Ping   *protocol.Ping
	NoPing *protocol.Error
	Skew   time.Duration // least possible lead of this machine's clock over the store's; 0: unknown, or right

	Checkup   *protocol.Checkup
	NoCheckup *protocol.Error

	Hosts   []*protocol.Host
	NoHosts *protocol.Error

	Coordinators   []protocol.CoordinatorInfo
	NoCoordinators *protocol.Error
}

// now returns the time of the store's clock if it is known, else that of this machine.
func (f *Facts) now() time.Time {
	if f.Ping != nil {
		return f.Ping.Time
	}
	return f.Wall
}

// Certificate describes a certificate for TLS.
type Certificate struct {
	Of          string // host and port of the server, or the client's file
	Names       []string
	From, Until time.Time // when it begins and ends to be valid
	Misname     string    // name that the certificate should have but lacks; empty: it has the name
}

// You is the client, as its credentials describe it.
type You struct {
	// Login says how the client proves who it is: with credentials, a token, a password, or nothing.
	Login string `json:"login"`

	Role    rights.Role `json:"role,omitempty"` // empty: `boxfleet auth` did not make the credentials
	Name    string      `json:"name,omitempty"`
	Tenant  string      `json:"tenant,omitempty"` // the tenant that the client works in
	Issued  time.Time   `json:"issued,omitempty,omitzero"`
	Expires time.Time   `json:"expires,omitempty,omitzero"` // zero: never, or unknown
	May     []string    `json:"may,omitempty"`              // the role's rights, as docs/rights.md explains them
}

// Values of [You.Login].
const (
	LoginCredentials = "credentials"
	LoginToken       = "token"
	LoginPassword    = "password"
	LoginNKey        = "nkey"
	LoginNone        = "none"
)

// MayOf returns what a role may do, in words.
func MayOf(role rights.Role) (may []string) {
	for _, row := range rights.Table() {
		if row.Role == role {
			may = append(may, row.Why)
		}
	}
	return may
}
