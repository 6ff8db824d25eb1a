package protocol

import (
	"crypto/ed25519"
	"encoding/base32"
	"encoding/binary"
	"strings"
	"testing"
)

// keyOf returns a key and its public form, as NATS writes it.
func keyOf(seed byte) (ed25519.PrivateKey, string) {
	key := ed25519.NewKeyFromSeed([]byte(strings.Repeat(string(rune(seed)), ed25519.SeedSize)))
	raw := append([]byte{userKeyPrefix}, key.Public().(ed25519.PublicKey)...)
	raw = binary.LittleEndian.AppendUint16(raw, checksum(raw))
	return key, base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(raw)
}

// proofOf signs a batch for a place in a history.
func proofOf(b *Batch, deployment string, previous Hash, w Writer) *Proof {
	key, public := keyOf('a')
	p := &Proof{Hash: PayloadHash(b.Encode()), Writer: w, Signature: &Signature{Key: public, Previous: previous}}
	copy(p.Signature.Sum[:], ed25519.Sign(key, SignedText(deployment, b.Tenant, b.Sandbox, previous, p.Hash)))
	return p
}

// Neither the text of the header nor the signed text may ever change.
func TestASignatureHasTheFormOfItsVersion(t *testing.T) {
	const want = "1.UCXQNI7DFELRJZHTK3AZZGYVZUMVD3DOMZRKU556A5KH6KETQM2B3P76" +
		".v0OcSPmOrY0vtE3IIRo4fv3x4928XG7LZl4LND41mhA." +
		"XVQr5KFw9CQgshh7tf3dqzuozgFjbBpiFqygi78BjAjO6jb1c-4L0ue9jx0qsauUKYMAE_bzdERD87gMo8l4DQ"
	key, public := keyOf('a')
	hash, previous := PayloadHash([]byte("this")), PayloadHash([]byte("the last one"))
	text := SignedText("d1", "blue", "s1", previous, hash)
	wantText := "\x00\x00\x00\x12boxfleet.v1.append\x00\x00\x00\x02d1\x00\x00\x00\x04blue\x00\x00\x00\x02s1" +
		"\x00\x00\x00\x20" + string(previous[:]) + "\x00\x00\x00\x20" + string(hash[:])
	if string(text) != wantText {
		t.Errorf("the signed text is %q", text)
	}
	notified := string(NotifiedText("d1", "w1", "blue", "s1", hash))
	wantNotified := "\x00\x00\x00\x10boxfleet.v1.work\x00\x00\x00\x02d1\x00\x00\x00\x02w1\x00\x00\x00\x04blue" +
		"\x00\x00\x00\x02s1\x00\x00\x00\x20" + string(hash[:])
	if notified != wantNotified {
		t.Errorf("the signed text of a notification is %q", notified)
	}
	s := &Signature{Key: public, Previous: previous}
	copy(s.Sum[:], ed25519.Sign(key, text))
	header := s.String()
	if header != want {
		t.Errorf("the header is %q, want %q", header, want)
	}
	back, err := ParseSignature(header)
	if err != nil || *back != *s || !back.Signs(text) {
		t.Errorf("parsing gives %+v, %v", back, err)
	}
	if back.Signs(append(text, 0)) {
		t.Error("the signature also signs a longer text")
	}
}

func TestAMalformedSignatureIsRefused(t *testing.T) {
	key, public := keyOf('a')
	account := append([]byte{0}, key.Public().(ed25519.PublicKey)...)
	account = binary.LittleEndian.AppendUint16(account, checksum(account))
	ofAccount := base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(account)
	hash, sum := strings.Repeat("A", 43), strings.Repeat("A", 86)
	if _, err := ParseSignature("1." + public + "." + hash + "." + sum); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"empty":             "",
		"version":           "2." + public + "." + hash + "." + sum,
		"few parts":         "1." + public + "." + hash,
		"many parts":        "1." + public + "." + hash + "." + sum + ".",
		"short key":         "1." + public[1:] + "." + hash + "." + sum,
		"key of a server":   "1.N" + public[1:] + "." + hash + "." + sum,
		"key of an account": "1." + ofAccount + "." + hash + "." + sum,
		"checksum":          "1." + public[:54] + "AA." + hash + "." + sum,
		"key in lower case": "1." + strings.ToLower(public) + "." + hash + "." + sum,
		"short hash":        "1." + public + "." + hash[1:] + "." + sum,
		"hash with rest":    "1." + public + "." + hash[1:] + "B." + sum,
		"short signature":   "1." + public + "." + hash + "." + sum[1:],
	} {
		if s, err := ParseSignature(text); CodeOf(err) != InvalidArgument {
			t.Errorf("%s: got %+v, %v", name, s, err)
		}
	}
}

