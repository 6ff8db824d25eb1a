package sdk

import (
	"context"
	"crypto/ed25519"
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/protocol"
)

// Somebody signs a batch in the name of another worker. If the history then has a batch of that worker at the same
// record, the client must not conclude from the forger's key that the sandbox is on the forger's host.
func TestAForgedBatchTellsTheClientNoHost(t *testing.T) {
	t.Parallel()
	signed := func(record uint64, key, writer string) *protocol.Batch {
		return &protocol.Batch{Record: record, Writer: writer, Events: []protocol.Event{{Sequence: record}},
			Proof: &protocol.Proof{Signature: &protocol.Signature{Key: key}}}
	}
	v := newVerifier(&writers{byKey: map[string]protocol.RegisteredWriter{
		"K1": {Key: "K1", Role: protocol.OwnerWorker, Name: "w1", Host: "HOSTA"},
		"K2": {Key: "K2", Role: protocol.OwnerWorker, Name: "w2", Host: "HOSTB"},
	}})
	v.doubts(signed(7, "K2", "w1"))
	v.doubts(signed(8, "K1", "w1"))
	v.accept(&protocol.Batch{Record: 7, Writer: "w1", Events: []protocol.Event{{Sequence: 7}}})
	if v.host != "" {
		t.Errorf("the client takes %s for the sandbox's host", v.host)
	}
	v.accept(&protocol.Batch{Record: 8, Writer: "w1", Events: []protocol.Event{{Sequence: 8}}})
	if v.host != "HOSTA" {
		t.Errorf("the client takes %q for the sandbox's host, want that of the accepted writer", v.host)
	}
}

// Old unsigned messages of a deployment that signs now are valid. A live batch is new, so it proves nothing without a
// signature. A batch without a record proves nothing either.
func TestAClientBelievesNoUnsignedBatchOfADeploymentThatSigns(t *testing.T) {
	t.Parallel()
	w := &writers{read: time.Now(), rules: protocol.Rules{Signed: true, Since: 1000}}
	v := newVerifier(w)
	b := &protocol.Batch{Record: 1, Writer: "w1", Events: []protocol.Event{{Sequence: 5}}, Proof: &protocol.Proof{}}
	if v.believes(b, true) {
		t.Error("the client believes a batch that is not signed")
	}
	w.rules = protocol.Rules{}
	if !v.believes(b, true) {
		t.Error("the client does not believe a batch of a deployment without signatures")
	}
	if b.Record = 0; v.believes(b, true) {
		t.Error("the client believes a batch without a record")
	}
}

// old is a sandbox whose history has three events; the last event ends exec x.
type old struct {
	t       *testing.T
	client  *Client
	batches []*protocol.Batch
	feed    *feed
	ended   chan protocol.Event
	ctx     context.Context
}

func newOld(t *testing.T) *old {
	t.Helper()
	o := &old{t: t}
	o.client, _, o.ctx = connectedToItsOwnServer(t)
	for _, e := range []protocol.Event{
		{Sequence: 1, Kind: protocol.SandboxPreparing, State: protocol.StatePending},
		{Sequence: 2, Kind: protocol.SandboxReady, State: protocol.StateReady},
		{Sequence: 3, Kind: protocol.ExecFinished, State: protocol.StateReady,
			Exec: &protocol.ExecDetails{ID: "x", State: protocol.ExecStateFinished}},
	} {
		b := &protocol.Batch{Version: protocol.Version, Tenant: o.client.tenant, Sandbox: "s", ID: NewID(), Writer: "w",
			Events: []protocol.Event{e}}
		expected := uint64(0)
		if n := len(o.batches); n > 0 {
			expected = o.batches[n-1].Record
		}
		record, err := o.client.conn.Append(o.ctx, b, expected)
		if err != nil {
			t.Fatal(err)
		}
		b.Fill(record)
		o.batches = append(o.batches, b)
	}
	var err error
	if o.feed, err = o.client.feed("s"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.feed.release)
	awaitFirstCheck(t, o.feed)
	o.feed.mu.Lock()
	o.feed.check.Reset(time.Hour) // so that no recheck finds the event
	o.feed.missed = false
	o.feed.mu.Unlock()
	ended, forget := o.feed.awaitExec("x")
	o.ended = ended
	t.Cleanup(forget)
	eventually.Holds(t, 10*time.Second, "the client knows what the deployment requires", func() bool {
		_, known, _ := o.client.writers.current()
		return known
	})
	return o
}

// copyOf returns batch i as if somebody had stored the batch again after the third batch.
func (o *old) copyOf(i int) *protocol.Batch {
	b := *o.batches[i]
	last := o.batches[len(o.batches)-1].Record
	b.Record, b.Proof = last+1, &protocol.Proof{After: last}
	return &b
}

func (o *old) findsTheEnd() {
	o.t.Helper()
	select {
	case <-o.ended:
	case <-time.After(10 * time.Second):
		o.t.Error("the client has not found the end of the exec")
	}
}

