package jetstream_test

import (
	"testing"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// NATS's own tools show the descriptions. A deployment that is older than the descriptions gets them too.
func TestEveryStreamAndBucketHasADescription(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c := d.conn(t)
	must(t, c.Provision(t.Context(), jetstream.Assets{}))
	js, err := natsjs.New(d.raw(t))
	must(t, err)
	for s := range js.ListStreams(t.Context()).Info() {
		if s.Config.Description == "" {
			t.Errorf("%s has no description", s.Config.Name)
		}
		description := ""
		if s.Config.Name == protocol.StreamDead {
			description = "ours"
		}
		s.Config.Description = description
		_, err := js.UpdateStream(t.Context(), s.Config)
		must(t, err)
	}
	must(t, d.conn(t).Provision(t.Context(), jetstream.Assets{}))
	for s := range js.ListStreams(t.Context()).Info() {
		if got := s.Config.Description; got == "" || (s.Config.Name == protocol.StreamDead) != (got == "ours") {
			t.Errorf("%s has the description %q after it was provisioned again", s.Config.Name, got)
		}
	}
}
