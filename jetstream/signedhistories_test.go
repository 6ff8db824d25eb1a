package jetstream_test

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// unsignedHistory stores the history that an earlier version wrote, without signatures: testdata/unsigned.json.
func unsignedHistory(t testing.TB, nc *nats.Conn) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "unsigned.json"))
	must(t, err)
	var messages []struct {
		Header nats.Header
		Data   []byte
	}
	must(t, json.Unmarshal(text, &messages))
	for _, m := range messages {
		msg := nats.NewMsg(protocol.AppendSubject(m.Header.Get(protocol.HeaderWriter), "t1", "s1"))
		msg.Header, msg.Data = m.Header, m.Data
		_, err := nc.RequestMsg(msg, 5*time.Second)
		must(t, err)
	}
}

func execAccepted(id string) protocol.Event {
	return protocol.Event{Kind: protocol.ExecAccepted, Exec: &protocol.ExecDetails{
		ID: id, Spec: &protocol.ExecSpec{Command: []string{"true"}}}}
}

// A deployment that requires signatures continues the histories of an earlier version, and does not accept unsigned
// messages any more.
func TestAnUnsignedHistoryIsContinuedWithSignatures(t *testing.T) {
	f := &signedFleet{issuer: startIssuer(t)}
	c1 := f.connect(t, protocol.Writer{Role: protocol.OwnerCoordinator, Name: "c1"})
	must(t, c1.Provision(t.Context(), jetstream.Assets{}))
	unsignedHistory(t, c1.raw)
	w1 := f.connect(t, protocol.Writer{Role: protocol.OwnerWorker, Name: "w1", Host: "h1"})
	must(t, w1.Open(t.Context()))
	wantError(t, w1.RegisterWriter(t.Context(), w1.Role, w1.Name, w1.Host),
		protocol.FailedPrecondition, protocol.ReasonNotProvisioned)
	if _, required, err := w1.Since(t.Context()); required || err != nil {
		t.Fatalf("signatures are required before a coordinator has a key: %v", err)
	}

	f.coordinator, f.worker = f.register(t, c1), f.register(t, w1)
	last, err := c1.LastRecord(t.Context())
	must(t, err)
	since, required, err := f.worker.Since(t.Context())
	if must(t, err); !required || since != last || last != 6 {
		t.Fatalf("unsigned messages are accepted up to record %d (%v), the log ends at %d", since, required, last)
	}
	c2 := f.register(t, f.connect(t, protocol.Writer{Role: protocol.OwnerCoordinator, Name: "c2"}))
	do(t, f.coordinator.journal("t1", "s1"), execAccepted("x2"))
	do(t, f.worker.journal("t1", "s1"), protocol.Event{Kind: protocol.ExecStarted,
		Exec: &protocol.ExecDetails{ID: "x2", Boot: "b1"}})
	do(t, c2.journal("t1", "s1"), execAccepted("x3"))
	if again, _, err := c2.Since(t.Context()); err != nil || again != since {
		t.Errorf("the second coordinator has record %d, %v; want %d", again, err, since)
	}
	unsigned := f.forge(t, c1, "t1", "s1", protocol.SandboxDeleteRequested)
	unsigned.unsigned = true
	unsigned.send(t)

	s, batches := readHistory(t, f.coordinator.Conn, "t1", "s1")
	signed := ""
	for _, b := range batches {
		signed += fmt.Sprint(b.Proof.Signature != nil, " ")
	}
	if want := strings.Repeat("false ", 6) + strings.Repeat("true ", 3); signed != want ||
		s.Sandbox.State != protocol.StateReady {
		t.Errorf("the batches are signed: %s; want %s; the sandbox is %s", signed, want, s.Sandbox.State)
	}
	if log := c1.log.String(); !strings.Contains(log, "after=6") {
		t.Errorf("the log does not name the change: %s", log)
	}
}

