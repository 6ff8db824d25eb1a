package spec

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"go.yaml.in/yaml/v4"

	"github.com/boxfleet/boxfleet/protocol"
)

// Limits on how many errors, and how many bytes of them, are reported at once.
const (
	maxFaults     = 10
	maxFaultBytes = 700
)

// faults collects the errors of a text.
type faults struct {
	found   []*protocol.Error
	bytes   int
	stopped bool // the rest of the text is not read
}

// add records the error of one value, so that parsing can continue. It returns an error if parsing must stop.
func (f *faults) add(err error) error {
	if err == nil || f.stopped {
		return err
	}
	e := protocol.AsError(err)
	f.found = append(f.found, e)
	f.bytes += len(e.Error())
	if f.stopped = len(f.found) == maxFaults || f.bytes > maxFaultBytes; f.stopped {
		return errMore
	}
	return nil
}

// errMore stops the parsing of a text with many errors.
var errMore = errors.New("there may be more errors; the rest was not read")

// result returns one error with all errors that were found, or nil if there is none. The parameter err is the error
// that stopped the parsing, or nil.
func (f *faults) result(err error) error {
	found := f.found
	if err != nil && err != errMore {
		found = append(found, protocol.AsError(err))
	}
	if len(found) == 0 {
		return nil
	}
	return joined(found, err == errMore)
}

// joined combines several errors into one. It has the code, reason and field of the first error; its message lists the
// other errors with their fields.
func joined(found []*protocol.Error, more bool) error {
	if len(found) == 1 && !more {
		return found[0]
	}
	all := *found[0]
	for _, e := range found[1:] {
		all.Message += "\n" + e.Field + ": " + e.Message
	}
	if more {
		all.Message += "\n" + errMore.Error()
	}
	return &all
}

// Join combines the errors of several documents into one. It skips nil errors, and returns nil if all errors are nil.
// An error other than invalid_argument is returned alone.
func Join(errs ...error) error {
	var found []*protocol.Error
	for _, err := range errs {
		var e *protocol.Error
		switch {
		case err == nil:
		case !errors.As(err, &e) || e.Code != protocol.InvalidArgument:
			return err
		default:
			found = append(found, &protocol.Error{Code: e.Code, Reason: e.Reason, Field: e.Field, Message: e.Message})
		}
	}
	if len(found) == 0 {
		return nil
	}
	return joined(found[:min(len(found), maxFaults)], len(found) > maxFaults)
}

// unknownField returns the error for an unknown field. If a known field has a similar name, the error suggests it.
func (d *decoder) unknownField(key *yaml.Node, path string, fields map[string]reflect.StructField) error {
	meant := elsewhere[key.Value]
	if _, here := fields[meant]; !here {
		meant = Nearest(key.Value, slices.Sorted(maps.Keys(fields)))
	}
	hint := ""
	if meant != "" {
		hint = fmt.Sprintf("; did you mean %s?", meant)
	}
	err := d.wrong(key, join(path, key.Value), "is not a known field%s", hint)
	protocol.AsError(err).Reason = protocol.ReasonUnknownField
	return err
}

// elsewhere maps the field names of other tools to the wire names.
var elsewhere = map[string]string{
	"environment": "env", "volumes": "mounts", "binds": "mounts", "working_dir": "cwd", "workdir": "cwd",
	"mem_limit": "memory", "mem": "memory", "cpus": "cpu", "cmd": "command", "args": "command",
	"pids_limit": "pids", "stop_grace_period": "grace", "depends_on": "required_services",
	"services": "required_services", "name": "id", "networks": "network", "files": "copies", "pull_policy": "pull",
}
