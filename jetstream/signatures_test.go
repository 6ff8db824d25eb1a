package jetstream_test

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/oklog/ulid/v2"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// signedFleet is a deployment in which every writer has a key. Its server lets each user publish everything, so that
// only signatures tell a forger from a writer.
type signedFleet struct {
	*issuer
	coordinator, worker *member
	rogue               *member // the worker of another host, which forges messages
}

// member is a coordinator or worker with a key.
type member struct {
	*jetstream.Conn
	protocol.Writer
	log   *eventually.Buffer
	creds string
	raw   *nats.Conn
	key   ed25519.PrivateKey
	id    string // public form of key
}

// startSigned starts a deployment with a coordinator c1, a worker w1 of host h1, and a rogue worker w2 of host h2.
func startSigned(t testing.TB) *signedFleet {
	t.Helper()
	f := &signedFleet{issuer: startIssuer(t)}
	c1 := f.connect(t, protocol.Writer{Role: protocol.OwnerCoordinator, Name: "c1"})
	must(t, c1.Provision(t.Context(), jetstream.Assets{}))
	f.coordinator = f.register(t, c1)
	f.worker = f.register(t, f.connect(t, protocol.Writer{Role: protocol.OwnerWorker, Name: "w1", Host: "h1"}))
	f.rogue = f.register(t, f.connect(t, protocol.Writer{Role: protocol.OwnerWorker, Name: "w2", Host: "h2"}))
	return f
}

// connect connects a member that has new credentials, and does not register its key.
func (f *signedFleet) connect(t testing.TB, w protocol.Writer) *member {
	t.Helper()
	m := &member{Writer: w, log: &eventually.Buffer{}, creds: filepath.Join(t.TempDir(), "creds")}
	f.issue(t, m.creds, time.Hour)
	var err error
	m.Conn, err = jetstream.Connect(t.Context(), jetstream.Config{
		URL: f.server.ClientURL(), Creds: m.creds, Logger: slog.New(slog.NewTextHandler(m.log, nil)),
	})
	must(t, err)
	t.Cleanup(m.Close)
	m.raw, err = nats.Connect(f.server.ClientURL(), nats.UserCredentials(m.creds))
	must(t, err)
	t.Cleanup(m.raw.Close)
	text, err := os.ReadFile(m.creds)
	must(t, err)
	pair, err := nkeys.ParseDecoratedUserNKey(text)
	must(t, err)
	seed, err := pair.Seed()
	must(t, err)
	_, raw, err := nkeys.DecodeSeed(seed)
	must(t, err)
	m.key = ed25519.NewKeyFromSeed(raw)
	m.id, err = pair.PublicKey()
	must(t, err)
	return m
}

func (f *signedFleet) register(t testing.TB, m *member) *member {
	t.Helper()
	must(t, m.Open(t.Context()))
	must(t, m.RegisterWriter(t.Context(), m.Role, m.Name, m.Host))
	return m
}

// journal returns the journal of a member.
func (m *member) journal(tenant, sandbox string) *jetstream.Journal {
	return journal(m.Conn, tenant, sandbox, m.Name)
}

// events returns a decision for events.
func events(e ...protocol.Event) jetstream.Decide {
	return func(*protocol.State, time.Time) ([]protocol.Event, error) { return e, nil }
}

// ready makes a sandbox of the worker w1 that accepts execs.
func (f *signedFleet) ready(t testing.TB, tenant, sandbox string) {
	t.Helper()
	do(t, f.coordinator.journal(tenant, sandbox), protocol.Event{Kind: protocol.SandboxAccepted, Request: "r1",
		Details: &protocol.SandboxDetails{Spec: &protocol.SandboxSpec{Image: "x"}}},
		protocol.Event{Kind: protocol.SandboxAssigned,
			Details: &protocol.SandboxDetails{Worker: "w1", HostID: "h1", Generation: 1}})
	do(t, f.worker.journal(tenant, sandbox), protocol.Event{Kind: protocol.SandboxReady,
		Details: &protocol.SandboxDetails{Boot: "b1"}})
}

func do(t testing.TB, j *jetstream.Journal, e ...protocol.Event) {
	t.Helper()
	_, err := j.Do(t.Context(), events(e...))
	must(t, err)
}

// forgery is a message that somebody makes without a journal.
type forgery struct {
	by         *member
	tenant     string
	sandbox    string
	batch      *protocol.Batch
	previous   protocol.Hash
	deployment string
	after      uint64 // record that the server is told to expect; 0: none
	unsigned   bool
	payload    []byte // instead of the batch
	other      string // subject whose last record the server compares with after; empty: the history's subject
	claims     string // key that the header names instead of the signing key
}