// A process without a key must not append messages that all other processes would refuse.
func TestAWriterWithoutAKeyFailsAtItsStart(t *testing.T) {
	// The server takes tokens, so nobody has a key. The raw request below makes the deployment require signatures.
	d := startServer(t, jetstream.Assets{})
	c := d.opened(t)
	must(t, c.RegisterWriter(t.Context(), protocol.OwnerCoordinator, "c1", ""))
	readySandbox(t, c, d.tenant, "s1")
	_, err := d.raw(t).Request(protocol.WritersSince, protocol.Encode(map[string]any{"v": 1, "record": 1}), time.Second)
	must(t, err)
	late := d.opened(t)
	wantError(t, late.RegisterWriter(t.Context(), protocol.OwnerCoordinator, "c1", ""),
		protocol.FailedPrecondition, protocol.ReasonNoKey)
	wantError(t, late.RegisterWriter(t.Context(), protocol.OwnerWorker, "w1", "h1"),
		protocol.FailedPrecondition, protocol.ReasonNoKey)
	_, err = journal(late, d.tenant, "s1", "c1").Do(t.Context(), acceptExec("x1"))
	wantError(t, err, protocol.FailedPrecondition, protocol.ReasonNoKey)
}

// The first registration of a key counts, so that nobody can change later to whom a message belongs.
func TestAKeyBelongsToTheWriterThatRegisteredItFirst(t *testing.T) {
	f := startSigned(t)
	for _, w := range []protocol.Writer{
		{Role: protocol.OwnerCoordinator, Name: "c1"}, {Role: protocol.OwnerWorker, Name: "w1", Host: "h1"},
	} {
		_, err := f.rogue.raw.Request(protocol.WriterSubject(w.Role, w.Name, w.Host, f.rogue.id), nil, time.Second)
		must(t, err)
	}
	fresh := f.register(t, f.connect(t, protocol.Writer{Role: protocol.OwnerCoordinator, Name: "c3"}))
	owner, err := fresh.Conn.Writer(t.Context(), f.rogue.id)
	if must(t, err); owner != f.rogue.Writer {
		t.Errorf("the key of w2 belongs to %+v", owner)
	}
	err = f.rogue.RegisterWriter(t.Context(), protocol.OwnerCoordinator, "c1", "")
	wantError(t, err, protocol.PermissionDenied, "")
	f.ready(t, "t1", "s1")
	f.forge(t, f.rogue, "t1", "s1", protocol.SandboxDeleteRequested).send(t)
	if s, _ := readHistory(t, fresh.Conn, "t1", "s1"); s.Sandbox.State != protocol.StateReady {
		t.Errorf("the sandbox is %s", s.Sandbox.State)
	}
	_, err = fresh.Conn.Writer(t.Context(), strings.Replace(f.rogue.id, "U", "V", 1))
	wantError(t, err, protocol.NotFound, "")
}

// A message stays refused when its key is registered later. Otherwise, readers that come later would see another
// history.
func TestAKeyProvesNothingThatWasStoredBeforeItsRegistration(t *testing.T) {
	f := startSigned(t)
	f.ready(t, "t1", "s1")
	late := f.connect(t, protocol.Writer{Role: protocol.OwnerWorker, Name: "w1", Host: "h1"})
	m := f.forge(t, late, "t1", "s1", protocol.PrimaryEnded)
	m.batch.Events[0].Primary = &protocol.PrimaryDetails{Boot: "b1"}
	m.send(t)
	early, _ := readHistory(t, f.coordinator.Conn, "t1", "s1")
	f.register(t, late)
	do(t, late.journal("t1", "s1"), protocol.Event{Kind: protocol.PrimaryStarted,
		Primary: &protocol.PrimaryDetails{Boot: "b1"}})
	fresh := f.register(t, f.connect(t, protocol.Writer{Role: protocol.OwnerCoordinator, Name: "c3"}))
	for _, reader := range []*member{fresh, f.coordinator} {
		s, batches := readHistory(t, reader.Conn, "t1", "s1")
		if s.Sandbox.Sequence != early.Sandbox.Sequence+1 || len(batches) != 3 {
			t.Errorf("%s sees %d batches, %s, after the registration; the early reader saw %s", reader.Name, len(batches),
				seen(s), seen(early))
		}
	}
}

