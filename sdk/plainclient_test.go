package sdk

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/protocol"
)

// PlainClient connects a NATS client without the SDK to the server at url. The connection lasts until the end of the
// test.
func PlainClient(t *testing.T, url string) natsjs.JetStream {
	t.Helper()
	nc, err := nats.Connect(url)
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

// ChangeEventLog changes the configuration of the event log's stream.
func ChangeEventLog(ctx context.Context, t *testing.T, url string, change func(*natsjs.StreamConfig)) {
	t.Helper()
	js := PlainClient(t, url)
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
