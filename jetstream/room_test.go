package jetstream_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
)

func TestAFullEventLogKeepsAReserveAndReportsThatItIsFull(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{EventMaxBytes: 256 << 10})
	c := d.opened(t)
	room, err := c.LogRoom(t.Context())
	must(t, err)
	if room.RefusesNew() || room.Err() != nil || room.Limit != 256<<10 || room.Reserve != 32<<10 {
		t.Fatalf("the room of an empty log is %+v", room)
	}
	refusedAt, stored := 0, 0
	for {
		b := accepted(d.tenant, fmt.Sprintf("s%d", stored), "k1")
		b.Events[0].Request = strings.Repeat("r", 2000)
		if _, err = c.Append(t.Context(), b, 0); err != nil {
			break
		}
		stored++
		if refusedAt == 0 && stored%5 == 0 {
			room, err := d.opened(t).LogRoom(t.Context()) // a new connection has no cached answer
			must(t, err)
			if room.RefusesNew() {
				wantError(t, room.Err(), protocol.ResourceExhausted, protocol.ReasonLogFull)
				refusedAt = stored
			}
		}
	}
	wantError(t, err, protocol.ResourceExhausted, protocol.ReasonLogFull)
	if refusedAt == 0 || stored < refusedAt+5 {
		t.Fatalf("new work is refused after %d batches, and every append after %d", refusedAt, stored)
	}
	c = d.opened(t)
	if room, err := c.LogRoom(t.Context()); err != nil || !room.RefusesNew() {
		t.Fatalf("the room of a full log is %+v, %v", room, err)
	}
	must(t, c.Provision(t.Context(), jetstream.Assets{EventMaxBytes: 1 << 20}))
	readySandbox(t, c, d.tenant, "after")
	if s := d.opened(t).Storage(t.Context()); len(s.Problems) > 0 || len(s.Streams) == 0 {
		t.Fatalf("the storage after the limit was raised: %+v", s)
	}
}

func TestStorageWarnsBeforeTheLogIsFull(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{EventMaxBytes: 64 << 10})
	c := d.opened(t)
	for i := 0; ; i++ {
		readySandbox(t, c, d.tenant, fmt.Sprintf("s%d", i))
		s := d.opened(t).Storage(t.Context())
		if len(s.Warnings) > 0 {
			if !strings.Contains(s.Warnings[0], protocol.StreamEvents) || len(s.Problems) > 0 {
				t.Fatalf("warnings %q, problems %q", s.Warnings, s.Problems)
			}
			return
		}
		if len(s.Problems) > 0 {
			t.Fatalf("no warning came before %q", s.Problems)
		}
	}
}

func TestASeparateSingleServerIsNamedForARestart(t *testing.T) {
	t.Parallel()
	s, err := embedded.Start(embedded.Config{Dir: t.TempDir(), Name: "nats-7"})
	must(t, err)
	t.Cleanup(s.Stop)
	d := &deployment{servers: []*embedded.Server{s}}
	d.provision(t)
	err = d.opened(t).RecoverStore(t.Context(), nil)
	wantError(t, err, protocol.FailedPrecondition, protocol.ReasonServerSettings)
	if !strings.Contains(err.Error(), "nats-7") {
		t.Fatal(err)
	}
}