// New credentials have a new key. The process registers it and signs with it, without a restart.
func TestAWriterSignsWithItsNewKey(t *testing.T) {
	f := startSigned(t)
	f.ready(t, "t1", "s1")
	before := f.worker.id
	f.issue(t, f.worker.creds, time.Hour)
	must(t, f.worker.Reconnect())
	n := 0
	eventually.Holds(t, 20*time.Second, "the worker signs with its new key", func() bool {
		n++
		do(t, f.worker.journal("t1", "s1"), protocol.Event{Kind: protocol.PrimaryStarted,
			Primary: &protocol.PrimaryDetails{Boot: "b1", Restarts: n}})
		last, err := f.coordinator.LastBatch(t.Context(), "t1", "s1")
		must(t, err)
		return last.Proof.Signature.Key != before
	})
	if _, batches := readHistory(t, f.coordinator.Conn, "t1", "s1"); len(batches) != 2+n {
		t.Errorf("%d batches are part of the history, want %d", len(batches), 2+n)
	}
}

// Ten thousand forged messages take time to read, but they neither change the history nor fill the log file.
func TestAFloodOfForgeriesChangesNothing(t *testing.T) {
	t.Parallel()
	const flood = 10_000
	f := startSigned(t)
	f.ready(t, "t1", "s1")
	deciding, working := f.coordinator.journal("t1", "s1"), f.worker.journal("t1", "s1")
	must(t, deciding.Refresh(t.Context()))
	must(t, working.Refresh(t.Context()))
	followed := f.coordinator.journal("t1", "s1")
	following := follow(t, f.coordinator, followed, "t1", "s1")
	kinds := []func(m *forgery){
		func(m *forgery) { m.unsigned = true },
		func(m *forgery) { m.after = 0 },
		func(m *forgery) { m.payload = []byte("garbage") },
		func(m *forgery) { m.previous[0]++ },
		func(m *forgery) {},
	}
	m := f.forge(t, f.rogue, "t1", "s1", protocol.SandboxDeleted)
	m.after = 0
	for i := range flood {
		one := *m
		kinds[i%len(kinds)](&one)
		msg := one.message()
		must(t, f.rogue.raw.PublishMsg(msg))
	}
	must(t, f.rogue.raw.Flush())

	begun := time.Now()
	do(t, deciding, execAccepted("x1"))
	decided := time.Since(begun)
	do(t, working, protocol.Event{Kind: protocol.ExecStarted, Exec: &protocol.ExecDetails{ID: "x1", Boot: "b1"}})
	_, end := working.State()
	following(end)
	s, batches := readHistory(t, f.coordinator.Conn, "t1", "s1")
	if s.Sandbox.ActiveExecs != 1 || len(batches) != 4 {
		t.Errorf("the history has %d batches, %s", len(batches), seen(s))
	}
	if lines := strings.Count(f.coordinator.log.String(), "not proven"); lines == 0 || lines > 20 {
		t.Errorf("the log has %d lines about it", lines)
	}
	snapshot := protocol.Encode(deciding.Snapshot())
	if len(snapshot) > 4<<10 {
		t.Errorf("the snapshot has %d bytes", len(snapshot))
	}
	t.Logf("an append after %d forgeries took %v; refused %d", flood, decided, f.coordinator.Refused())
}

