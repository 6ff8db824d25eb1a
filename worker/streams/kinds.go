package streams

import (
	"context"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// Handler answers a request of one kind. ctx ends when the client stops waiting for the answer. A handler that needs a
// container asks for it with [Call.Container] or [Call.Files]. When this container ends, the server resets the stream
// of the answer, if it has one, and ends the context of its Serve.
type Handler func(ctx context.Context, c *Call) (*jetstream.StreamAnswer, error)

// kinds has the handler of each kind.
var kinds = map[string]Handler{
	protocol.StreamKindDial:  dial,
	protocol.StreamKindStdin: stdin,
	protocol.StreamKindPort:  waitForPort,
	protocol.StreamKindPorts: watchPorts,
	protocol.StreamKindFile:  file,
}