// forge prepares a message at the end of a sandbox's history. The message is valid if the worker w1 sends it.
func (f *signedFleet) forge(t testing.TB, by *member, tenant, sandbox string, kind protocol.Kind) *forgery {
	t.Helper()
	last, err := f.coordinator.LastBatch(t.Context(), tenant, sandbox)
	must(t, err)
	query, err := json.Marshal(map[string]any{"last_by_subj": protocol.EventSubject(tenant, sandbox)})
	must(t, err)
	reply, err := by.raw.Request("$JS.API.STREAM.MSG.GET."+protocol.StreamEvents, query, 5*time.Second)
	must(t, err)
	var newest struct{ Message struct{ Seq uint64 } }
	must(t, json.Unmarshal(reply.Data, &newest))
	return &forgery{
		by: by, tenant: tenant, sandbox: sandbox, previous: last.Proof.Hash, after: newest.Message.Seq,
		deployment: f.coordinator.Deployment(),
		batch: &protocol.Batch{
			Version: protocol.Version, Tenant: tenant, Sandbox: sandbox, Writer: by.Name,
			ID:     strings.ToLower(ulid.Make().String()),
			Events: []protocol.Event{{Sequence: last.Last() + 1, Kind: kind, Time: time.Now().UTC()}},
		},
	}
}

// send stores the message.
func (m *forgery) send(t testing.TB) {
	t.Helper()
	answer, err := m.by.raw.RequestMsg(m.message(), 5*time.Second)
	must(t, err)
	if strings.Contains(string(answer.Data), "error") {
		t.Fatalf("the server did not store the forgery: %s", answer.Data)
	}
}

func (m *forgery) message() *nats.Msg {
	msg := nats.NewMsg(protocol.AppendSubject(m.by.Name, m.tenant, m.sandbox))
	if msg.Data = m.payload; msg.Data == nil {
		msg.Data = m.batch.Encode()
	}
	if m.after != 0 {
		msg.Header.Set("Nats-Expected-Last-Subject-Sequence", strconv.FormatUint(m.after, 10))
	}
	if m.other != "" {
		msg.Header.Set("Nats-Expected-Last-Subject-Sequence", "0")
		msg.Header.Set("Nats-Expected-Last-Subject-Sequence-Subject", m.other)
	}
	if !m.unsigned {
		hash := protocol.PayloadHash(msg.Data)
		s := &protocol.Signature{Key: m.by.id, Previous: m.previous}
		copy(s.Sum[:], ed25519.Sign(m.by.key, protocol.SignedText(m.deployment, m.tenant, m.sandbox, m.previous, hash)))
		if m.claims != "" {
			s.Key = m.claims
		}
		msg.Header.Set(protocol.HeaderSignature, s.String())
	}
	return msg
}

// forgeries returns functions that make forged messages, by name. No reader may accept these messages.
func forgeries(f *signedFleet) map[string]func(t *testing.T, tenant, sandbox string) *forgery {
	const deleted = protocol.SandboxDeleteRequested
	simple := func(by *member, kind protocol.Kind, change func(m *forgery)) func(*testing.T, string, string) *forgery {
		return func(t *testing.T, tenant, sandbox string) *forgery {
			m := f.forge(t, by, tenant, sandbox, kind)
			change(m)
			return m
		}
	}
	return map[string]func(t *testing.T, tenant, sandbox string) *forgery{
		"a coordinator's name":    simple(f.rogue, deleted, func(m *forgery) { m.batch.Writer = "c1" }),
		"the wrong worker":        simple(f.rogue, protocol.ServiceReady, func(m *forgery) {}),
		"the worker's name":       simple(f.rogue, protocol.ServiceReady, func(m *forgery) { m.batch.Writer = "w1" }),
		"a coordinator's event":   simple(f.worker, deleted, func(m *forgery) {}),
		"a worker's event":        simple(f.coordinator, protocol.ServiceReady, func(m *forgery) {}),
		"unsigned":                simple(f.coordinator, deleted, func(m *forgery) { m.unsigned = true }),
		"unsigned, out of order":  simple(f.coordinator, deleted, func(m *forgery) { m.unsigned, m.after = true, 0 }),
		"another deployment":      simple(f.coordinator, deleted, func(m *forgery) { m.deployment = "other" }),
		"another place":           simple(f.coordinator, deleted, func(m *forgery) { m.previous = protocol.Hash{} }),
		"without a place in line": simple(f.coordinator, deleted, func(m *forgery) { m.after = 0 }),
		"events from the past":    simple(f.coordinator, deleted, func(m *forgery) { m.batch.Events[0].Sequence = 1 }),
		"events from the future":  simple(f.coordinator, deleted, func(m *forgery) { m.batch.Events[0].Sequence = 99 }),
		"a false end": simple(f.rogue, protocol.SandboxDeleted,
			func(m *forgery) { m.batch.Events[0].Sequence = 99 }),
		"another sandbox's content": simple(f.coordinator, deleted, func(m *forgery) { m.batch.Sandbox = "s9" }),
		"no content":                simple(f.rogue, deleted, func(m *forgery) { m.payload = []byte("garbage") }),
		"no content, unsigned":      simple(f.rogue, deleted, func(m *forgery) { m.payload, m.unsigned = []byte("x"), true }),
		"garbage of the worker":     simple(f.worker, deleted, func(m *forgery) { m.payload = []byte("garbage") }),
		"the worker's new version":  simple(f.worker, protocol.ServiceReady, func(m *forgery) { m.batch.Version = 99 }),
		"garbage of a coordinator":  simple(f.coordinator, deleted, func(m *forgery) { m.payload = []byte("garbage") }),
		"a newer version":           simple(f.rogue, protocol.ServiceReady, func(m *forgery) { m.batch.Version = 99 }),
		"a newer version that a coordinator seems to sign": simple(f.rogue, protocol.ServiceReady, func(m *forgery) {
			m.batch.Version, m.claims = 99, f.coordinator.id
		}),
		"the last record of another subject": simple(f.rogue, protocol.SandboxDeleted, func(m *forgery) {
			m.after, m.other = 0, protocol.EventSubject("nobody", "nothing")
			m.batch.Events[0].Sequence = 99
		}),
		"an unknown key": func(t *testing.T, tenant, sandbox string) *forgery {
			stranger := f.connect(t, protocol.Writer{Role: protocol.OwnerCoordinator, Name: "c1"})
			return f.forge(t, stranger, tenant, sandbox, deleted)
		},
		"a copy of another sandbox's message": func(t *testing.T, tenant, sandbox string) *forgery {
			f.ready(t, tenant, sandbox+"-other")
			do(t, f.coordinator.journal(tenant, sandbox+"-other"), protocol.Event{Kind: deleted})
			m := f.forge(t, f.coordinator, tenant, sandbox+"-other", deleted)
			m.tenant, m.sandbox, m.after = tenant, sandbox, 0
			return m
		},
	}
}