// A worker receives a coordinator's batch in a notification, and continues the chain from this batch.
func TestANotificationContinuesTheChain(t *testing.T) {
	f := startSigned(t)
	f.ready(t, "t1", "s1")
	working := f.worker.journal("t1", "s1")
	must(t, working.Refresh(t.Context()))
	heard := make(chan bool, 10)
	stop, err := f.worker.Work("w1", func(_, _ string, b *protocol.Batch) { heard <- working.Receive(b) })
	must(t, err)
	defer stop()
	must(t, f.worker.Flush(t.Context()))
	for i := range 3 {
		do(t, f.coordinator.journal("t1", "s1"), execAccepted(fmt.Sprint("x", i)))
		last, err := f.coordinator.LastBatch(t.Context(), "t1", "s1")
		must(t, err)
		must(t, f.coordinator.Notify("w1", last))
		if receive(t, 5*time.Second, "the notification", heard) {
			t.Error("the worker has to read the log")
		}
		do(t, working, protocol.Event{Kind: protocol.ExecStarted,
			Exec: &protocol.ExecDetails{ID: fmt.Sprint("x", i), Boot: "b1"}})
	}
	if s, batches := readHistory(t, f.coordinator.Conn, "t1", "s1"); s.Sandbox.ActiveExecs != 3 || len(batches) != 8 {
		t.Errorf("the history has %d batches, %s", len(batches), seen(s))
	}
}

// The subject of a notification proves no sender. A worker believes a batch only if a coordinator signed the
// notification, for this worker, sandbox and content.
func TestAWorkerBelievesOnlyNotificationsOfCoordinators(t *testing.T) {
	f := startSigned(t)
	f.ready(t, "t1", "s1")
	must(t, f.worker.journal("t1", "s1").Refresh(t.Context()))
	_, err := f.worker.Conn.Writer(t.Context(), f.rogue.id)
	must(t, err)
	last, err := f.coordinator.LastBatch(t.Context(), "t1", "s1")
	must(t, err)
	heard := listenForWork(t, f.worker.Conn, "w1")
	type notice struct {
		by                                  *member
		deployment, worker, tenant, sandbox string
		record                              uint64 // in the content; the signature is for last.Record
	}
	fits := notice{f.coordinator, f.coordinator.Deployment(), "w1", "t1", "s1", last.Record}
	for name, change := range map[string]func(n *notice){
		"all right":          func(*notice) {},
		"unsigned":           func(n *notice) { n.by = nil },
		"of another worker":  func(n *notice) { n.by = f.rogue },
		"of an unknown key":  func(n *notice) { n.by = f.connect(t, protocol.Writer{}) },
		"another deployment": func(n *notice) { n.deployment = "d2" },
		"another receiver":   func(n *notice) { n.worker = "w2" },
		"another tenant":     func(n *notice) { n.tenant = "t2" },
		"another sandbox":    func(n *notice) { n.sandbox = "s2" },
		"another content":    func(n *notice) { n.record++ },
	} {
		n := fits
		change(&n)
		item := &protocol.WorkItem{Version: protocol.Version, Batch: last, Record: last.Record, Signed: true}
		hash := protocol.PayloadHash(protocol.Encode(item))
		item.Record = n.record
		m := nats.NewMsg(protocol.WorkSubject("w1", "t1", "s1"))
		m.Data = protocol.Encode(item)
		if n.by != nil {
			s := &protocol.Signature{Key: n.by.id}
			copy(s.Sum[:], ed25519.Sign(n.by.key, protocol.NotifiedText(n.deployment, n.worker, n.tenant, n.sandbox, hash)))
			m.Header.Set(protocol.HeaderSignature, s.String())
		}
		must(t, f.rogue.raw.PublishMsg(m))
		got := receive(t, 5*time.Second, "the notification", heard)
		if believed := got.batch != nil; believed != (n == fits) || got.sandbox != "s1" {
			t.Errorf("%s: believed %v", name, believed)
		}
	}
}

// A journal that begins with a snapshot continues the chain, also if an earlier version stored the snapshot.
func TestASnapshotContinuesTheChain(t *testing.T) {
	f := startSigned(t)
	for name, change := range map[string]func(s *jetstream.Snapshot){
		"present": func(*jetstream.Snapshot) {},
		"earlier": func(s *jetstream.Snapshot) { s.Chain, s.Refused = nil, nil },
	} {
		t.Run(name, func(t *testing.T) {
			f.ready(t, "t1", name)
			f.forge(t, f.rogue, "t1", name, protocol.SandboxDeleted).send(t)
			full := f.coordinator.journal("t1", name)
			do(t, full, execAccepted("x1"))
			s := full.Snapshot()
			change(s)
			var stored jetstream.Snapshot
			must(t, protocol.Decode(protocol.Encode(s), &stored))
			j := f.coordinator.journal("t1", name)
			j.Restore(&stored)
			j.Fresh()
			do(t, j, execAccepted("x2"))
			fresh := f.worker.journal("t1", name)
			must(t, fresh.Refresh(t.Context()))
			got, _ := fresh.State()
			want, _ := j.State()
			same(t, "the states", got, want)
			if got.Sandbox.ActiveExecs != 2 {
				t.Errorf("the sandbox has %s", seen(got))
			}
		})
	}
}

