package evidence

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/boxfleet/boxfleet/protocol"
)

var start = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// process is a coordinator or worker with a key.
type process struct {
	protocol.RegisteredWriter
	private ed25519.PrivateKey
}

func newProcess(t *testing.T, role protocol.Owner, name, host string) process {
	t.Helper()
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := pair.Seed()
	if err != nil {
		t.Fatal(err)
	}
	_, raw, err := nkeys.DecodeSeed(seed)
	if err != nil {
		t.Fatal(err)
	}
	key, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return process{protocol.RegisteredWriter{Key: key, Role: role, Name: name, Host: host, At: start},
		ed25519.NewKeyFromSeed(raw)}
}

// history is a stored history that a test writes.
type history struct {
	t                          *testing.T
	Evidence                   Evidence
	state                      *protocol.State
	last                       protocol.Hash // of the last accepted message
	coordinator, worker, other process
}

func newHistory(t *testing.T) *history {
	t.Helper()
	h := &history{t: t, state: &protocol.State{},
		coordinator: newProcess(t, protocol.OwnerCoordinator, "c1", ""),
		worker:      newProcess(t, protocol.OwnerWorker, "w1", "h1"),
		other:       newProcess(t, protocol.OwnerWorker, "w2", "h2")}
	h.Evidence = Evidence{Tenant: "acme", Sandbox: "s", Taken: start.Add(time.Hour),
		Writers: protocol.WriterPage{Deployment: "d1", Signed: true, Since: 10, Writers: []protocol.RegisteredWriter{
			h.coordinator.RegisteredWriter, h.worker.RegisteredWriter, h.other.RegisteredWriter}}}
	return h
}

// batch returns a batch with the next events.
func (h *history) batch(writer string, events ...protocol.Event) *protocol.Batch {
	n := len(h.Evidence.Messages)
	for i := range events {
		events[i].Sequence = h.state.Sandbox.Sequence + 1 + uint64(i)
		events[i].Time = start.Add(time.Duration(n) * time.Minute)
	}
	return &protocol.Batch{Version: protocol.Version, Tenant: "acme", Sandbox: "s", ID: "b" + strconv.Itoa(n),
		Writer: writer, Events: events}
}

// store stores a message. by is nil for a message without a signature.
func (h *history) store(b *protocol.Batch, by *process, previous protocol.Hash) protocol.Hash {
	data := b.Encode()
	m := protocol.StoredMessage{Record: 11, At: start.Add(time.Minute), Data: data, Headers: map[string][]string{}}
	expected := uint64(0)
	if n := len(h.Evidence.Messages); n > 0 {
		before := h.Evidence.Messages[n-1]
		expected, m.Record, m.At = before.Record, before.Record+2, before.At.Add(time.Second)
	}
	m.Headers[headerExpected] = []string{strconv.FormatUint(expected, 10)}
	if by != nil {
		s := &protocol.Signature{Key: by.Key, Previous: previous}
		copy(s.Sum[:], ed25519.Sign(by.private,
			protocol.SignedText("d1", b.Tenant, b.Sandbox, previous, protocol.PayloadHash(data))))
		m.Headers[protocol.HeaderSignature] = []string{s.String()}
	}
	h.Evidence.Messages = append(h.Evidence.Messages, m)
	return protocol.PayloadHash(data)
}

// append stores a message that is part of the history.
func (h *history) append(by *process, events ...protocol.Event) {
	h.t.Helper()
	b := h.batch(by.Name, events...)
	for i := range events {
		e := &b.Events[i]
		if err := h.state.Apply(e); err != nil {
			h.t.Fatal(err)
		}
		e.State = h.state.Sandbox.State
		if e.Exec != nil {
			e.Exec.State = h.state.Execs[e.Exec.ID].State
		}
	}
	h.last = h.store(b, by, h.last)
}

