package files

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/supervisor/packet"
)

// A client may wait for a person before it sends the next byte. It must hear of a refusal at once.
func TestARefusalDoesNotWaitForContent(t *testing.T) {
	refusing := func(c *packet.Conn) {
		why := protocol.Errorf(protocol.NotFound, protocol.ReasonPathNotFound, "none")
		_ = c.SendMessage(&control.FileReply{Error: why}, -1) // the test fails if this message does not arrive
		_, _, _, _ = c.Receive()                              // an error as well is the end of the content
	}
	content, client := net.Pipe()
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	context.AfterFunc(ctx, func() { client.Close() })
	_, err := facing(t, refusing).Write(ctx, protocol.FileWrite{Path: "/none/f"}, content)
	if e := protocol.AsError(err); e.Reason != protocol.ReasonPathNotFound {
		t.Errorf("got %v, want %s", err, protocol.ReasonPathNotFound)
	}
}