// Segments hold the messages as they were stored, so readers reach the same verdicts.
func TestSegmentsKeepTheVerdicts(t *testing.T) {
	t.Parallel()
	f := startSigned(t)
	t.Run("living", func(t *testing.T) { segmentsKeepTheVerdicts(t, f, "s1", false) })
	t.Run("ended", func(t *testing.T) { segmentsKeepTheVerdicts(t, f, "s2", true) })
}

func segmentsKeepTheVerdicts(t *testing.T, f *signedFleet, sandbox string, ended bool) {
	f.ready(t, "t1", sandbox)
	j := f.coordinator.journal("t1", sandbox)
	for i := range 40 {
		m := f.forge(t, f.rogue, "t1", sandbox, protocol.SandboxDeleted)
		if i%2 == 0 {
			m.after = 0
		}
		m.batch.Events[0].Sequence = 999
		if i%4 < 2 {
			m.batch.Events[0].Sequence = 1
		}
		m.send(t)
		do(t, j, execAccepted(fmt.Sprint("x", i)))
	}
	for range 5 {
		m := f.forge(t, f.rogue, "t1", sandbox, protocol.SandboxDeleted)
		m.batch.Events[0].Sequence = 1
		m.send(t)
	}
	must(t, j.Refresh(t.Context()))
	whole, batches := readHistory(t, f.coordinator.Conn, "t1", sandbox)
	if ended {
		must(t, f.coordinator.WriteEndedRecord(t.Context(), "t1", sandbox, j.Snapshot()))
	} else {
		_, err := f.coordinator.WriteSnapshot(t.Context(), "t1", sandbox, j.Snapshot(), 0)
		must(t, err)
	}
	readsFrom20 := func(c *member) {
		t.Helper()
		var found []uint64
		must(t, c.ReadEventsAt(t.Context(), "t1", sandbox, 20, func(b *protocol.Batch) bool {
			found = append(found, b.First())
			return true
		}))
		if len(found) == 0 || !slices.Contains(found, 20) || slices.Contains(found, 999) ||
			found[len(found)-1] != whole.Sandbox.Sequence {
			t.Errorf("reading from event 20 gives %v", found)
		}
	}
	readsFrom20(f.worker)
	f.coordinator.SmallSegments(1500, 3) // a forged message is the last one of some segments
	// Only forged messages stay in the log.
	done, err := f.coordinator.Compact(t.Context(), "t1", sandbox,
		jetstream.Compaction{Keep: 3, MinBatches: 1, MinBytes: 1})
	if must(t, err); done.Purged == 0 {
		t.Fatalf("nothing was moved: %+v", done)
	}
	for _, c := range []*member{f.coordinator, f.worker} {
		fresh := f.register(t, f.connectAs(t, c))
		s, again := readHistory(t, fresh.Conn, "t1", sandbox)
		same(t, "the states", s, whole)
		if len(again) != len(batches) {
			t.Errorf("%d batches after, %d before", len(again), len(batches))
		}
		oldest, err := fresh.OldestEvent(t.Context(), "t1", sandbox)
		if err != nil || oldest != 1 {
			t.Errorf("the oldest event is %d, %v", oldest, err)
		}
		readsFrom20(fresh)
		last, err := fresh.LastBatch(t.Context(), "t1", sandbox)
		if err != nil || last.Record != batches[len(batches)-1].Record {
			t.Errorf("the last batch is at %v, %v", last, err)
		}
	}
	if !ended {
		do(t, f.coordinator.journal("t1", sandbox), execAccepted("last"))
	}
}

