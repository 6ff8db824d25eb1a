package sdk

import (
	"slices"

	"github.com/boxfleet/boxfleet/protocol"
)

// verifier decides which live batches of one sandbox's history a client may believe. The server publishes each message
// that the event log stores. Coordinators refuse some of these messages, because the worker of another host or a
// process with stolen credentials wrote them. The client believes a batch that was signed by a coordinator, or by the
// worker of the host that the sandbox is assigned to. It reads all other batches from the coordinators, which return
// only batches of the history.
//
// A verifier is not safe for concurrent use.
type verifier struct {
	writers *writers
	chain   protocol.Chain
	host    string // id of the host that the sandbox is assigned to, according to the history; "": not known

	doubted []doubt // the newest batches that the client did not believe
}

// doubt is a signed batch that the client did not believe. It may still be part of the history.
type doubt struct {
	record uint64
	key    string
}

// doubtsKept is how many doubts a verifier remembers.
const doubtsKept = 64

func newVerifier(w *writers) verifier {
	return verifier{writers: w, chain: protocol.Chain{Unknown: true}}
}

// believes reports whether the client believes that a batch is part of the history. follows is true if the batch
// directly follows the last accepted batch. believes never asks a coordinator.
func (v *verifier) believes(b *protocol.Batch, follows bool) bool {
	rules, known, _ := v.writers.current()
	if !known {
		return false
	}
	p := protocol.Proof{}
	if b.Proof != nil {
		p = *b.Proof
	}
	// Without a record, or without a signature where the deployment requires one, a live batch proves nothing.
	if b.Record == 0 || rules.Signed && p.Signature == nil {
		return false
	}
	if p.Signature != nil && p.Fault == nil {
		writer, known := v.writers.of(p.Signature.Key)
		if !known {
			return false
		}
		p.Writer = writer.Writer()
		p.Check(rules.Deployment, b.Tenant, b.Sandbox)
	}
	state := &protocol.State{Sandbox: protocol.Sandbox{HostID: v.host}}
	chain := v.chain
	chain.Unknown = chain.Unknown || !follows
	return chain.Verify(rules, state, b, &p) == nil
}

// doubts remembers a batch that the client does not believe. If a read of the history contains this batch, the client
// asks the coordinators for the owner of the batch's key.
func (v *verifier) doubts(b *protocol.Batch) {
	if p := b.Proof; p == nil || p.Signature == nil || p.Fault != nil || b.Record == 0 {
		return
	}
	if len(v.doubted) == doubtsKept {
		v.doubted = slices.Delete(v.doubted, 0, 1)
	}
	v.doubted = append(v.doubted, doubt{b.Record, b.Proof.Signature.Key})
}

// unknownKeys returns the keys of doubted batches whose owners the client does not know. Only batches of the history
// count.
func (v *verifier) unknownKeys(history []*protocol.Batch) (keys []string) {
	for _, b := range history {
		key := v.keyAt(b.Record)
		if _, known := v.writers.of(key); key != "" && !known && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}

func (v *verifier) keyAt(record uint64) string {
	for _, d := range v.doubted {
		if d.record == record {
			return d.key
		}
	}
	return ""
}

// accept updates the verifier with a batch that is part of the history.
func (v *verifier) accept(b *protocol.Batch) {
	if p := b.Proof; p != nil {
		v.chain.Accept(p)
	} else { // read from a coordinator
		v.chain.Unknown = true
		writer, known := v.writers.of(v.keyAt(b.Record))
		if known && writer.Role == protocol.OwnerWorker && writer.Name == b.Writer {
			v.host = writer.Host // coordinators accept a worker's batch only from the sandbox's host
		}
	}
	for i := range b.Events {
		if e := &b.Events[i]; e.Kind == protocol.SandboxAssigned && e.Details != nil {
			v.host = e.Details.HostID
		}
	}
}
