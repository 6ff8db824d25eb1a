package coordinator

import (
	"crypto/sha256"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// refusals are the requests that were refused lately. A client sends a request again if it has no answer, so the queue
// may hold it twice. A copy that was stored before the refusal is the same attempt, and gets the same answer, since
// its client may already have the refusal. A copy stored later is a new attempt, and is decided. The order of the
// queue says which is which, since clocks differ. Refusals are in memory only, so both copies must reach the same
// coordinator.
type refusals struct {
	mu   sync.Mutex
	last map[refusedRequest]refusal
}

// refusedRequest names a request by all that was asked: a different request with the same id may be decided
// differently.
type refusedRequest struct {
	sandbox       key
	verb, request string
	payload       [sha256.Size]byte
}

type refusal struct {
	why    *protocol.Error
	at     time.Time
	before uint64 // applies to copies stored up to here
}

const (
	refusalsKept = 4096
	refusalKept  = 2 * time.Minute
)

func nameOf(d *jetstream.Delivery) refusedRequest {
	return refusedRequest{key{Tenant: d.Tenant, ID: d.Sandbox}, d.Verb, d.ID, sha256.Sum256(d.Payload)}
}

// note keeps a refusal for all copies stored up to a sequence. Where there are too many refusals, all are dropped:
// they matter only to clients that send a request twice.
func (r *refusals) note(d *jetstream.Delivery, why *protocol.Error, before uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil || len(r.last) >= refusalsKept {
		r.last = map[refusedRequest]refusal{}
	}
	r.last[nameOf(d)] = refusal{why, time.Now(), before}
}

// of returns the refusal of a request whose copy was stored before it, nil where there is none.
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