// seen describes the state that one reader has folded.
func seen(s *protocol.State) string {
	return fmt.Sprintf("%s, %d events, %d active execs", s.Sandbox.State, s.Sandbox.Sequence, s.Sandbox.ActiveExecs)
}

// No reader accepts a forged message, all readers agree, and the sandbox still works.
func TestForgedMessagesChangeNothing(t *testing.T) {
	f := startSigned(t)
	for name, make := range forgeries(f) {
		t.Run(name, func(t *testing.T) {
			const tenant = "t1"
			sandbox := "s-" + strings.ReplaceAll(strings.ReplaceAll(name, " ", "-"), ",", "")
			sandbox = strings.ReplaceAll(sandbox, "'", "")
			f.ready(t, tenant, sandbox)
			deciding, working := f.coordinator.journal(tenant, sandbox), f.worker.journal(tenant, sandbox)
			must(t, deciding.Refresh(t.Context()))
			must(t, working.Refresh(t.Context()))
			before, at := deciding.State()
			following := follow(t, f.coordinator, f.coordinator.journal(tenant, sandbox), tenant, sandbox)

			make(t, tenant, sandbox).send(t)
			refused := f.coordinator.Refused()
			fresh := f.coordinator.journal(tenant, sandbox)
			must(t, fresh.Refresh(t.Context()))
			after, _ := fresh.State()
			same(t, "the states before and after", after, before)
			if f.coordinator.Refused() == refused {
				t.Error("the message was not counted")
			}
			if log := f.coordinator.log.String(); !strings.Contains(log, "writer is not proven") {
				t.Errorf("the log does not say so: %s", log)
			}
			last, err := f.coordinator.LastBatch(t.Context(), tenant, sandbox)
			if must(t, err); last.Record != at {
				t.Errorf("the last batch is at %d, want %d", last.Record, at)
			}

			// The journals that were open before still append, and agree.
			do(t, deciding, protocol.Event{Kind: protocol.ExecAccepted, Exec: &protocol.ExecDetails{
				ID: "x1", Spec: &protocol.ExecSpec{Command: []string{"true"}}}})
			do(t, working, protocol.Event{Kind: protocol.ExecStarted, Exec: &protocol.ExecDetails{ID: "x1", Boot: "b1"}})
			must(t, deciding.Refresh(t.Context()))
			decided, end := deciding.State()
			worked, _ := working.State()
			same(t, "the coordinator's and the worker's states", decided, worked)
			following(end)
			again := f.worker.journal(tenant, sandbox)
			must(t, again.Refresh(t.Context()))
			read, _ := again.State()
			same(t, "a new reader's and the worker's states", read, worked)
			state, batches := readHistory(t, f.coordinator.Conn, tenant, sandbox)
			if seen(state) != seen(worked) || len(batches) != 4 {
				t.Errorf("reading gives %d batches, %s; want 4, %s", len(batches), seen(state), seen(worked))
			}
			for _, b := range batches {
				if b.Proof.Signature == nil {
					t.Errorf("the batch at %d is not signed", b.Record)
				}
			}
		})
	}
}

