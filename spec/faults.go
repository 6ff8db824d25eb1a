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

// Bounds of what is said at once of a text that is wrong in many places.
const (
	maxFaults     = 10
	maxFaultBytes = 700
)

// faults are what is wrong with a text, as far as it was read.
type faults struct {
	found []*protocol.Error
	bytes int
	over  bool // the text is read no further
}

// add takes a fault of one value, so that the rest is read. It returns an error where reading ends.
func (f *faults) add(err error) error {
	if err == nil || f.over {
		return err
	}
	e := protocol.AsError(err)
	f.found = append(f.found, e)
	f.bytes += len(e.Error())
	if f.over = len(f.found) == maxFaults || f.bytes > maxFaultBytes; f.over {
		return errMore
	}
	return nil
}

// errMore ends the reading of a text with many faults.
var errMore = errors.New("there may be more; the rest is not read")

// ended is everything that is wrong as one error, nil where that is nothing. err ended the reading.
func (f *faults) ended(err error) error {
	found := f.found
	if err != nil && err != errMore {
		found = append(found, protocol.AsError(err))
	}
	if len(found) == 0 {
		return nil
	}
	return joined(found, err == errMore)
}

// joined is one error for several. Code, reason and field are those of the first; the others are said below it,
// each with its field.
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

// Join is one error for those of several documents that are not nil; nil where all are. Errors of another kind
// than this package's stand alone.
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

// unknownField is the error of a field that is not there, with the one that was probably meant.
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

// elsewhere is what other tools call fields.
var elsewhere = map[string]string{
	"environment": "env", "volumes": "mounts", "binds": "mounts", "working_dir": "cwd", "workdir": "cwd", "mem_limit": "memory", "mem": "memory",
	"cpus": "cpu", "cmd": "command", "args": "command", "pids_limit": "pids", "stop_grace_period": "grace", "depends_on": "required_services",
	"services": "required_services", "name": "id", "networks": "network", "files": "copies", "pull_policy": "pull",
}
