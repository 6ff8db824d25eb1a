package coordinator

import (
	"crypto/sha256"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// refusals are the requests that were refused recently. A client that gets no answer sends its request again, so the
// queue may hold a request twice. A copy that was stored before the refusal belongs to the same attempt and gets the
// same answer, since the client may already have the refusal. A copy that was stored later is a new attempt, and is
// decided. Sequences in the queue tell the two cases apart; times would not, since clocks differ. Refusals are in
// memory only, so only copies that reach the same coordinator get the same answer.
type refusals struct {
	mu   sync.Mutex
	last map[refusedRequest]refusal
}

// refusedRequest identifies a request by its whole content: a different request with the same id may be decided
// differently.
type refusedRequest struct {
	sandbox       key
	verb, request string
	payload       [sha256.Size]byte
}

type refusal struct {
	why    *protocol.Error
	at     time.Time
	before uint64 // the refusal applies to copies stored up to this sequence of the queue
}

const (
	refusalsKept = 4096
	refusalKept  = 2 * time.Minute
)

func nameOf(d *jetstream.Delivery) refusedRequest {
	return refusedRequest{key{Tenant: d.Tenant, ID: d.Sandbox}, d.Verb, d.ID, sha256.Sum256(d.Payload)}
}

// note keeps a refusal for all copies of a request in the queue up to a sequence, the parameter before. If memory
// already has too many refusals, note drops all of them first: they matter only to clients that send a request twice.
func (r *refusals) note(d *jetstream.Delivery, why *protocol.Error, before uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil || len(r.last) >= refusalsKept {
		r.last = map[refusedRequest]refusal{}
	}
	r.last[nameOf(d)] = refusal{why, time.Now(), before}
}

// The method "of" returns the refusal that applies to a copy of a request, or nil.
func (r *refusals) of(d *jetstream.Delivery) *protocol.Error {
	name := nameOf(d)
	r.mu.Lock()
	defer r.mu.Unlock()
	past, known := r.last[name]
	if !known || time.Since(past.at) > refusalKept || d.Sequence > past.before {
		return nil
	}
	return past.why
}
