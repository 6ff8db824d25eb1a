package protocol

// StreamKindPorts is the kind of a stream that tells which TCP ports have a server. Its request is a [PortWatch]. The
// worker sends records of the kind [FileRecordAnswer] with [PortEvents], and the client sends nothing.
const StreamKindPorts = "ports"

// PortWatch watches the ports of a container. First come the ports that already have a server, and then an event
// [PortWatching]. The worker looks once a second, so a server that listens for less time may be missed.
type PortWatch struct {
	Service string `json:"service,omitempty"` // name of a service; empty: the primary container
}

// Validate checks the request. Error: invalid_argument with field service.
func (w *PortWatch) Validate() error {
	if w.Service == "" {
		return nil
	}
	return ValidateID("service", w.Service)
}

// PortEventKind says what happened to a port.
type PortEventKind string

// The kinds of events.
const (
	PortListening PortEventKind = "listening" // a process listens on the port
	PortClosed    PortEventKind = "closed"    // none listens on it any more
	PortWatching  PortEventKind = "watching"  // all ports with a server were told; later events are changes
)

// PortEvent tells about one TCP port of a container.
type PortEvent struct {
	Kind PortEventKind `json:"kind"`
	Port int           `json:"port,omitempty"` // 1 to 65535; 0 with [PortWatching]

	// Addresses are those on which a process listens, sorted, when the event was made: at most [MaxPortAddresses].
	// "0.0.0.0" and "::" stand for all addresses. No event tells that only the addresses changed.
	Addresses []string `json:"addresses,omitempty"`
}

// PortEvents are events of a stream of the kind [StreamKindPorts], in their order.
type PortEvents struct {
	Events []PortEvent `json:"events"`
}

// Limits of watches of ports.
const (
	MaxPortAddresses = 16
	MaxPortListeners = 10_000 // addresses with a port, in one container; with more, a watch fails
)
