package doctor

import (
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
)

// access examines the credentials of the client, its connection, and what it may read.
func (e *examination) access() {
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
	case why.Reason == protocol.ReasonServerSettings, why.Reason == protocol.ReasonServerCertificate:
		e.find(NATSSettings, "", "%s", why.Message)
	default:
		e.find(NATSUnreachable, "", "%s", why.Message)
	}
}

// hidden reports the parts of the fleet that the credentials do not show, and the questions that nobody answered. A
// coordinator that is too old does not receive the question for a checkup.
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
		case part.why == e.NoCheckup && part.why.Code == protocol.Unavailable && part.why.Reason == "":
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
