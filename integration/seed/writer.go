package seed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/protocol"
)

// Writer writes many histories quickly. The streams of the deployment must exist and be empty. Writer has many messages
// in flight and does not use compare-and-set.
type Writer struct {
	nc *nats.Conn
	js jetstream.JetStream
}

// inFlight is how many messages may be in flight at once.
const inFlight = 2048

// Connect connects to NATS with the credentials in a file, or without credentials if creds is empty.
func Connect(url, creds string) (*Writer, error) {
	options := []nats.Option{nats.Name("seed")}
	if creds != "" {
		options = append(options, nats.UserCredentials(creds))
	}
	nc, err := nats.Connect(url, options...)
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(inFlight))
	if err != nil {
		nc.Close()
		return nil, err
	}
	return &Writer{nc, js}, nil
}

// Batch sends a message. It does not wait until the message is stored.
func (w *Writer) Batch(b *protocol.Batch) error {
	m := nats.NewMsg(protocol.AppendSubject(b.Writer, b.Tenant, b.Sandbox))
	for k, v := range b.Headers() {
		m.Header[k] = []string{v}
	}
	m.Data = b.Encode()
	_, err := w.js.PublishMsgAsync(m, jetstream.WithStallWait(time.Minute))
	return err
}

// Reserve reserves the sandbox's id in the registry. It does not wait until the reservation is stored.
func (w *Writer) Reserve(h *History) error {
	r := protocol.Reservation{Version: protocol.Version, Request: h.ID}
	_, err := w.js.PublishAsync("$KV."+protocol.BucketIDs+"."+h.Tenant+"."+h.ID, protocol.Encode(&r),
		jetstream.WithStallWait(time.Minute))
	return err
}

// Close waits until everything is stored, checks that the log has the given number of messages, and disconnects.
func (w *Writer) Close(ctx context.Context, messages uint64) error {
	defer w.nc.Close()
	select {
	case <-w.js.PublishAsyncComplete():
	case <-ctx.Done():
		return ctx.Err()
	}
	stream, err := w.js.Stream(ctx, protocol.StreamEvents)
	if err != nil {
		return err
	}
	if stored := stream.CachedInfo().State.Msgs; stored < messages {
		return errors.Join(fmt.Errorf("of %d messages, %d were stored", messages, stored), w.nc.LastError())
	}
	return nil
}
