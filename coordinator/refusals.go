package coordinator

import (
	"crypto/sha256"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// refusals are the requests that were refused lately. A client sends a request again that it has no
// answer to, so the queue may hold it twice; what was stored before the refusal is the same try, and
// gets the same answer: its client has heard that nothing comes of it. What is stored later is a new
// try, and is decided. The queue's own order says which is which: clocks differ. This is kept in memory
// only, as far as one coordinator sees both.
type refusals struct {
	mu   sync.Mutex
	last map[refusedRequest]refusal
}

// refusedRequest names what was asked: another thing under the same id is not refused for the same reason.
type refusedRequest struct {
	sandbox       key
	verb, request string
	payload       [sha256.Size]byte
}

type refusal struct {
	why    *protocol.Error
	at     time.Time
	before uint64 // the copies that it is meant for are stored up to here
}

const (
	refusalsKept = 4096
	refusalKept  = 2 * time.Minute
)

func nameOf(d *jetstream.Delivery) refusedRequest {
	return refusedRequest{key{Tenant: d.Tenant, ID: d.Sandbox}, d.Verb, d.ID, sha256.Sum256(d.Payload)}
}

// note keeps a refusal of all copies that are stored up to a sequence. Where there are too many, all go:
// they matter only to clients that send a request twice.
func (r *refusals) note(d *jetstream.Delivery, why *protocol.Error, before uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil || len(r.last) >= refusalsKept {
		r.last = map[refusedRequest]refusal{}
	}
	r.last[nameOf(d)] = refusal{why, time.Now(), before}
}

// of is the refusal of a request that was stored before it, nil where there is none.
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
