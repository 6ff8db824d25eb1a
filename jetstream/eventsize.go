package jetstream

import (
	"github.com/boxfleet/boxfleet/protocol"
)

// What one message holds at most, below the server's maximum payload: a message that is larger than it
// may be is refused whole, however often it is tried. The margin is for the headers, for the batch around
// its events, and for the work item that carries the batch to a worker.
const (
	maxBatchBytes  = 768 << 10
	maxBatchEvents = 512
	batchMargin    = 4 << 10
)

// maxBatch is how many bytes of events a message to this server may have.
func (c *Conn) maxBatch() int {
	payload := int(c.nc.MaxPayload())
	if payload <= 0 {
		return maxBatchBytes // no server has said yet
	}
	return min(maxBatchBytes, payload-batchMargin)
}

// prefix says how many of the events fit into a message that has so many bytes and so many events of
// room left, and how many bytes those take. Error: invalid_argument, where one alone is larger than a message.
func prefix(events []protocol.Event, room, count, whole int) (fits, bytes int, err error) {
	full := false
	for i := range events {
		size := eventSize(&events[i])
		if size > whole {
			return 0, 0, tooLarge(&events[i], size, whole)
		}
		full = full || bytes+size > room || fits == count
		if !full {
			fits++
			bytes += size
		}
	}
	return fits, bytes, nil
}

// tooLarge says which part of an event makes it larger than a message.
func tooLarge(e *protocol.Event, size, whole int) error {
	err := protocol.Errorf(protocol.InvalidArgument, protocol.ReasonTooLarge,
		"%s would take a message of %d bytes, and the NATS server takes %d: make it smaller, or raise max_payload there", e.Kind, size, whole)
	switch {
	case e.Phase != nil && e.Phase.Spec != nil, e.Exec != nil && e.Exec.Spec != nil:
		err.Field = "spec"
	case e.Exec != nil && len(e.Exec.Stdout)+len(e.Exec.Stderr) > size/2:
		err.Field = "exec.stdout"
	case e.Error != nil:
		err.Field = "error"
	default:
		err.Field = "events"
	}
	return err
}

// The names of fields, the numbers, the times and the heads of texts, of an event and of what is in it.
const (
	eventFrame = 256
	execFrame  = 256
	specFrame  = 160
	itemFrame  = 5 // the head of a text
)

// eventSize is how many bytes an event takes in a batch at most. What events of execs have, which are
// most, is added up; the rest is encoded, which takes longer.
func eventSize(e *protocol.Event) int {
	n := eventFrame + len(e.Kind) + len(e.State) + len(e.Request) + len(e.Reason)
	if e.Error != nil {
		n += encodedSize(e.Error)
	}
	if e.Phase != nil {
		n += encodedSize(e.Phase)
	}
	if e.Service != nil {
		n += encodedSize(e.Service)
	}
	if e.Primary != nil {
		n += encodedSize(e.Primary)
	}
	if x := e.Exec; x != nil {
		n += execFrame + len(x.ID) + len(x.State) + len(x.Boot) + len(x.Stdout) + len(x.Stderr)
		if x.OutputError != nil {
			n += encodedSize(x.OutputError)
		}
		if x.Spec != nil {
			n += execSpecSize(x.Spec)
		}
	}
	return n
}

func execSpecSize(s *protocol.ExecSpec) int {
	n := specFrame + len(s.Cwd) + len(s.User) + len(s.Service) + len(s.Stdin)
	for _, a := range s.Command {
		n += len(a) + itemFrame
	}
	for k, v := range s.Env {
		n += len(k) + len(v) + 2*itemFrame
	}
	return n
}

func encodedSize(v any) int { return len(protocol.Encode(v)) }