// connectAs returns another connection of a member, with a key of its own.
func (f *signedFleet) connectAs(t testing.TB, m *member) *member { return f.connect(t, m.Writer) }

// The purge of a deleted sandbox keeps its last event, not the last message that somebody stored under its subject.
func TestAPurgeKeepsTheTrueEnd(t *testing.T) {
	f := startSigned(t)
	f.ready(t, "t1", "s1")
	do(t, f.coordinator.journal("t1", "s1"), protocol.Event{Kind: protocol.SandboxDeleteRequested})
	do(t, f.worker.journal("t1", "s1"), protocol.Event{Kind: protocol.SandboxDeleted})
	f.forge(t, f.rogue, "t1", "s1", protocol.SandboxDeleted).send(t)
	last, err := f.coordinator.LastBatch(t.Context(), "t1", "s1")
	must(t, err)
	must(t, f.coordinator.PurgeHistory(t.Context(), "t1", "s1"))
	f.forge(t, f.rogue, "t1", "s1", protocol.SandboxDeleted).send(t)
	j := f.worker.journal("t1", "s1")
	must(t, j.Refresh(t.Context()))
	if s, _ := j.State(); s.Sandbox.Sequence != last.Last() || !s.Sandbox.HistoryPurged {
		t.Errorf("the purged sandbox has %s, want event %d as its last", seen(s), last.Last())
	}
	if purged, err := f.coordinator.Purged(t.Context(), "t1", "s1"); err != nil || !purged {
		t.Errorf("the history counts as purged: %v, %v", purged, err)
	}
	// An id that no sandbox ever had does not become the id of a deleted sandbox.
	m := f.forge(t, f.rogue, "t1", "s1", protocol.SandboxDeleted)
	m.sandbox, m.batch.Sandbox, m.after = "s2", "s2", 0
	m.send(t)
	j = f.worker.journal("t1", "s2")
	must(t, j.Refresh(t.Context()))
	if s, _ := j.State(); s.Exists() {
		t.Errorf("a forged message made a sandbox that is %s", seen(s))
	}
	f.ready(t, "t1", "s2")
}

// A writer that loses a race signs its message again, because another message now precedes it.
func TestALostRaceIsSignedAgain(t *testing.T) {
	f := startSigned(t)
	f.ready(t, "t1", "s1")
	c2 := f.register(t, f.connect(t, protocol.Writer{Role: protocol.OwnerCoordinator, Name: "c2"}))
	done := make(chan error)
	const each = 50
	for _, m := range []*member{f.coordinator, c2} {
		go func() {
			j := m.journal("t1", "s1")
			var err error
			for i := range each {
				if err == nil {
					_, err = j.Do(context.WithoutCancel(t.Context()), acceptExec(fmt.Sprint(m.Name, "-", i)))
				}
			}
			done <- err
		}()
	}
	must(t, <-done)
	must(t, <-done)
	if s, _ := readHistory(t, f.worker.Conn, "t1", "s1"); s.Sandbox.ActiveExecs != 2*each {
		t.Errorf("the sandbox has %s, want %d execs", seen(s), 2*each)
	}
	if n := f.coordinator.Refused() + c2.Refused() + f.worker.Refused(); n != 0 {
		t.Errorf("%d messages were refused", n)
	}
}

