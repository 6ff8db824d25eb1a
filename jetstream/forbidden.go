package jetstream

import (
	"context"
	"errors"
	"regexp"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/protocol"
)

// forbiddenSubject finds the subject in the server's notice that it dropped a message because the connection has no
// right to publish there.
var forbiddenSubject = regexp.MustCompile(`Publish to "(\S+)"`)

// forbid ends the calls that wait for an answer to a message that the server dropped: no answer will come. It reports
// whether it ended a call. In a coordinator or a worker it ends none: the call is repeated, because an operator may
// grant the right later.
func (c *connection) forbid(notice error) (ended bool) {
	if c.serves || !errors.Is(notice, nats.ErrPermissionViolation) {
		return false
	}
	found := forbiddenSubject.FindStringSubmatch(notice.Error())
	if found == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, call := range c.waiting {
		if call.subject == found[1] {
			call.end(c.errForbidden(call.subject))
			ended = true
		}
	}
	return ended
}

func (c *connection) errForbidden(subject string) error {
	of := ""
	if c.user != "" {
		of = " of " + c.user
	}
	err := protocol.Errorf(protocol.PermissionDenied, "",
		"the credentials%s do not permit a message to %s: use those of a role that may send it; docs/rights.md lists "+
			"the rights of each role", of, subject)
	err.Field = "creds"
	return err
}

// isForbidden reports whether forbid ended a call's context.
func isForbidden(ctx context.Context) bool {
	return protocol.CodeOf(context.Cause(ctx)) == protocol.PermissionDenied
}
