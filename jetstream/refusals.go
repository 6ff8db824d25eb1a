package jetstream

import (
	"log/slog"
	"sync"
	"time"
)

// refusals counts the messages of the event log that this process refused, and reports them. An attacker can write
// thousands of such messages, so only some have a line of their own in the log.
type refusals struct {
	mu     sync.Mutex
	count  uint64
	said   time.Time
	unsaid uint64 // number of refusals since the last log line
}

// sayAgain is the shortest pause between two log lines about refused messages.
const sayAgain = 5 * time.Second

// add counts a refused message.
func (r *refusals) add(log *slog.Logger, e *entry, why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count++
	r.unsaid++
	if time.Since(r.said) < sayAgain {
		return
	}
	attrs := []any{"tenant", e.tenant, "sandbox", e.sandbox, "record", e.record, "error", why, "refused", r.unsaid}
	if e.batch != nil {
		attrs = append(attrs, "claimed writer", e.batch.Writer)
	}
	if s := e.proof.Signature; s != nil {
		attrs = append(attrs, "key", s.Key, "owner's role", e.proof.Writer.Role, "owner's name", e.proof.Writer.Name)
	}
	log.Error("refused a message of the event log whose writer is not proven: "+
		"an attacker may control a process of this deployment", attrs...)
	r.said, r.unsaid = time.Now(), 0
}

// Refused returns how many messages of the event log this connection has refused because their writer was not proven. A
// message that is read several times counts each time.
func (w *Writers) Refused() uint64 {
	w.refusals.mu.Lock()
	defer w.refusals.mu.Unlock()
	return w.refusals.count
}
