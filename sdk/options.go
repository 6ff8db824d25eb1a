package sdk

import (
	"io"
	"slices"

	"github.com/boxfleet/boxfleet/protocol"
)

// Option changes one call. An option that a call cannot honour is refused with invalid_argument.
type Option func(*call)

// call is what the options of one call add up to.
type call struct {
	id, name        string
	request         string
	accepted        bool
	stdout, stderr  io.Writer
	collect         int64
	explicitRequest bool
	yaml            []byte
	env             map[string]string
	given           []string // names of the options
}

// DefaultCollect is how much of stdout and of stderr, each, a [Result] holds at most.
const DefaultCollect = 1 << 20

// WithID gives the sandbox or the exec its id: 1 to 64 characters of A-Z a-z 0-9 _ -. An id is
// never used twice, not even after a delete: already_exists. Without it the id is the request's.
func WithID(id string) Option {
	return func(c *call) { c.id = id; c.given = append(c.given, "WithID") }
}

// WithName gives the sandbox a name, of the form of an id, by which it is found wherever its id is. At any time one
// sandbox of a tenant that is pending, ready or stopped has a name; when it has failed or is deleted, the name is for
// another one. A text that is, or was, the id of a sandbox is not a name, nor one that looks like a generated id.
func WithName(name string) Option {
	return func(c *call) { c.name = name; c.given = append(c.given, "WithName") }
}

// WithRequestID gives the request its id, so that a caller who lost the connection or its memory
// can ask again and gets the same sandbox or exec; what was refused is decided again. A request id is
// for one request: another verb or exec with it is refused with already_exists. Do not use it for
// another sandbox.
func WithRequestID(id string) Option {
	return func(c *call) {
		c.request, c.explicitRequest = id, true
		c.given = append(c.given, "WithRequestID")
	}
}

// WithWait says whether the call waits until what it asks for is done (true, the default), or only
// until a coordinator has accepted it, which is then durable and will be done.
func WithWait(wait bool) Option {
	return func(c *call) { c.accepted = !wait; c.given = append(c.given, "WithWait") }
}

// WithYAML gives Create a spec as YAML, in the form of docs/spec.md: one document. The spec that is
// given to Create goes over it, as spec.Merge does: what it says replaces, maps are merged, lists
// are appended. env are the variables for $VAR in the text; nil: none is set. The document's id and name
// are the sandbox's, unless [WithID] and [WithName] say others. Its copies that have a source are uploaded, with
// paths as seen from the working directory.
func WithYAML(document []byte, env map[string]string) Option {
	return func(c *call) {
		c.yaml, c.env = document, env
		c.given = append(c.given, "WithYAML")
	}
}

// WithStdout streams the exec's stdout into w as it comes, byte for byte. Writes are made one
// after another, from the goroutine of the call; none is made after the call returned. A writer
// that fails ends the call with its error, not the exec. A slow writer does not slow the exec.
func WithStdout(w io.Writer) Option {
	return func(c *call) { c.stdout = w; c.given = append(c.given, "WithStdout") }
}

// WithStderr streams the exec's stderr into w; see [WithStdout].
func WithStderr(w io.Writer) Option {
	return func(c *call) { c.stderr = w; c.given = append(c.given, "WithStderr") }
}

// WithCollect bounds how many bytes of stdout and of stderr, each, the [Result] holds; default
// [DefaultCollect]. 0 collects nothing. A stream that has a writer is not collected.
func WithCollect(limit int64) Option {
	return func(c *call) { c.collect = limit; c.given = append(c.given, "WithCollect") }
}

// newCall adds the options up, refuses those that the call cannot honour, and fills in the ids.
func newCall(method string, opts []Option, allowed ...string) (*call, error) {
	c := &call{collect: DefaultCollect}
	for _, o := range opts {
		o(c)
	}
	for _, name := range c.given {
		if !slices.Contains(allowed, name) {
			return nil, protocol.Invalid("option", "%s does not take %s", method, name)
		}
	}
	if c.collect < 0 {
		return nil, protocol.Invalid("option.WithCollect", "must not be negative, got %d", c.collect)
	}
	if !c.explicitRequest {
		c.request = NewID()
	} else if err := protocol.ValidateID("request", c.request); err != nil {
		return nil, err
	}
	if c.id == "" && !slices.Contains(c.given, "WithID") {
		c.id = c.request
	}
	if slices.Contains(c.given, "WithName") {
		if err := protocol.ValidateName("name", c.name); err != nil {
			return nil, err
		}
	}
	return c, protocol.ValidateID("id", c.id)
}
