package protocol

import (
	"errors"
	"strings"
)

// payloadNames maps verbs to the field of the request that holds the spec.
var payloadNames = map[string]string{VerbCreate: "sandbox", VerbExec: "exec"}

// WithPayloadField renames the field of an error to its path in the request: "spec.image" becomes "sandbox.image" for
// a create, and "spec.cwd" becomes "exec.cwd" for an exec. It returns other errors unchanged.
func WithPayloadField(verb string, err error) error {
	return renamedField(err, "spec", payloadNames[verb])
}

// WithSpecField reverses [WithPayloadField], for callers that passed a spec and do not know the request.
func WithSpecField(verb string, err error) error {
	return renamedField(err, payloadNames[verb], "spec")
}

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
