package jetstream

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/stream"
)

// How a client notices that a worker is lost.
const (
	// clientPing is the pause after which a client pings a silent worker.
	clientPing = 5 * time.Second
	// outageMost is how long a stream waits for its worker while NATS is interrupted.
	outageMost = 60 * time.Second
	// silenceMost is how long a worker may be silent while NATS works.
	silenceMost = 20 * time.Second

	// resumablePing is the pause between pings of a stream that its client opens again when it is lost. The client then
	// soon learns that the worker was killed.
	resumablePing = 2 * time.Second
	// resumableMissed is how many of these pings stay unanswered before the stream is opened again.
	resumableMissed = 3

	probeTimeout = 2 * time.Second // how long a worker may take to say whether it has a stream
	flushTimeout = time.Second     // how long the server may take to show that the connection works

	// probeMost is the size in bytes of the largest message that may be a probe. Only such messages are decoded before
	// they are counted against the limits.
	probeMost = 512
)

// noticesLoss makes the client's end of a stream notice that the worker is lost.
func noticesLoss(cfg *stream.Config, kind string) {
	cfg.Ping, cfg.Missed, cfg.Silence = clientPing, int(outageMost/clientPing)-1, silenceMost
	if kind == protocol.StreamKindStdin {
		cfg.Ping, cfg.Missed = resumablePing, resumableMissed
	}
}

// question asks whether the other end has a stream. At most one question is in flight. The lock is held only briefly,
// and no other lock is acquired while it is held.
type question struct {
	mu     sync.Mutex
	asks   bool
	closed bool
	cancel func() // ends the question that is under way; nil before the first one
}

// begin returns the context of a question. ok is false if one is under way, or the stream has ended.
func (q *question) begin() (ctx context.Context, done func(), ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.asks || q.closed {
		return nil, nil, false
	}
	q.asks = true
	ctx, q.cancel = context.WithTimeout(context.Background(), probeTimeout+flushTimeout)
	return ctx, q.done, true
}

func (q *question) done() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.cancel()
	q.asks = false
}

func (q *question) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	if q.cancel != nil {
		q.cancel()
	}
}

// probe asks the worker whether it has the stream. It does not block.
func (e *streamEnd) probe(subject, id string) {
	ctx, done, ok := e.question.begin()
	if !ok {
		return
	}
	go func() {
		answer := e.link.ask(ctx, subject, id)
		done()
		e.opened().Answered(answer) // a stream asks only once it is open
	}()
}

// ask sends a probe and returns the result.
func (l *streamLink) ask(ctx context.Context, subject, id string) stream.Answer {
	answer, _ := l.askOnce(ctx, subject, id)
	return answer
}

// askOnce sends a probe and returns the result, and whether a worker has answered. The probe travels on the stream's
// own connection, because another connection may work while this one does not.
func (l *streamLink) askOnce(ctx context.Context, subject, id string) (answer stream.Answer, answered bool) {
	m := nats.NewMsg(subject)
	m.Header.Set(protocol.HeaderContentType, protocol.ContentMsgpack)
	m.Data = protocol.Encode(&protocol.StreamOpen{Version: protocol.Version, ID: id, Kind: protocol.StreamKindProbe,
		Timeout: protocol.Duration(probeTimeout)})
	within, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	message, err := l.conn.nc.RequestMsgWithContext(within, m)
	if errors.Is(err, nats.ErrNoResponders) {
		return stream.Reached, false // nobody serves streams under the worker's name
	}
	if err != nil {
		flushing, end := context.WithTimeout(ctx, flushTimeout)
		defer end()
		if l.conn.nc.FlushWithContext(flushing) != nil {
			return stream.Unknown, false
		}
		return stream.Reached, false
	}
	reply := &protocol.StreamReply{}
	err = protocol.DecodeAs(message.Header.Get(protocol.HeaderContentType), message.Data, reply)
	switch {
	case err != nil || reply.Error != nil: // a worker of an earlier version does not know probes
		return stream.Reached, true
	case reply.Stream:
		return stream.Open, true
	}
	return stream.Gone, true
}

// answerProbe answers a message if it is a probe. A probe takes no slot, so even a worker that has reached its limit of
// streams answers it.
func (v *streamService) answerProbe(m *nats.Msg, r *StreamRequest) (answered bool) {
	if len(m.Data) > probeMost {
		return false
	}
	var o protocol.StreamOpen
	if protocol.DecodeStrict(headerOf(m.Header, protocol.HeaderContentType), m.Data, &o) != nil ||
		o.Kind != protocol.StreamKindProbe || o.Validate() != nil {
		return false // the error is answered where every other request is decoded
	}
	subject := v.upSubject(r, o.ID)
	has := v.unanswered.mayHave(m.Subject, subject) || v.plain.has(subject) || v.bulk.has(subject)
	v.reply(v.plain, m, &protocol.StreamReply{Stream: has})
	return true
}

// has reports whether a stream with this subject is open.
func (l *streamLink) has(from string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ends[from] != nil
}

func (b *bulkLink) has(from string) bool {
	l := b.current()
	return l != nil && l.has(from)
}