// live writes the history of a sandbox that ran one exec.
func live(t *testing.T) *history {
	h := newHistory(t)
	h.append(&h.coordinator, protocol.Event{Kind: protocol.SandboxAccepted,
		Details: &protocol.SandboxDetails{Spec: &protocol.SandboxSpec{Image: "i"}}})
	h.append(&h.coordinator, protocol.Event{Kind: protocol.SandboxAssigned,
		Details: &protocol.SandboxDetails{Worker: "w1", HostID: "h1", Generation: 1}})
	h.append(&h.worker, protocol.Event{Kind: protocol.SandboxReady, Details: &protocol.SandboxDetails{Boot: "b1"}})
	h.append(&h.coordinator, protocol.Event{Kind: protocol.ExecAccepted,
		Exec: &protocol.ExecDetails{ID: "x", Spec: &protocol.ExecSpec{Command: []string{"ps"}}}})
	h.append(&h.worker,
		protocol.Event{Kind: protocol.ExecStarted, Exec: &protocol.ExecDetails{ID: "x", Boot: "b1"}},
		protocol.Event{Kind: protocol.ExecFinished, Exec: &protocol.ExecDetails{ID: "x", Inline: true, StdoutBytes: 2,
			Stdout: []byte("ok"), StdoutSHA256: protocol.OutputHash([]byte("ok"))}})
	return h
}

// check encodes the evidence as in a file, decodes it and checks it.
func (h *history) check() *Report {
	h.t.Helper()
	h.Evidence.Seal()
	data, err := json.Marshal(&h.Evidence)
	if err != nil {
		h.t.Fatal(err)
	}
	e, err := Parse(data)
	if err != nil {
		h.t.Fatal(err)
	}
	return Check(e)
}

// Other programs may read the first of two fields, or only the field whose name is in lower case.
func TestEvidenceThatCanBeReadInTwoWaysIsRefused(t *testing.T) {
	h := live(t)
	h.check()
	data, err := json.Marshal(&h.Evidence)
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range [][2]string{
		{`"messages":`, `"messages":[],"messages":`},
		{`"messages":`, `"messages":[],"MESSAGES":`},
		{`"messages":`, `"Messages":`},
		{`"messages":`, `"messages":[],"meſſages":`},
		{`"role":`, `"role":"worker","role":`},
		{`"headers":{`, `"headers":{"Boxfleet-Signature":["x"],`},
	} {
		changed := strings.Replace(string(data), change[0], change[1], 1)
		if changed == string(data) {
			t.Fatalf("the evidence does not contain %s", change[0])
		}
		if _, err := Parse([]byte(changed)); protocol.AsError(err).Reason != protocol.ReasonUndecodable {
			t.Errorf("evidence with %s is read with error %v", change[1], err)
		}
	}
}

func TestAnUntouchedHistoryIsProven(t *testing.T) {
	h := live(t)
	r := h.check()
	if !r.Valid || r.Proven != 5 || r.Unsigned+r.Refused != 0 || r.Sequence != 6 || r.State != protocol.StateReady {
		t.Errorf("got %+v", r)
	}
	if len(r.Writers) != 2 || r.Writers[0].Messages != 3 || r.Writers[1].Name != "w1" || r.Writers[1].Messages != 2 {
		t.Errorf("the writers are %+v", r.Writers)
	}
	if len(r.Execs) != 1 || !r.Execs[0].Inline || r.Execs[0].StdoutBytes != 2 {
		t.Errorf("the output is %+v", r.Execs)
	}
}