// writtenBy returns a batch of one writer with events of the given kinds.
func writtenBy(writer string, kinds ...Kind) *Batch {
	b := &Batch{Version: 1, Tenant: "blue", Sandbox: "s1", ID: "b", Writer: writer, Record: 50}
	for i, k := range kinds {
		b.Events = append(b.Events, Event{Sequence: uint64(i) + 1, Kind: k})
	}
	return b
}

func TestAWriterAppendsOnlyItsOwnEvents(t *testing.T) {
	assigned := &State{Sandbox: Sandbox{Worker: "w1", HostID: "H1"}}
	coordinator, worker := Writer{OwnerCoordinator, "c1", ""}, Writer{OwnerWorker, "w1", "H1"}
	renamed, other := Writer{OwnerWorker, "w2", "H1"}, Writer{OwnerWorker, "w1", "H2"}
	for _, c := range []struct {
		name  string
		state *State
		by    Writer
		batch *Batch
		may   bool
	}{
		{"a coordinator's event", assigned, coordinator, writtenBy("c1", ExecAccepted), true},
		{"another's name", assigned, coordinator, writtenBy("c2", ExecAccepted), false},
		{"a worker's event by a coordinator", assigned, coordinator, writtenBy("c1", ExecAccepted, ExecStarted), false},
		{"an event of either by a coordinator", assigned, coordinator, writtenBy("c1", SandboxDeleted), true},
		{"a worker's event", assigned, worker, writtenBy("w1", ExecStarted, ExecFinished), true},
		{"an event of either by a worker", assigned, worker, writtenBy("w1", SandboxDeleted), true},
		{"a coordinator's event by a worker", assigned, worker, writtenBy("w1", ExecStarted, ExecAccepted), false},
		{"another name on the same host", assigned, renamed, writtenBy("w2", ExecStarted), true},
		{"another host", assigned, other, writtenBy("w1", ExecStarted), false},
		{"no host", &State{}, Writer{OwnerWorker, "w1", ""}, writtenBy("w1", ExecStarted), false},
		{"a sandbox without a host", &State{}, worker, writtenBy("w1", SandboxDeleted), false},
		{"a purged history", nil, worker, writtenBy("w1", SandboxDeleted), true},
		{"a kind of a newer version", assigned, worker, writtenBy("w1", "sandbox.sneezed"), true},
		{"a kind of a newer version on another host", assigned, other, writtenBy("w1", "sandbox.sneezed"), false},
		{"no role", assigned, Writer{OwnerEither, "w1", "H1"}, writtenBy("w1", SandboxDeleted), false},
	} {
		if err := MayAppend(c.state, c.batch, c.by); (err == nil) != c.may {
			t.Errorf("%s: got %v", c.name, err)
		}
	}
}

