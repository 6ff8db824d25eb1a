package jetstream

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/backoff"
)

// held are the messages that this process has received, and has neither acknowledged nor returned to the queue. The
// server redelivers a message to another process after the ack wait. The ack wait is short, so that a dead process is
// noticed soon. A process that needs longer keeps extending the ack wait of its messages.
type held struct {
	mu       sync.Mutex
	messages map[heldName]*heldMessage
}

// heldName identifies a message of the stream. A sequence alone is not enough: a stream that was restored from a backup
// assigns the same sequences again, to other messages.
type heldName struct {
	sequence uint64
	stored   time.Time
}

func nameOf(meta *nats.MsgMetadata) heldName {
	return heldName{meta.Sequence.Stream, meta.Timestamp}
}

type heldMessage struct {
	message  *nats.Msg // the latest delivery of the message
	extended time.Time // when its ack wait was last extended
}

// take adds a message. It returns false if the message is already held; the new delivery of the message then replaces
// the old one.
func (h *held) take(name heldName, m *nats.Msg) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.messages == nil {
		h.messages = map[heldName]*heldMessage{}
	}
	old := h.messages[name]
	h.messages[name] = &heldMessage{message: m, extended: time.Now()}
	return old == nil
}

// release removes a message and returns its latest delivery.
func (h *held) release(name heldName) *nats.Msg {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.messages[name]
	delete(h.messages, name)
	return m.message
}

// extend extends the ack wait of messages that have been held for longer than a period, until ctx ends.
func (h *held) extend(ctx context.Context, period time.Duration) {
	for backoff.Sleep(ctx, period) {
		for _, m := range h.due(period) {
			_ = m.InProgress() // if this fails, the server redelivers the message, and take recognizes it
		}
	}
}

func (h *held) due(period time.Duration) []*nats.Msg {
	h.mu.Lock()
	defer h.mu.Unlock()
	var due []*nats.Msg
	now := time.Now()
	for _, m := range h.messages {
		if now.Sub(m.extended) >= period {
			m.extended = now
			due = append(due, m.message)
		}
	}
	return due
}
