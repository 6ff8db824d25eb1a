package jetstream_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// One server stamps the registration of a key, and another one the messages that the key signs. The tests of this file
// make a connection believe that a key was registered earlier or later than the server says. Decision 0048 states what
// wrong clocks can do.

// The clock of the server that leads the event log is behind the clock of the server that registered the worker's key.
// The worker waits, because readers would refuse its messages forever.
func TestAWriterStoresNothingWhileTheStoresClockIsBehindItsKey(t *testing.T) {
	t.Parallel()
	f := startSigned(t)
	f.ready(t, "t1", "s1")
	before, err := f.coordinator.LastRecord(t.Context())
	must(t, err)
	now := time.Now()
	must(t, f.worker.RegisteredAt(t.Context(), f.worker.id, now.Add(2*time.Second)))
	j := f.worker.journal("t1", "s1")
	running := protocol.Event{Kind: protocol.PrimaryStarted, Primary: &protocol.PrimaryDetails{Boot: "b1"}}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err = j.Do(ctx, events(running))
	wantError(t, err, protocol.DeadlineExceeded, "")
	if last, err := f.coordinator.LastRecord(t.Context()); err != nil || last != before {
		t.Errorf("the log ends at record %d, %v; want %d", last, err, before)
	}
	do(t, f.worker.journal("t1", "s1"), running)
	if waited := time.Since(now); waited < 2*time.Second {
		t.Errorf("the worker appended after %s", waited)
	}
}

// The clocks differ as in the test before when the worker registers. It is not registered before readers would accept
// its messages. If that takes too long, the error names the cause.
func TestARegistrationEndsWhenReadersAcceptTheKey(t *testing.T) {
	t.Parallel()
	f := startSigned(t)
	w := f.worker
	at := time.Now().Add(1500 * time.Millisecond)
	must(t, w.RegisteredAt(t.Context(), w.id, at))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	err := w.RegisterWriter(ctx, w.Role, w.Name, w.Host)
	if protocol.CodeOf(err) != protocol.DeadlineExceeded || !strings.Contains(err.Error(), "clocks of the NATS servers") {
		t.Errorf("the registration with little time ends with %v", err)
	}
	must(t, w.RegisterWriter(t.Context(), w.Role, w.Name, w.Host))
	if early := time.Until(at); early > 0 {
		t.Errorf("the worker was registered %s too early", early)
	}
}

// The clock of the server that leads the event log is ahead of the clock of the server that registers the key. A reader
// that comes after the registration accepts a message that earlier readers refused. Only the key's owner can cause
// this, and only for a message that the owner may write.
func TestAClockAheadMakesAReaderAcceptWhatAnEarlierOneRefused(t *testing.T) {
	f := startSigned(t)
	f.ready(t, "t1", "s1")
	late := f.connect(t, protocol.Writer{Role: protocol.OwnerWorker, Name: "w1", Host: "h1"})
	stranger := f.connect(t, protocol.Writer{Role: protocol.OwnerWorker, Name: "w9", Host: "h9"})
	for _, m := range []*member{late, stranger} {
		message := f.forge(t, m, "t1", "s1", protocol.PrimaryEnded)
		message.batch.Events[0].Primary = &protocol.PrimaryDetails{Boot: "b1"}
		message.send(t)
	}
	_, early := readHistory(t, f.coordinator.Conn, "t1", "s1")
	f.register(t, late)
	f.register(t, stranger)
	fresh := f.register(t, f.connectAs(t, f.coordinator))
	for _, m := range []*member{late, stranger} {
		must(t, fresh.RegisteredAt(t.Context(), m.id, time.Now().Add(-time.Hour)))
	}
	_, batches := readHistory(t, fresh.Conn, "t1", "s1")
	if len(early) != 2 || len(batches) != 3 || batches[2].Writer != "w1" {
		t.Errorf("the early reader sees %d messages and the late one %d, want 2 and 3", len(early), len(batches))
	}
}
