package protocol

import "strings"

// StreamKindPort is the kind of a [StreamOpen] that waits for a server. Its request is a [PortWait], its answer a
// [PortAnswer] without a stream.
const StreamKindPort = "port"

// PortWait waits until a server in a container of the sandbox answers: until a TCP connection to the port succeeds or,
// with Path, until an HTTP request gets a response with the status. The worker tries once a second, and waits until the
// timeout of the [StreamOpen]. It then answers with the result of the last try.
type PortWait struct {
	Service string `json:"service,omitempty"` // name of a service; empty: the primary container
	Port    int    `json:"port"`              // 1 to 65535
	Path    string `json:"path,omitempty"`    // path of an HTTP request, such as /healthz?full=1; empty: no request
	Status  int    `json:"status,omitempty"`  // status to wait for, 100 to 599; 0: any from 200 to 399
}

// PortAnswer says how a [PortWait] ended.
type PortAnswer struct {
	Ready  bool   `json:"ready"`            // the server answers
	Status int    `json:"status,omitempty"` // status of the last HTTP response
	Found  string `json:"found,omitempty"`  // if it is not ready: why the last try failed
}

// maxPortPath limits [PortWait.Path], in bytes.
const maxPortPath = 2048

// Validate checks the request. Errors: invalid_argument with field service, port, path or status.
func (w *PortWait) Validate() error {
	if w.Service != "" {
		if err := ValidateID("service", w.Service); err != nil {
			return err
		}
	}
	switch {
	case w.Port < 1 || w.Port > 65535:
		return Invalid("port", "must be 1 to 65535, got %d", w.Port)
	case w.Path == "" && w.Status != 0:
		return Invalid("status", "needs a path")
	case w.Status != 0 && (w.Status < 100 || w.Status > 599):
		return Invalid("status", "must be 100 to 599, got %d", w.Status)
	case w.Path == "":
		return nil
	case len(w.Path) > maxPortPath:
		return Invalid("path", "has %d bytes, at most %d are allowed", len(w.Path), maxPortPath)
	case w.Path[0] != '/':
		return Invalid("path", "must begin with /, got %.80q", w.Path)
	case strings.ContainsFunc(w.Path, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return Invalid("path", "must have printable ASCII only; encode other characters as %%XX")
	}
	return nil
}

// Accepts reports whether an HTTP status is the one to wait for.
func (w *PortWait) Accepts(status int) bool {
	if w.Status == 0 {
		return status >= 200 && status <= 399
	}
	return status == w.Status
}
