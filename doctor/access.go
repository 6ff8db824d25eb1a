package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
)

// access examines the credentials of the client, its connection, and what it may read.
func (e *examination) access() {
	e.certificates()
	if why := e.NotConnected; why != nil {
		e.notConnected(why)
		return
	}
	you := e.You
	if expiresSoon(you.Issued, you.Expires, e.now()) {
		e.find(AccessExpires, you.Name, "the credentials of this client %s", left(you.Expires, e.now()))
	}
	if you.Login != LoginCredentials {
		e.find(AccessOpen, "", "this client connects with %s: nothing says who it is and what it may do", loginOf(you.Login))
	}
	if why := e.NoPing; why != nil {
		if why.Code == protocol.PermissionDenied {
			e.find(AccessDenied, "", "NATS accepts the client, but not its questions: %s", why.Message)
		} else {
			e.find(CoordinatorSilent, "", "no coordinator answers: %s", why.Message)
		}
		return
	}
	e.hidden()
}

func (e *examination) notConnected(why *protocol.Error) {
	switch {
	case why.Code == protocol.PermissionDenied:
		e.find(AccessRefused, "", "%s", why.Message)
	case why.Reason == protocol.ReasonServerCertificate && e.saysWhy():
	case why.Reason == protocol.ReasonServerSettings, why.Reason == protocol.ReasonServerCertificate:
		e.find(NATSSettings, "", "%s", why.Message)
	default:
		e.find(NATSUnreachable, "", "%s", why.Message)
	}
}

// certificateWarning is how long before its expiry a certificate is reported, unless more than a third of its life is
// left.
const certificateWarning = 30 * 24 * time.Hour

// certificates examines the certificates of NATS servers and of the client, by the clock of this machine, as TLS does.
func (e *examination) certificates() {
	for _, c := range e.Servers {
		switch left := c.Until.Sub(e.Wall); {
		case left <= 0:
			e.find(NATSCertificateExpired, c.Of, "the certificate of NATS server %s expired at %s", c.Of,
				c.Until.Format(time.RFC3339))
		case e.Wall.Before(c.From):
			e.find(NATSCertificateExpired, c.Of, "the certificate of NATS server %s is not valid before %s", c.Of,
				c.From.Format(time.RFC3339))
		case c.endsSoon(left):
			e.find(NATSCertificateExpires, c.Of, "the certificate of NATS server %s expires in %s", c.Of, days(left))
		}
		if c.Misname != "" {
			names := "no name"
			if len(c.Names) > 0 {
				names = strings.Join(c.Names, ", ")
			}
			e.find(NATSCertificateName, c.Of, "the certificate of NATS server %s is not for %s: it has %s", c.Of, c.Misname,
				names)
		}
	}
	c := e.Own
	if c == nil {
		return
	}
	switch left := c.Until.Sub(e.Wall); {
	case left <= 0:
		e.find(AccessCertificateExpired, c.Of, "the certificate of this client expired at %s", c.Until.Format(time.RFC3339))
	case c.endsSoon(left):
		e.find(AccessCertificateExpires, c.Of, "the certificate of this client expires in %s", days(left))
	}
}

func (c Certificate) endsSoon(left time.Duration) bool {
	return left < certificateWarning && left < c.Until.Sub(c.From)/3
}

// days returns a duration as text: in whole days if it is longer than two days, otherwise to the minute.
func days(d time.Duration) string {
	const day = 24 * time.Hour
	if d > 2*day {
		return fmt.Sprintf("%d days", d/day)
	}
	return d.Round(time.Minute).String()
}

// saysWhy reports whether a finding already says why the certificate of a server is not valid.
func (e *examination) saysWhy() bool {
	return slices.ContainsFunc(e.found, func(f Finding) bool {
		return f.Code == NATSCertificateExpired || f.Code == NATSCertificateName
	})
}

// hidden reports the parts of the fleet that the credentials do not show, and the queries that nobody answered.
// Coordinators of older versions do not answer the query for a checkup.
func (e *examination) hidden() {
	var hidden []string
	for _, part := range []struct {
		what string
		why  *protocol.Error
	}{{"hosts", e.NoHosts}, {"what is owed for too long", e.NoCheckup}, {"the other coordinators", e.NoCoordinators}} {
		switch {
		case part.why == nil:
		case part.why.Code == protocol.PermissionDenied:
			hidden = append(hidden, part.what)
		case part.why == e.NoCheckup && (protocol.IsNotServed(part.why) ||
			part.why.Code == protocol.Unavailable && part.why.Reason == ""):
			e.find(VersionOld, e.Ping.Coordinator, "coordinator %s is too old to say %s", e.Ping.Coordinator, part.what)
		default:
			e.find(CoordinatorMute, "", "coordinator %s answers a ping, but nobody says anything about %s: %s",
				e.Ping.Coordinator, part.what, part.why.Message)
		}
	}
	if role := e.You.Role; role == rights.User || role == rights.Viewer {
		hidden = append(hidden, "what is owed to other tenants")
	}
	if len(hidden) > 0 {
		e.find(AccessHidden, "", "these credentials do not show: %s", strings.Join(hidden, ", "))
	}
}

func loginOf(login string) string {
	switch login {
	case LoginNone:
		return "no credentials"
	case LoginNKey:
		return "an nkey"
	}
	return "a " + login
}
