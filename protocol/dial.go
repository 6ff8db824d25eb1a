package protocol

// StreamDial is the [StreamOpen.Request] of kind [StreamKindDial]: it connects the stream to a server in a container of
// the sandbox, in the container's network namespace. So it also works in a sandbox without a network. The answer has no
// result. The stream carries the bytes of the connection, with half-close in both directions.
type StreamDial struct {
	Service string `json:"service,omitempty"` // name of a service; empty: the primary container
	Network string `json:"network"`           // "tcp" or "unix"
	Address string `json:"address"`           // "host:port" with a numeric address or localhost, or the path of a socket
}

// Kinds of streams.
const (
	StreamKindDial = "dial" // request: [StreamDial]
)

// Validate checks the request. Errors: invalid_argument with field service, network or address.
func (d *StreamDial) Validate() error {
	if d.Service != "" {
		if err := ValidateID("service", d.Service); err != nil {
			return err
		}
	}
	f := FileDial{Network: d.Network, Address: d.Address}
	return f.Validate()
}
