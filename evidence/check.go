package evidence

import (
	"fmt"
	"strconv"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// headerExpected is the header in which the writer named the record that it expected to be the history's last. The
// server stored the message only if that record was the last.
const headerExpected = "Nats-Expected-Last-Subject-Sequence"

// headerOtherSubject is present if the writer expected a record to be the last of another subject. Then headerExpected
// does not describe this history.
const headerOtherSubject = "Nats-Expected-Last-Subject-Sequence-Subject"

// checker folds a history from its evidence.
type checker struct {
	evidence *Evidence
	rules    protocol.Rules
	writers  map[string]*Signer
	report   *Report

	state  *protocol.State
	chain  protocol.Chain
	record uint64    // record of the previous message, accepted or not
	at     time.Time // when the previous message was stored
}

// Check checks evidence. It takes about 0.1 ms for each message.
func Check(e *Evidence) *Report {
	c := &checker{
		evidence: e, rules: e.Writers.Rules(), writers: map[string]*Signer{}, state: &protocol.State{},
		report: &Report{Tenant: e.Tenant, Sandbox: e.Sandbox, Deployment: e.Writers.Deployment, Digest: e.Digest,
			Messages: []Verdict{}, Writers: []Signer{}},
	}
	c.before()
	for i := range e.Messages {
		c.message(&e.Messages[i])
	}
	c.after()
	return c.report
}

func (c *checker) problem(format string, args ...any) {
	c.report.Problems = append(c.report.Problems, fmt.Sprintf(format, args...))
}

// before runs first. It checks all parts of the evidence except the messages.
func (c *checker) before() {
	e := c.evidence
	if e.digest() != e.Digest {
		c.problem("the evidence was changed after it was taken: its digest is not %s", e.Digest)
	}
	if c.rules.Signed {
		c.report.Since = c.rules.Since
	} else {
		c.problem("the deployment does not require signatures, so unsigned messages can come from anybody")
	}
	for _, w := range e.Writers.Writers {
		if c.writers[w.Key] != nil {
			c.problem("the evidence names two writers for key %s", w.Key)
		}
		c.writers[w.Key] = &Signer{RegisteredWriter: w}
	}
	if len(e.Messages) == 0 {
		c.problem("the evidence has no messages")
	}
}

// after runs last. It adds the results for the whole history to the report.
func (c *checker) after() {
	r := c.report
	r.State, r.Sequence = c.state.Sandbox.State, c.state.Sandbox.Sequence
	for _, w := range c.evidence.Writers.Writers {
		if s := c.writers[w.Key]; s.Messages > 0 {
			r.Writers = append(r.Writers, *s)
		}
	}
	r.Valid = len(r.Problems) == 0 && r.Refused == 0
}

// message checks one message and folds it if it is part of the history.
func (c *checker) message(m *protocol.StoredMessage) {
	expected, known := c.order(m)
	v := Verdict{Record: m.Record, At: m.At}
	b, err := protocol.DecodeBatch(m.Data, m.Record)
	if b != nil {
		v.First, v.Last, v.Writer = b.First(), b.Last(), b.Writer
		for i := range b.Events {
			v.Kinds = append(v.Kinds, string(b.Events[i].Kind))
		}
	}
	p := c.prove(m)
	if p.Signature != nil {
		v.Key = p.Signature.Key
	}
	switch {
	case err == nil:
		err = c.judge(m, b, p, expected, known)
	case protocol.AsError(err).Reason == protocol.ReasonUnsupportedVersion && c.stops(m, p):
		c.problem("record %d was written by a newer version: check the evidence with that version", m.Record)
	}
	switch {
	case err != nil:
		v.Result, v.Why = Refused, protocol.AsError(err).Message
		c.report.Refused++
	case p.Signature == nil:
		v.Result = Unsigned
		c.report.Unsigned++
	default:
		v.Result = Proven
		c.report.Proven++
		c.writers[p.Signature.Key].Messages++
	}
	if err == nil {
		c.fold(b, p)
	}
	c.report.Messages = append(c.report.Messages, v)
	c.record, c.at = m.Record, m.At
}

// order checks that a message comes after the previous one, by its record and its time. It returns the record that the
// message's writer expected to be the history's last. known is false if the message names no such record.
func (c *checker) order(m *protocol.StoredMessage) (expected uint64, known bool) {
	if m.Record <= c.record {
		c.problem("record %d comes after record %d", m.Record, c.record)
	}
	if m.At.Before(c.at) {
		c.problem("record %d was stored at %s, earlier than the previous record", m.Record, m.At.Format(time.RFC3339Nano))
	}
	expected, err := strconv.ParseUint(header(m, headerExpected), 10, 64)
	if err != nil || header(m, headerOtherSubject) != "" {
		return 0, false
	}
	return expected, true
}

// prove returns the proof of a message. The proof has the message's hash. If the message has a signature, the proof
// also has the signature, and either the signature's writer or the fault that was found.
func (c *checker) prove(m *protocol.StoredMessage) *protocol.Proof {
	p := &protocol.Proof{Hash: protocol.PayloadHash(m.Data)}
	text := header(m, protocol.HeaderSignature)
	if text == "" {
		return p
	}
	signature, err := protocol.ParseSignature(text)
	if err != nil {
		p.Signature, p.Fault = &protocol.Signature{Key: "malformed"}, protocol.AsError(err)
		return p
	}
	p.Signature = signature
	w := c.writers[p.Signature.Key]
	switch {
	case w == nil:
		p.Fault = notProven("no coordinator or worker has registered its key %s", p.Signature.Key)
	case m.At.Before(w.At):
		p.Fault = notProven("its key %s was registered only after it was stored", p.Signature.Key)
	default:
		p.Writer = w.Writer()
		p.Check(c.rules.Deployment, c.evidence.Tenant, c.evidence.Sandbox)
	}
	return p
}

func notProven(format string, args ...any) *protocol.Error {
	return protocol.Errorf(protocol.PermissionDenied, protocol.ReasonNotProven, format, args...)
}

// judge returns nil if a message is part of the history, and otherwise an error with the reason.
func (c *checker) judge(m *protocol.StoredMessage, b *protocol.Batch, p *protocol.Proof, expected uint64,
	known bool) error {
	next := c.state.Sandbox.Sequence + 1
	begins := b.First() > next && known && expected > c.record
	if begins { // messages are missing before this one; of a purged history only the last message remains
		if b.Events[len(b.Events)-1].Kind != protocol.SandboxDeleted || c.record != 0 {
			c.problem("messages are missing between records %d and %d: record %d expects record %d before it",
				c.record, m.Record, m.Record, expected)
		}
	} else if known && expected != c.record {
		c.problem("record %d expects record %d before it, but follows record %d", m.Record, expected, c.record)
	}
	required := c.chain.Requires(c.rules, m.Record, p)
	switch {
	case b.Tenant != c.evidence.Tenant || b.Sandbox != c.evidence.Sandbox:
		return notProven("it names tenant %.80q and sandbox %.80q", b.Tenant, b.Sandbox)
	case !required:
		return nil
	case p.Signature != nil && !known:
		return notProven("it does not expect a last message")
	case begins:
		return c.chain.Verify(c.rules, nil, b, p)
	case b.First() != next && p.Fault == nil:
		return notProven("it begins with event %d instead of %d", b.First(), next)
	}
	return c.chain.Verify(c.rules, c.state, b, p)
}

// stops reports whether readers stop at a message of a newer version. They stop if a coordinator signed the message, or
// if the message need not be signed. Readers refuse any other message of a newer version.
func (c *checker) stops(m *protocol.StoredMessage, p *protocol.Proof) bool {
	if !c.chain.Requires(c.rules, m.Record, p) {
		return true
	}
	b := &protocol.Batch{Record: m.Record, Writer: p.Writer.Name}
	return p.Writer.Role == protocol.OwnerCoordinator && c.chain.Verify(c.rules, c.state, b, p) == nil
}

// fold folds an accepted message. Like all readers, it ignores a message whose first event was folded already.
func (c *checker) fold(b *protocol.Batch, p *protocol.Proof) {
	if b.First() <= c.state.Sandbox.Sequence {
		return
	}
	c.chain.Accept(p)
	if last := &b.Events[len(b.Events)-1]; b.First() > c.state.Sandbox.Sequence+1 {
		tombstone := &protocol.State{}
		if err := tombstone.ApplyTombstone(last); err == nil {
			c.state = tombstone
			return
		}
		c.state.Sandbox.Sequence = b.First() - 1 // the missing events are reported; continue at this batch
	}
	for i := range b.Events {
		e := &b.Events[i]
		if err := c.state.Apply(e); err != nil {
			c.problem("event %d, %s, is not allowed in the state before it: %s", e.Sequence, e.Kind,
				protocol.AsError(err).Message)
			c.state.Sandbox.Sequence = e.Sequence
			continue
		}
		c.output(e)
	}
	c.state.Trim(1)
}

// output adds the output of an exec to the report if the event ended the exec and has a hash of its output.
func (c *checker) output(e *protocol.Event) {
	d := e.Exec
	if d == nil || !d.State.Terminal() || d.StdoutSHA256 == "" && d.StderrSHA256 == "" {
		return
	}
	o := Output{Exec: d.ID, Inline: d.Inline, StdoutBytes: d.StdoutBytes, StdoutSHA256: d.StdoutSHA256,
		StderrBytes: d.StderrBytes, StderrSHA256: d.StderrSHA256}
	if d.Inline && (protocol.OutputHash(d.Stdout) != d.StdoutSHA256 || protocol.OutputHash(d.Stderr) != d.StderrSHA256) {
		c.problem("event %d has other output of exec %s than its hash says", e.Sequence, d.ID)
	}
	c.report.Execs = append(c.report.Execs, o)
}
