package sdk

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/protocol"
)

// PlainClient connects a NATS client without the SDK to the server at url, with the credentials in a file, or without
// credentials if creds is empty. The connection lasts until the end of the test.
func PlainClient(t *testing.T, url, creds string) natsjs.JetStream {
	t.Helper()
	var options []nats.Option
	if creds != "" {
		options = append(options, nats.UserCredentials(creds))
	}
	nc, err := nats.Connect(url, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := natsjs.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// ChangeEventLog changes the configuration of the event log's stream. creds is as in [PlainClient].
func ChangeEventLog(ctx context.Context, t *testing.T, url, creds string, change func(*natsjs.StreamConfig)) {
	t.Helper()
	js := PlainClient(t, url, creds)
	stream, err := js.Stream(ctx, protocol.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	change(&cfg)
	if _, err := js.UpdateStream(ctx, cfg); err != nil {
		t.Fatal(err)
	}
}