// A message that is not part of the history is reported, and the messages after it are still proven.
func TestForgedMessagesAreRefusedAndNamed(t *testing.T) {
	deleted := protocol.Event{Kind: protocol.SandboxDeleteRequested, State: protocol.StateDeleting}
	ready := protocol.Event{Kind: protocol.SandboxRestarted, State: protocol.StateReady,
		Details: &protocol.SandboxDetails{Boot: "b2"}}
	for why, forge := range map[string]func(h *history){
		"it is not signed":           func(h *history) { h.store(h.batch("c1", deleted), nil, h.last) },
		"but worker w1 signed it":    func(h *history) { h.store(h.batch("c1", deleted), &h.worker, h.last) },
		"not by worker w1":           func(h *history) { h.store(h.batch("w1", deleted), &h.worker, h.last) },
		"worker w2 of host h2 wrote": func(h *history) { h.store(h.batch("w2", ready), &h.other, h.last) },
		"another place in the history": func(h *history) {
			h.store(h.batch("c1", deleted), &h.coordinator, protocol.Hash{1})
		},
		"has registered its key": func(h *history) {
			stranger := newProcess(h.t, protocol.OwnerCoordinator, "c1", "")
			h.store(h.batch("c1", deleted), &stranger, h.last)
		},
		"only after it was stored": func(h *history) {
			late := newProcess(h.t, protocol.OwnerCoordinator, "c2", "")
			late.At = start.Add(30 * time.Minute)
			h.Evidence.Writers.Writers = append(h.Evidence.Writers.Writers, late.RegisteredWriter)
			h.store(h.batch("c2", deleted), &late, h.last)
		},
		`names tenant "acme" and sandbox "other"`: func(h *history) {
			b := h.batch("c1", deleted)
			b.Sandbox = "other"
			h.store(b, &h.coordinator, h.last)
		},
		"begins with event 2 instead of 4": func(h *history) {
			b := h.batch("c1", deleted)
			b.Events[0].Sequence = 2
			h.store(b, &h.coordinator, h.last)
		},
		"without events": func(h *history) {
			h.store(&protocol.Batch{Version: 1, Tenant: "acme", Sandbox: "s", Writer: "c1"}, &h.coordinator, h.last)
		},
	} {
		t.Run(why, func(t *testing.T) {
			h := newHistory(t)
			full := live(t)
			h.coordinator, h.worker, h.other = full.coordinator, full.worker, full.other
			h.Evidence.Writers = full.Evidence.Writers
			events := []protocol.Event{
				{Kind: protocol.SandboxAccepted, Details: &protocol.SandboxDetails{Spec: &protocol.SandboxSpec{Image: "i"}}},
				{Kind: protocol.SandboxAssigned, Details: &protocol.SandboxDetails{Worker: "w1", HostID: "h1", Generation: 1}}}
			h.append(&h.coordinator, events...)
			h.append(&h.worker, protocol.Event{Kind: protocol.SandboxReady, Details: &protocol.SandboxDetails{Boot: "b1"}})
			forge(h)
			h.append(&h.coordinator, protocol.Event{Kind: protocol.SandboxStopRequested})
			r := h.check()
			if r.Valid || r.Refused != 1 || r.Proven != 3 || len(r.Problems) != 0 || r.Sequence != 4 {
				t.Errorf("got %+v", r)
			}
			if v := r.Messages[2]; v.Result != Refused || !strings.Contains(v.Why, why) {
				t.Errorf("the forged message is %s because %q, want %q", v.Result, v.Why, why)
			}
		})
	}
}

func TestTheUnsignedPartOfAHistoryIsMarked(t *testing.T) {
	h := newHistory(t)
	accepted := protocol.Event{Kind: protocol.SandboxAccepted,
		Details: &protocol.SandboxDetails{Spec: &protocol.SandboxSpec{Image: "i"}}}
	b := h.batch("c1", accepted)
	if err := h.state.Apply(&b.Events[0]); err != nil {
		t.Fatal(err)
	}
	h.last = h.store(b, nil, protocol.Hash{})
	h.Evidence.Messages[0].Record = h.Evidence.Writers.Since
	h.append(&h.coordinator, protocol.Event{Kind: protocol.SandboxAssigned,
		Details: &protocol.SandboxDetails{Worker: "w1", HostID: "h1", Generation: 1}})
	r := h.check()
	if !r.Valid || r.Unsigned != 1 || r.Proven != 1 || r.Messages[0].Result != Unsigned || r.Since != 10 {
		t.Errorf("got %+v", r)
	}
	h.Evidence.Writers.Since--
	if r := h.check(); r.Valid || r.Messages[0].Result != Refused {
		t.Errorf("an unsigned message after the point of change is %s", r.Messages[0].Result)
	}
	h.Evidence.Writers.Signed = false
	if r := h.check(); r.Valid {
		t.Error("the report is valid, but the deployment requires no signatures")
	}
}

// A message from the time before signatures may begin with an event that readers have already folded. Readers ignore
// the whole message, including its new events.
func TestAMessageThatBeginsInThePastChangesNothing(t *testing.T) {
	h := newHistory(t)
	h.Evidence.Writers.Since = 1000
	spec := &protocol.SandboxDetails{Spec: &protocol.SandboxSpec{Image: "i"}}
	assigned := protocol.Event{Kind: protocol.SandboxAssigned,
		Details: &protocol.SandboxDetails{Worker: "w1", HostID: "h1", Generation: 1}}
	b := h.batch("c1", protocol.Event{Kind: protocol.SandboxAccepted, Details: spec})
	if err := h.state.Apply(&b.Events[0]); err != nil {
		t.Fatal(err)
	}
	h.last = h.store(b, nil, protocol.Hash{})
	overlapping := h.batch("c1", protocol.Event{Kind: protocol.SandboxAccepted, Details: spec}, assigned)
	overlapping.Events[0].Sequence, overlapping.Events[1].Sequence = 1, 2
	h.store(overlapping, nil, protocol.Hash{})
	if r := h.check(); r.Sequence != 1 {
		t.Errorf("after the message the report has %d events, want 1", r.Sequence)
	}
	h.append(&h.coordinator, assigned) // its signature names the first message
	if r := h.check(); !r.Valid || r.Refused != 0 || r.Proven != 1 || r.Sequence != 2 {
		t.Errorf("got %+v", r)
	}
}

