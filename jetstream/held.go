package jetstream

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/backoff"
)

// held are the messages that this process has received and not settled. The server gives a message to
// somebody else after the ack wait, which is short, so that the death of its holder is noticed soon.
// How long a message waits for its turn is another matter: the process that holds it says so until then.
type held struct {
	mu       sync.Mutex
	messages map[heldName]*heldMessage
}

// heldName says which message of the stream it is. A stream that was set back to an earlier copy gives
// sequences again, to other messages.
type heldName struct {
	sequence uint64
	stored   time.Time
}

func nameOf(meta *jetstream.MsgMetadata) heldName {
	return heldName{meta.Sequence.Stream, meta.Timestamp}
}

type heldMessage struct {
	message jetstream.Msg // its newest delivery
	kept    time.Time     // when the server was last told
}

// take holds a message. It reports false where it is held already: what was delivered again is only
// another way to settle it.
func (h *held) take(name heldName, m jetstream.Msg) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.messages == nil {
		h.messages = map[heldName]*heldMessage{}
	}
	old := h.messages[name]
	h.messages[name] = &heldMessage{message: m, kept: time.Now()}
	return old == nil
}

// release returns the newest delivery of a message, which is no longer held.
func (h *held) release(name heldName) jetstream.Msg {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.messages[name]
	delete(h.messages, name)
	return m.message
}

// keep tells the server of everything that is held for longer than a period, until ctx ends.
func (h *held) keep(ctx context.Context, period time.Duration) {
	for backoff.Sleep(ctx, period) {
		for _, m := range h.due(period) {
			_ = m.InProgress() // where it fails, the message comes again, and is known
		}
	}
}

func (h *held) due(period time.Duration) []jetstream.Msg {
	h.mu.Lock()
	defer h.mu.Unlock()
	var due []jetstream.Msg
	now := time.Now()
	for _, m := range h.messages {
		if now.Sub(m.kept) >= period {
			m.kept = now
			due = append(due, m.message)
		}
	}
	return due
}