func TestAChainAcceptsOnlyProvenMessages(t *testing.T) {
	c1, required := Writer{OwnerCoordinator, "c1", ""}, Rules{"d1", true, 40}
	state, last := &State{}, PayloadHash([]byte("the last one"))
	begun, signed := Chain{Last: last}, Chain{Last: last, Signed: true}
	proof := func(change func(b *Batch, p *Proof)) func() (*Batch, *Proof) {
		return func() (*Batch, *Proof) {
			b := writtenBy("c1", SandboxAccepted)
			p := proofOf(b, "d1", last, c1)
			change(b, p)
			p.Check("d1", "blue", "s1")
			return b, p
		}
	}
	unsigned := func(b *Batch, p *Proof) { p.Signature = nil }
	old := func(b *Batch) { b.Record = 40 }
	signedFor := func(deployment, tenant, sandbox string, previous Hash) func() (*Batch, *Proof) {
		return proof(func(b *Batch, p *Proof) {
			b.Tenant, b.Sandbox = tenant, sandbox
			*p = *proofOf(b, deployment, previous, c1)
		})
	}
	for _, c := range []struct {
		name    string
		chain   Chain
		message func() (*Batch, *Proof)
		accepts bool
	}{
		{"signed", begun, proof(func(*Batch, *Proof) {}), true},
		{"unsigned", begun, proof(unsigned), false},
		{"unsigned, from before the change", begun, proof(func(b *Batch, p *Proof) { old(b); unsigned(b, p) }), true},
		{"unsigned after a signed one", signed, proof(func(b *Batch, p *Proof) { old(b); unsigned(b, p) }), false},
		{"changed payload", begun, proof(func(_ *Batch, p *Proof) { p.Hash[0]++ }), false},
		{"false signature", begun, proof(func(_ *Batch, p *Proof) { p.Signature.Sum[0]++ }), false},
		{"false signature, from before the change", begun,
			proof(func(b *Batch, p *Proof) { p.Signature.Sum[0]++; b.Record = 40 }), false},
		{"unknown key", begun, proof(func(_ *Batch, p *Proof) { p.Fault = AsError(notProven("nobody has its key")) }), false},
		{"another place", begun, signedFor("d1", "blue", "s1", Hash{}), false},
		{"another deployment", begun, signedFor("d2", "blue", "s1", last), false},
		{"another sandbox", begun, signedFor("d1", "blue", "s2", last), false},
		{"another tenant", begun, signedFor("d1", "red", "s1", last), false},
		{"unknown last message", Chain{Unknown: true}, proof(func(*Batch, *Proof) {}), true},
		{"not the writer's", begun, proof(func(_ *Batch, p *Proof) { p.Writer.Name = "c2" }), false},
		{"notified", begun, proof(func(_ *Batch, p *Proof) { p.Signature.Sum[0]++; p.Notified = true }), true},
	} {
		b, p := c.message()
		if err := c.chain.Verify(required, state, b, p); (err == nil) != c.accepts {
			t.Errorf("%s: got %v", c.name, err)
		}
	}
	var chain Chain
	_, p := proof(func(*Batch, *Proof) {})()
	if chain.Accept(p); chain != (Chain{Last: p.Hash, Signed: true}) {
		t.Errorf("after a signed message the chain is %+v", chain)
	}
	p.Signature = nil
	if chain.Accept(p); !chain.Signed {
		t.Error("the chain forgets that a message was signed")
	}
	chain = Chain{}
	if chain.Accept(&Proof{Notified: true, Signed: true}); !chain.Signed {
		t.Error("the chain does not know that the message of a notification was signed")
	}
}

func TestProofIsRequiredOfSignedHistories(t *testing.T) {
	signed := &Proof{Signature: &Signature{}}
	for _, c := range []struct {
		name     string
		chain    Chain
		rules    Rules
		record   uint64
		proof    *Proof
		requires bool
	}{
		{"no signature", Chain{}, Rules{}, 50, &Proof{}, false},
		{"a signature", Chain{}, Rules{}, 50, signed, true},
		{"an earlier signature", Chain{Signed: true}, Rules{}, 50, &Proof{}, true},
		{"the last record that may be unsigned", Chain{}, Rules{"d1", true, 50}, 50, &Proof{}, false},
		{"the next record", Chain{}, Rules{"d1", true, 50}, 51, &Proof{}, true},
	} {
		if got := c.chain.Requires(c.rules, c.record, c.proof); got != c.requires {
			t.Errorf("%s: requires proof is %v", c.name, got)
		}
	}
}

func BenchmarkCheck(b *testing.B) {
	p := proofOf(writtenBy("c1", SandboxAccepted), "d1", Hash{}, Writer{})
	for b.Loop() {
		p.Check("d1", "blue", "s1")
	}
}
