package protocol

import (
	"errors"
	"strings"
)

// payloadNames are what a spec is called in the payload of a request.
var payloadNames = map[string]string{VerbCreate: "sandbox", VerbExec: "exec"}

// InPayload names the field of a refusal as the payload of the request has it: what a spec calls "spec.image" is
// "sandbox.image" of a create, and "spec.cwd" is "exec.cwd" of an exec. Other errors come back as they are.
func InPayload(verb string, err error) error { return renamedField(err, "spec", payloadNames[verb]) }

// InSpec undoes [InPayload], for callers who gave a spec and know no payload.
func InSpec(verb string, err error) error { return renamedField(err, payloadNames[verb], "spec") }

func renamedField(err error, from, to string) error {
	var e *Error
	if from == "" || to == "" || !errors.As(err, &e) {
		return err
	}
	if below, ok := strings.CutPrefix(e.Field, from); ok && (below == "" || below[0] == '.') {
		renamed := *e
		renamed.Field = to + below
		return &renamed
	}
	return err
}
