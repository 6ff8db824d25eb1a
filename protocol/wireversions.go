package protocol

import "fmt"

// WireVersions returns the oldest and the newest version of the wire schema that a host's worker speaks. An earlier
// worker reports neither, and speaks version 1 only.
func (h *Host) WireVersions() (oldest, newest int) {
	return max(h.Oldest, 1), max(h.Speaks, 1)
}

// VersionRefusal returns why a coordinator that speaks the given versions of the wire schema places no sandboxes on a
// host, or "" if the host's worker speaks one of these versions.
func (h *Host) VersionRefusal(oldest, newest int) string {
	from, to := h.WireVersions()
	speaks := fmt.Sprintf("its worker speaks %s of the wire, and the coordinator %s",
		versionRange(from, to), versionRange(oldest, newest))
	switch {
	case from > to:
		return fmt.Sprintf("its worker reports that it speaks version %d to %d of the wire, which is no range", from, to)
	case to < oldest:
		return speaks + ": upgrade the worker"
	case from > newest:
		return speaks + ": upgrade the coordinators"
	}
	return ""
}

func versionRange(oldest, newest int) string {
	if oldest == newest {
		return fmt.Sprintf("version %d", oldest)
	}
	return fmt.Sprintf("versions %d to %d", oldest, newest)
}

// NotServed is the error of a client that asks for an endpoint that the coordinators do not serve: they are of an
// earlier version than the client. Its code is failed_precondition, its reason unsupported_version, and its field
// endpoint.
func NotServed(endpoint, coordinator, version string) *Error {
	return &Error{Code: FailedPrecondition, Reason: ReasonUnsupportedVersion, Field: fieldEndpoint,
		Message: fmt.Sprintf("coordinator %s, version %s, cannot answer %q: upgrade the coordinators, or use a client of "+
			"their version", coordinator, version, endpoint)}
}

const fieldEndpoint = "endpoint"

// IsNotServed reports whether an error is a [NotServed].
func IsNotServed(err error) bool {
	if err == nil {
		return false
	}
	e := AsError(err)
	return e.Reason == ReasonUnsupportedVersion && e.Field == fieldEndpoint
}