// Only a coordinator can stop readers with a version that they do not know.
func TestANewerVersionStopsReadersOnlyIfACoordinatorSignedIt(t *testing.T) {
	h := live(t)
	for _, c := range []struct {
		by   *process
		want int
	}{{&h.worker, 0}, {&h.other, 0}, {nil, 0}, {&h.coordinator, 1}} {
		writer := "c1"
		if c.by != nil {
			writer = c.by.Name
		}
		b := h.batch(writer, protocol.Event{Kind: protocol.SandboxStopRequested})
		b.Version = 99
		h.store(b, c.by, h.last)
		r := h.check()
		if last := r.Messages[len(r.Messages)-1]; len(r.Problems) != c.want || last.Result != Refused {
			t.Errorf("a newer version by %s: %s, problems %q", writer, last.Result, r.Problems)
		}
	}
}

func TestMissingMessagesAreFound(t *testing.T) {
	for i := range len(live(t).Evidence.Messages) - 1 {
		h := live(t)
		h.Evidence.Messages = slices.Delete(h.Evidence.Messages, i, i+1)
		if r := h.check(); r.Valid || !strings.Contains(strings.Join(r.Problems, " "), "messages are missing") {
			t.Errorf("without message %d the report is %+v", i, r)
		}
	}
	h := live(t)
	h.Evidence.Messages[1], h.Evidence.Messages[2] = h.Evidence.Messages[2], h.Evidence.Messages[1]
	if r := h.check(); r.Valid {
		t.Errorf("with two messages exchanged the report is %+v", r)
	}
}

// A report names each defect of evidence, also one that no signature reveals.
func TestEachOtherDefectOfEvidenceIsNamed(t *testing.T) {
	last := func(h *history) *protocol.StoredMessage { return &h.Evidence.Messages[len(h.Evidence.Messages)-1] }
	for want, spoil := range map[string]func(h *history){
		"names two writers for key": func(h *history) {
			again := h.other.RegisteredWriter
			again.Key = h.coordinator.Key
			h.Evidence.Writers.Writers = append(h.Evidence.Writers.Writers, again)
		},
		"has no messages":   func(h *history) { h.Evidence.Messages = nil },
		"comes after":       func(h *history) { last(h).Record = h.Evidence.Messages[len(h.Evidence.Messages)-2].Record },
		"was stored at":     func(h *history) { last(h).At = last(h).At.Add(-time.Minute) },
		"does not expect a": func(h *history) { last(h).Headers[headerOtherSubject] = []string{"x"} },
		"messages are missing": func(h *history) {
			h.append(&h.coordinator, protocol.Event{Kind: protocol.SandboxDeleteRequested})
			h.append(&h.worker, protocol.Event{Kind: protocol.SandboxDeleted})
			n := len(h.Evidence.Messages)
			h.Evidence.Messages = slices.Delete(h.Evidence.Messages, n-2, n-1)
		},
		"is not allowed in the state": func(h *history) {
			h.last = h.store(h.batch("c1", protocol.Event{Kind: protocol.SandboxAssigned,
				Details: &protocol.SandboxDetails{Worker: "w1", HostID: "h1", Generation: 1}}), &h.coordinator, h.last)
		},
		"has other output": func(h *history) {
			h.append(&h.coordinator, protocol.Event{Kind: protocol.ExecAccepted,
				Exec: &protocol.ExecDetails{ID: "y", Spec: &protocol.ExecSpec{Command: []string{"ps"}}}})
			h.append(&h.worker,
				protocol.Event{Kind: protocol.ExecStarted, Exec: &protocol.ExecDetails{ID: "y", Boot: "b1"}},
				protocol.Event{Kind: protocol.ExecFinished, Exec: &protocol.ExecDetails{ID: "y", Inline: true,
					StdoutBytes: 2, Stdout: []byte("ok"), StdoutSHA256: protocol.OutputHash([]byte("no"))}})
		},
	} {
		h := live(t)
		spoil(h)
		r := h.check()
		said := strings.Join(r.Problems, " ")
		for _, m := range r.Messages {
			said += " " + m.Why
		}
		if r.Valid || !strings.Contains(said, want) {
			t.Errorf("the report does not say %q: valid is %v, %s", want, r.Valid, said)
		}
	}
}

