package jetstream_test

import (
	"strings"
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// Coordinators of an earlier version made the stream of output, so workers store output under that version's subject.
// After an upgrade of the coordinators, workers store output under the host's subject again. Readers get the whole
// output in order.
func TestOutputIsStoredBesideCoordinatorsOfAnEarlierVersion(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	asBefore(t, d)
	c := d.opened(t)
	js, err := natsjs.New(d.raw(t))
	must(t, err)
	logs, err := js.Stream(t.Context(), protocol.StreamLogs)
	must(t, err)
	has := func(subject string) bool {
		_, err := logs.GetLastMsgForSubject(t.Context(), subject)
		return err == nil
	}
	earlier, own := protocol.LogSubject(d.tenant, "s", "x"), protocol.OutputSubject(outputHost, d.tenant, "s", "x")
	var stored int64
	publish := func() error {
		k := jetstream.Chunk{Stream: jetstream.Stdout, Offset: stored, Data: []byte("x"), NextStdout: stored + 1}
		ack, err := c.PublishOutput(outputHost, d.tenant, "s", "x", k)
		if err == nil {
			err = receive(t, 15*time.Second, "the acknowledgement", ack)
		}
		if err == nil {
			stored++
		}
		return err
	}
	if err := publish(); protocol.CodeOf(err) != protocol.Unavailable ||
		!strings.Contains(err.Error(), "earlier version") {
		t.Fatalf("the first chunk: %v, want an error that names the cause", err)
	}
	for range 3 {
		if err := publish(); err != nil {
			t.Fatalf("a retry: %v", err)
		}
	}
	if !has(earlier) || has(own) {
		t.Error("the output is not stored as in the earlier version")
	}
	must(t, c.Provision(t.Context(), jetstream.Assets{}))
	eventually.Holds(t, 30*time.Second, "output is stored under the host's subject", func() bool {
		if err := publish(); err != nil {
			t.Errorf("after the upgrade: %v", err)
		}
		return has(own)
	})
	var r reader
	_, err = c.ReadOutput(t.Context(), outputOf(d.tenant, "s", "x"), 1, r.add)
	if err != nil || int64(r.stdout.Len()) != stored {
		t.Errorf("read %d of %d bytes: %v", r.stdout.Len(), stored, err)
	}
}

// A missing answer alone is no reason to store output elsewhere.
func TestAStreamWithoutAnySubjectOfOutputIsOfNoEarlierVersion(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c := d.opened(t)
	js, err := natsjs.New(d.raw(t))
	must(t, err)
	must(t, js.DeleteStream(t.Context(), protocol.StreamLogs))
	ack, err := c.PublishOutput(outputHost, d.tenant, "s", "x",
		jetstream.Chunk{Stream: jetstream.Stdout, Data: []byte("x")})
	if err == nil {
		err = receive(t, 25*time.Second, "the result", ack)
	}
	if err == nil || strings.Contains(err.Error(), "earlier version") {
		t.Errorf("got %v", err)
	}
}