// The feed receives a copy of an old batch. The copy has a newer record than batches that the feed has not read yet.
// The feed must still read those batches.
func TestAFeedDoesNotBeginWithACopyOfAnOldBatch(t *testing.T) {
	t.Parallel()
	o := newOld(t)
	o.feed.receive(o.copyOf(0))
	o.feed.coverFrom(2, o.batches[1].Record)
	o.feed.mayHaveMissed()
	o.findsTheEnd()
}

// The client has not received the second and the third batch, and receives a copy of the second batch. The client must
// still find the third batch.
func TestACopyOfTheNextBatchHidesNothing(t *testing.T) {
	t.Parallel()
	o := newOld(t)
	o.feed.coverFrom(1, o.batches[0].Record)
	o.feed.receive(o.copyOf(1))
	o.findsTheEnd()
}

// Batches may arrive before the feed knows where it begins. The feed delivers them later without a read of the history.
func TestEarlyBatchesAreDelivered(t *testing.T) {
	t.Parallel()
	o := newOld(t)
	o.feed.mu.Lock()
	o.feed.read = func(context.Context, uint64) ([]*protocol.Batch, error) {
		t.Error("the feed reads the history")
		return nil, nil
	}
	o.feed.mu.Unlock()
	for i, b := range o.batches[1:] {
		live := *b
		live.Proof = &protocol.Proof{After: o.batches[i].Record}
		o.feed.receive(&live)
	}
	o.feed.coverFrom(1, o.batches[0].Record)
	o.findsTheEnd()
}

// If more batches arrive early than the feed holds, the feed reads them from the history.
func TestTooManyEarlyBatchesAreRead(t *testing.T) {
	t.Parallel()
	o := newOld(t)
	for range maxEarly + 1 {
		o.feed.receive(o.copyOf(0))
	}
	o.feed.coverFrom(2, o.batches[1].Record)
	o.findsTheEnd()
}

// The server publishes every batch that it stores. A client believes a live batch only if a coordinator or the worker
// of the sandbox's host signed it.
func TestAClientBelievesOnlyProvenBatches(t *testing.T) {
	t.Parallel()
	type signer struct {
		protocol.Writer
		text string
		key  ed25519.PrivateKey
	}
	known := map[string]protocol.RegisteredWriter{}
	newSigner := func(w protocol.Writer) signer {
		public, key, err := ed25519.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		text, err := nkeys.Encode(nkeys.PrefixByteUser, public)
		if err != nil {
			t.Fatal(err)
		}
		known[string(text)] = protocol.RegisteredWriter{Key: string(text), Role: w.Role, Name: w.Name, Host: w.Host}
		return signer{w, string(text), key}
	}
	c1 := newSigner(protocol.Writer{Role: protocol.OwnerCoordinator, Name: "c1"})
	w1 := newSigner(protocol.Writer{Role: protocol.OwnerWorker, Name: "w1", Host: "HOSTA"})
	w2 := newSigner(protocol.Writer{Role: protocol.OwnerWorker, Name: "w2", Host: "HOSTB"})
	stranger := newSigner(protocol.Writer{Role: protocol.OwnerCoordinator, Name: "c1"})
	delete(known, stranger.text)
	for name, c := range map[string]struct {
		by         signer
		kind       protocol.Kind
		deployment string
		spoil      func(s *protocol.Signature)
		believes   bool
	}{
		"a coordinator":        {c1, protocol.SandboxStopRequested, "d1", nil, true},
		"the host's worker":    {w1, protocol.SandboxStopped, "d1", nil, true},
		"another host":         {w2, protocol.SandboxStopped, "d1", nil, false},
		"another role's event": {w1, protocol.SandboxStopRequested, "d1", nil, false},
		"another deployment":   {c1, protocol.SandboxStopRequested, "d2", nil, false},
		"an unknown key":       {stranger, protocol.SandboxStopRequested, "d1", nil, false},
		"a coordinator's key on a false signature": {w2, protocol.SandboxStopRequested, "d1",
			func(s *protocol.Signature) { s.Key = c1.text }, false},
	} {
		v := newVerifier(&writers{read: time.Now(), rules: protocol.Rules{Deployment: "d1", Signed: true}, byKey: known})
		v.host = "HOSTA"
		b := &protocol.Batch{Tenant: "t", Sandbox: "s", Record: 7, Writer: c.by.Name,
			Events: []protocol.Event{{Sequence: 5, Kind: c.kind}}}
		s := &protocol.Signature{Key: c.by.text}
		if b.Proof = (&protocol.Proof{Hash: protocol.PayloadHash([]byte("x")), Signature: s}); c.spoil != nil {
			c.spoil(s)
			b.Writer = c1.Name
		}
		copy(s.Sum[:], ed25519.Sign(c.by.key, protocol.SignedText(c.deployment, "t", "s", s.Previous, b.Proof.Hash)))
		if v.believes(b, false) != c.believes {
			t.Errorf("%s: the client believes it: %v", name, !c.believes)
		}
	}
}