// A journal remembers 1,000 ranges of refused messages. Readers do not show the older ones as part of the history.
func TestARefusedMessageIsNeverShownHoweverManyThereAre(t *testing.T) {
	t.Parallel()
	const forged = 1500
	f := startSigned(t)
	f.ready(t, "t1", "s1")
	j := f.coordinator.journal("t1", "s1")
	m := f.forge(t, f.rogue, "t1", "s1", protocol.SandboxDeleted)
	m.after = 0
	message := m.message()
	for i := range forged {
		must(t, f.rogue.raw.PublishMsg(message))
		must(t, f.rogue.raw.Flush())
		do(t, j, execAccepted(fmt.Sprint("x", i)))
	}
	_, err := f.coordinator.WriteSnapshot(t.Context(), "t1", "s1", j.Snapshot(), 0)
	must(t, err)
	const all = 2 + forged
	reads := func(when string, c *member, want int) {
		t.Helper()
		batches, err := c.HistoryTail(t.Context(), "t1", "s1", 0)
		must(t, err)
		for _, b := range batches {
			if b.Writer == f.rogue.Name {
				t.Fatalf("%s, a reader shows the forged message at record %d", when, b.Record)
			}
		}
		if len(batches) != want {
			t.Errorf("%s, a reader shows %d messages, want %d", when, len(batches), want)
		}
	}
	judged := f.register(t, f.connectAs(t, f.coordinator))
	judged.JudgeBy(func(ctx context.Context, _, _ string, _ uint64) (*jetstream.Judged, error) {
		return j.Judged(), ctx.Err()
	})
	reads("with the journal of a coordinator", judged, all)
	reads("from a snapshot", f.worker, all)
	_, err = f.coordinator.Batch(t.Context(), "t1", "s1", 3)
	wantError(t, err, protocol.NotFound, "")

	// The oldest 100 messages are moved to a segment, and then expire.
	c := jetstream.Compaction{Keep: 2*forged - 100, MinBatches: 1, MinBytes: 1}
	done, err := f.coordinator.Compact(t.Context(), "t1", "s1", c)
	if must(t, err); done.Segments == 0 || done.Purged == 0 {
		t.Fatalf("nothing was moved: %+v", done)
	}
	reads("from segments and the log", f.register(t, f.connectAs(t, f.worker)), all)
	c.MaxAge = time.Nanosecond
	done, err = f.coordinator.Compact(t.Context(), "t1", "s1", c)
	if must(t, err); done.Dropped == 0 {
		t.Fatalf("nothing was dropped: %+v", done)
	}
	// Nobody can tell any more which of the oldest messages were refused, so readers show none of these messages.
	reads("after the oldest messages expired", f.register(t, f.connectAs(t, f.worker)), 1000)
}

// The messages before a forged one have expired. A reader still starts with the state that replaces them.
func TestAForgedMessageAtTheStartOfTheLogHidesNoHistory(t *testing.T) {
	f := startSigned(t)
	f.ready(t, "t1", "s1")
	j := f.coordinator.journal("t1", "s1")
	for i := range 10 {
		m := f.forge(t, f.rogue, "t1", "s1", protocol.SandboxDeleted)
		m.after = 0
		m.send(t)
		do(t, j, execAccepted(fmt.Sprint("x", i)))
	}
	_, err := f.coordinator.WriteSnapshot(t.Context(), "t1", "s1", j.Snapshot(), 0)
	must(t, err)
	for _, keep := range []int{8, 6} { // the oldest message in the log is forged in one case only
		c := jetstream.Compaction{Keep: keep, MinBatches: 1, MinBytes: 1, MaxAge: time.Nanosecond}
		done, err := f.coordinator.Compact(t.Context(), "t1", "s1", c)
		if must(t, err); done.Dropped == 0 {
			t.Fatalf("nothing was dropped: %+v", done)
		}
		fresh := f.worker.journal("t1", "s1")
		must(t, fresh.Refresh(t.Context()))
		got, _ := fresh.State()
		want, _ := j.State()
		same(t, "a new reader's and the coordinator's states", seen(got), seen(want))
		do(t, fresh, protocol.Event{Kind: protocol.ExecStarted,
			Exec: &protocol.ExecDetails{ID: fmt.Sprint("x", keep), Boot: "b1"}})
		must(t, j.Refresh(t.Context()))
	}
	// No state is stored for a history that begins with forged messages.
	m := f.forge(t, f.rogue, "t1", "s1", protocol.ServiceReady)
	m.sandbox, m.batch.Sandbox, m.after, m.batch.Events[0].Sequence = "s2", "s2", 0, 99
	m.send(t)
	m.send(t)
	f.ready(t, "t1", "s2")
}
