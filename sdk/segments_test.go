package sdk_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// The older part of a history moves into segments. The oldest segments expire.
func TestEventsIncludeSegments(t *testing.T) {
	t.Parallel()
	server, err := embedded.Start(embedded.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	conn, err := jetstream.Connect(t.Context(), jetstream.Config{InProcess: server, Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if err := conn.Provision(t.Context(), jetstream.Assets{}); err != nil {
		t.Fatal(err)
	}
	sdk.ServePages(t, conn)
	client, err := sdk.Connect(t.Context(), sdk.Options{URL: server.ClientURL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)

	j := conn.Journal(jetstream.JournalConfig{Tenant: protocol.DefaultTenant, Sandbox: "s", Writer: "k1"})
	extend := func(n int) {
		t.Helper()
		for range n {
			if _, err := j.Do(t.Context(), func(s *protocol.State, now time.Time) ([]protocol.Event, error) {
				if !s.Exists() {
					return []protocol.Event{{Kind: protocol.SandboxAccepted, Request: "r",
						Details: &protocol.SandboxDetails{Spec: &protocol.SandboxSpec{Image: "i"}}}}, nil
				}
				return []protocol.Event{{Kind: protocol.SandboxExtended, Request: fmt.Sprint("r", s.Sandbox.Sequence),
					Details: &protocol.SandboxDetails{ExpiresAt: now.Add(time.Hour)}}}, nil
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	compact := func(c jetstream.Compaction) {
		t.Helper()
		if _, err := conn.WriteSnapshot(t.Context(), protocol.DefaultTenant, "s", j.Snapshot(), 0); err != nil {
			t.Fatal(err)
		}
		c.MinBatches, c.MinBytes = 1, 1<<30
		if _, err := conn.Compact(t.Context(), protocol.DefaultTenant, "s", c); err != nil {
			t.Fatal(err)
		}
	}
	read := func(from uint64) (first, last uint64, err error) {
		for e, failed := range client.Sandbox("s").Events(t.Context(), sdk.WithFrom(from)) {
			if failed != nil {
				return first, last, failed
			}
			if first == 0 {
				first, last = e.Sequence, e.Sequence-1
			}
			if e.Sequence != last+1 {
				t.Fatalf("from %d: event %d follows event %d", from, e.Sequence, last)
			}
			last = e.Sequence
		}
		return first, last, nil
	}
	extend(20)
	compact(jetstream.Compaction{Keep: 12})
	extend(10)
	compact(jetstream.Compaction{Keep: 5})
	for from := uint64(1); from <= 30; from++ {
		if first, last, err := read(from); first != from || last != 30 || err != nil {
			t.Errorf("from %d: events %d to %d, %v", from, first, last, err)
		}
	}
	if first, _, err := read(31); first != 0 || err != nil {
		t.Errorf("from the number after the last: event %d, %v; want nothing", first, err)
	}
	_, _, err = read(32)
	wantError(t, err, protocol.OutOfRange, protocol.ReasonSequenceBeyondEnd)

	compact(jetstream.Compaction{Keep: 1000, MaxAge: time.Nanosecond}) // the segments expire
	_, _, err = read(1)
	wantError(t, err, protocol.OutOfRange, protocol.ReasonSequenceNotKept)
	if want := "the oldest event that is kept is 26"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
	if first, last, err := read(26); first != 26 || last != 30 || err != nil {
		t.Errorf("from the oldest: events %d to %d, %v", first, last, err)
	}
}
