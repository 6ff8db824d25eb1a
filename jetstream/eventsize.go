package jetstream

import (
	"github.com/boxfleet/boxfleet/protocol"
)

// Limits of the events in one message. They keep each message below the server's maximum payload, because the server
// refuses a larger message each time it is sent. batchMargin leaves room for the headers, for the batch around its
// events, and for the notification that carries the batch to a worker.
const (
	maxBatchBytes  = 768 << 10
	maxBatchEvents = 512
	batchMargin    = 4 << 10
)

// maxBatch returns how many bytes of events one message to this server may have.
func (c *connection) maxBatch() int {
	payload := int(c.nc.MaxPayload())
	if payload <= 0 {
		return maxBatchBytes // no server has answered yet
	}
	return min(maxBatchBytes, payload-batchMargin)
}

// prefix returns how many of the events fit into a message, and their size in bytes. room and count are the numbers of
// bytes and of events that the message can still take. limit is the number of bytes that an empty message can take.
// Error: invalid_argument if a single event is larger than limit.
func prefix(events []protocol.Event, room, count, limit int) (fits, bytes int, err error) {
	full := false
	for i := range events {
		size := eventSize(&events[i])
		if size > limit {
			return 0, 0, tooLarge(&events[i], size, limit)
		}
		full = full || bytes+size > room || fits == count
		if !full {
			fits++
			bytes += size
		}
	}
	return fits, bytes, nil
}

// tooLarge returns an error that names the part of an event that makes the event larger than a message.
func tooLarge(e *protocol.Event, size, limit int) error {
	err := protocol.Errorf(
		protocol.InvalidArgument,
		protocol.ReasonTooLarge,
		"%s would need a message of %d bytes, but the NATS server accepts only %d: "+
			"make it smaller, or raise the server's max_payload",
		e.Kind,
		size,
		limit,
	)
	switch {
	case e.Details != nil && e.Details.Spec != nil, e.Exec != nil && e.Exec.Spec != nil:
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

// Upper bounds of the size of everything in an event and its parts except the contents of strings: field names,
// numbers, times, and the headers of strings.
const (
	eventFrame = 272
	execFrame  = 304
	specFrame  = 192
	itemFrame  = 5 // the header of a string
)

// eventSize returns an upper bound of an event's size in a batch. It adds up the fields of exec events, which are the
// most frequent events. It encodes all other parts, which is slower.
func eventSize(e *protocol.Event) int {
	n := eventFrame + len(e.Kind) + len(e.State) + len(e.Request) + len(e.Actor) + len(e.Reason)
	if e.Error != nil {
		n += encodedSize(e.Error)
	}
	if e.Details != nil {
		n += encodedSize(e.Details)
	}
	if e.Service != nil {
		n += encodedSize(e.Service)
	}
	if e.Primary != nil {
		n += encodedSize(e.Primary)
	}
	if len(e.Streams) > 0 {
		n += encodedSize(e.Streams) + len("streams") + itemFrame
	}
	if x := e.Exec; x != nil {
		n += execFrame + len(x.ID) + len(x.State) + len(x.Boot) + len(x.Stdout) + len(x.Stderr) +
			len(x.StdoutSHA256) + len(x.StderrSHA256)
		if x.OutputError != nil {
			n += encodedSize(x.OutputError)
		}
		if x.Signal != nil {
			n += encodedSize(x.Signal) + len("signal") + itemFrame
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
	for k, v := range s.SensitiveEnv {
		n += len(k) + len(v) + 2*itemFrame
	}
	if len(s.Secrets) > 0 {
		n += encodedSize(s.Secrets)
	}
	return n
}

func encodedSize(v any) int { return len(protocol.Encode(v)) }