// A coordinator of a newer version has made a decision that this version does not understand, so readers of this
// version must stop.
func TestReadersStopAtACoordinatorsNewerVersion(t *testing.T) {
	f := startSigned(t)
	f.ready(t, "t1", "s1")
	m := f.forge(t, f.coordinator, "t1", "s1", protocol.SandboxDeleteRequested)
	m.batch.Version = 99
	m.send(t)
	err := f.worker.journal("t1", "s1").Refresh(t.Context())
	if protocol.AsError(err).Reason != protocol.ReasonUnsupportedVersion {
		t.Errorf("reading the history: %v, want unsupported_version", err)
	}
}

// follow makes a journal receive the messages that the log delivers. caughtUp waits until the journal has folded a
// record.
func follow(t *testing.T, m *member, j *jetstream.Journal, tenant, sandbox string) (caughtUp func(record uint64)) {
	t.Helper()
	from, err := m.LastRecord(t.Context())
	must(t, err)
	must(t, j.Refresh(t.Context()))
	received := make(chan uint64, 1000)
	background(t, func(ctx context.Context) error {
		return m.FollowEvents(ctx, from+1, func(b *protocol.Batch) {
			if b.Tenant != tenant || b.Sandbox != sandbox {
				return
			}
			if j.Receive(b) {
				_ = j.Refresh(ctx) // if this fails, the caller's check fails too
			}
			received <- b.Record
		}, nil)
	})
	return func(record uint64) {
		t.Helper()
		for receive(t, 10*time.Second, "the follower's batch", received) < record {
		}
		if _, at := j.State(); at != record {
			t.Errorf("the following journal is at %d, want %d", at, record)
		}
	}
}

// A journal that follows the log judges each message like a journal that reads the log, and remembers the refused
// messages.
func TestAFollowingJournalRefusesForgeries(t *testing.T) {
	f := startSigned(t)
	f.ready(t, "t1", "s1")
	j := f.coordinator.journal("t1", "s1")
	following := follow(t, f.coordinator, j, "t1", "s1")
	do(t, j, execAccepted("first")) // the journal recognizes its own signature without a check
	for i, change := range []func(m *forgery){
		func(m *forgery) { m.unsigned = true },
		func(m *forgery) { m.batch.Writer, m.claims = "c1", f.coordinator.id },
		func(m *forgery) { m.batch.Events[0].Kind = protocol.ServiceReady },
	} {
		m := f.forge(t, f.rogue, "t1", "s1", protocol.SandboxDeleteRequested)
		change(m)
		m.send(t)
		do(t, f.worker.journal("t1", "s1"), protocol.Event{Kind: protocol.PrimaryStarted,
			Primary: &protocol.PrimaryDetails{Boot: "b1", Restarts: i + 1}})
	}
	last, err := f.worker.LastBatch(t.Context(), "t1", "s1")
	must(t, err)
	following(last.Record)
	got, _ := j.State()
	want, _ := readHistory(t, f.worker.Conn, "t1", "s1")
	same(t, "the following journal's and a reader's states", seen(got), seen(want))

	judged := f.register(t, f.connectAs(t, f.coordinator))
	judged.JudgeBy(func(context.Context, string, string, uint64) (*jetstream.Judged, error) { return j.Judged(), nil })
	if _, batches := readHistory(t, judged.Conn, "t1", "s1"); len(batches) != 6 {
		t.Errorf("a reader that asks the journal sees %d messages, want 6", len(batches))
	}
}

// The journal that a reader asks has not folded the last message, which is forged. The reader must not show the
// message, and cannot know that the history ends before it.
func TestAReaderWaitsForAJournalThatIsBehind(t *testing.T) {
	f := startSigned(t)
	f.ready(t, "t1", "s1")
	j := f.coordinator.journal("t1", "s1")
	must(t, j.Refresh(t.Context()))
	behind := j.Judged()
	f.forge(t, f.rogue, "t1", "s1", protocol.SandboxDeleteRequested).send(t)
	reader := f.register(t, f.connectAs(t, f.coordinator))
	reader.JudgeBy(func(context.Context, string, string, uint64) (*jetstream.Judged, error) { return behind, nil })
	batches, err := reader.HistoryTail(t.Context(), "t1", "s1", 0)
	if protocol.CodeOf(err) != protocol.Unavailable {
		t.Errorf("the reader sees %d messages, %v; want unavailable", len(batches), err)
	}
}