// A message from the time before signatures may lack a signature, but must not have a malformed one. A message of a
// newer version stops readers.
func TestUnsignedMessagesAreCheckedToo(t *testing.T) {
	for want, change := range map[string]func(h *history, b *protocol.Batch){
		"of unknown form": func(h *history, b *protocol.Batch) {
			h.store(b, nil, h.last)
			h.Evidence.Messages[0].Headers[protocol.HeaderSignature] = []string{"garbage"}
		},
		"a newer version": func(h *history, b *protocol.Batch) {
			b.Version = 99
			h.store(b, nil, h.last)
		},
	} {
		h := newHistory(t)
		h.Evidence.Writers.Since = 1000
		change(h, h.batch("c1", protocol.Event{Kind: protocol.SandboxAccepted,
			Details: &protocol.SandboxDetails{Spec: &protocol.SandboxSpec{Image: "i"}}}))
		r := h.check()
		said := strings.Join(r.Problems, " ") + r.Messages[0].Why
		if r.Refused != 1 || !strings.Contains(said, want) {
			t.Errorf("the report does not say %q: %d refused, %s", want, r.Refused, said)
		}
	}
}

// visit calls change for each value in the JSON form of the evidence, with a function that replaces the value.
func visit(path string, v any, set func(any), change func(path string, v any, set func(any))) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			visit(path+"."+k, x, func(n any) { v[k] = n }, change)
		}
	case []any:
		for i, x := range v {
			visit(fmt.Sprintf("%s[%d]", path, i), x, func(n any) { v[i] = n }, change)
		}
	default:
		change(path, v, set)
	}
}

// other returns a different value of the same form.
func other(t *testing.T, path string, v any) any {
	t.Helper()
	switch v := v.(type) {
	case bool:
		return !v
	case float64:
		return v + 1
	case string:
		if at, err := time.Parse(time.RFC3339Nano, v); err == nil {
			return at.Add(time.Nanosecond).Format(time.RFC3339Nano)
		}
		if strings.HasSuffix(path, ".data") {
			data, err := base64.StdEncoding.DecodeString(v)
			if err != nil {
				t.Fatal(err)
			}
			data[len(data)/2] ^= 1
			return base64.StdEncoding.EncodeToString(data)
		}
		last := byte('A')
		if v[len(v)/2] == last {
			last = 'Q'
		}
		return v[:len(v)/2] + string(last) + v[len(v)/2+1:]
	}
	t.Fatalf("%s has the unexpected value %v", path, v)
	return nil
}

// Each value of the evidence is changed in turn. The digest finds every change. If the digest is computed again after
// the change, the signatures still find every change of a signed field. The map uncovered lists the fields that are not
// signed.
func TestEachChangedFieldOfEvidenceIsFound(t *testing.T) {
	h := live(t)
	h.Evidence.Seal()
	data, err := json.Marshal(&h.Evidence)
	if err != nil {
		t.Fatal(err)
	}
	var tree any
	if err := json.Unmarshal(data, &tree); err != nil {
		t.Fatal(err)
	}
	uncovered := map[string]bool{".taken": true, ".digest": true, ".writers.since": true}
	for i := range h.Evidence.Messages {
		uncovered[fmt.Sprintf(".messages[%d].at", i)] = true
	}
	for i := range h.Evidence.Writers.Writers {
		uncovered[fmt.Sprintf(".writers.writers[%d].at", i)] = true
	}
	for _, field := range []string{"key", "role", "name", "host"} { // w2 wrote nothing
		uncovered[".writers.writers[2]."+field] = true
	}
	// No later message names the record of the last message.
	uncovered[fmt.Sprintf(".messages[%d].record", len(h.Evidence.Messages)-1)] = true
	changes := 0
	visit("", tree, nil, func(path string, v any, set func(any)) {
		set(other(t, path, v))
		defer set(v)
		changes++
		changed, err := json.Marshal(tree)
		if err != nil {
			t.Fatal(err)
		}
		e, err := Parse(changed)
		if err != nil {
			return
		}
		if r := Check(e); r.Valid {
			t.Errorf("a change of %s is not found", path)
		}
		e.Seal()
		if r := Check(e); r.Valid != uncovered[path] {
			t.Errorf("a change of %s with a digest that fits: valid is %v, want %v", path, r.Valid, uncovered[path])
		}
	})
	if changes < 40 {
		t.Errorf("only %d values were changed", changes)
	}
}
