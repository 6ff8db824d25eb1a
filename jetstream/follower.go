package jetstream

import (
	"context"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

// follow reads the messages of a stream that match a filter, from a sequence on, and then new messages, until ctx ends.
// It calls handle in order. It calls caughtUp once, when it has passed the last sequence that the stream's leader had
// at the start. caughtUp may be nil. It fails if the stream no longer has the last handled message ([IsRewound]), or if
// its first attempt fails.
//
// After any other failure, follow makes a new consumer and resumes after the last handled message. It does not use the
// client's own ordered consumer, whose pauses grow each time a server is down or an answer is lost.
func (s *streams) follow(
	ctx context.Context,
	stream, filter string,
	from uint64,
	handle func(*stored),
	caughtUp func(),
) error {
	f := &follower{streams: s, stream: stream, filter: filter, next: max(from, 1), handle: handle, caughtUp: caughtUp}
	return f.run(ctx)
}

func (f *follower) run(ctx context.Context) error {
	s := f.streams
	if f.caughtUp != nil {
		m, err := s.lastOnSubject(ctx, f.stream, f.filter)
		if err == nil {
			f.target = m.sequence
		} else if protocol.CodeOf(err) != protocol.NotFound {
			return err
		}
	}
	for begun := false; ; {
		reconnects := s.nc.Stats().Reconnects
		err := f.check(ctx)
		if err == nil {
			var consumer jetstream.Consumer
			if consumer, err = f.open(ctx); err == nil {
				begun = true
				err = f.read(ctx, consumer)
			}
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case !begun || s.nc.IsClosed() || IsRewound(err):
			return err
		}
		level := slog.LevelWarn
		if !s.nc.IsConnected() || s.nc.Stats().Reconnects != reconnects {
			// The log already says that the connection was lost. A process follows many streams, and a line for each of them
			// would hide that one.
			level = slog.LevelDebug
		}
		s.log.Log(ctx, level, "following a stream was interrupted; resuming after the last handled message",
			"stream", f.stream, "error", err)
		if !backoff.Sleep(ctx, retryPause) {
			return ctx.Err()
		}
		_ = s.awaitConnection(ctx) // if this fails, the next attempt reports why
	}
}

// follower is one call of follow.
type follower struct {
	streams        *streams
	stream, filter string
	headersOnly    bool
	next           uint64 // sequence at which the next consumer starts
	handle         func(*stored)
	handled        time.Time // when the last handled message was stored; zero: unknown
	caughtUp       func()    // nil after it was called
	target         uint64    // the stream's last sequence at the start
	pending        uint64    // number of messages not delivered yet, according to the consumer's replica
}

// open makes a consumer. It repeats the request under the same name until the request is answered. If the cluster
// assigned the consumer to a server that has just died, open requests another consumer under a new name. It waits
// longer each time, in case the cluster is slow.
func (f *follower) open(ctx context.Context) (consumer jetstream.Consumer, err error) {
	s := f.streams
	ctx, cancel := s.bound(ctx)
	defer cancel()
	for wait := askAgain; ; wait *= 2 {
		if err := s.awaitConnection(ctx); err != nil {
			return nil, err
		}
		config := jetstream.ConsumerConfig{
			Name:          nuid.Next(),
			FilterSubject: f.filter, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: f.next,
			HeadersOnly: f.headersOnly, AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1,
			InactiveThreshold: consumerIdle,
		}
		try, stop := context.WithTimeout(ctx, wait)
		consumer, err = askRepeatedly(
			try,
			&s.connection,
			"follow "+f.stream,
			func(ctx context.Context) (jetstream.Consumer, error) {
				return s.js.CreateConsumer(ctx, f.stream, config)
			},
		)
		again := err != nil && try.Err() != nil && ctx.Err() == nil
		stop()
		if !again {
			return consumer, err
		}
	}
}

// consumerIdle is how long a server remembers a consumer that nobody reads from.
const consumerIdle = 10 * time.Second

// quiet is how long a follower waits for a message before it asks the leader whether the message still exists. Expired
// and purged messages are never delivered. Missing heartbeats are noticed earlier.
const quiet = 3 * pullHeartbeat

// followBatch is how many messages a follower requests at once. followExpires is how long the server keeps a request.
const (
	followBatch   = 1024
	followExpires = 30 * time.Second
)

// read handles the messages that a consumer delivers, until a message is missing or ctx ends.
func (f *follower) read(ctx context.Context, consumer jetstream.Consumer) error {
	messages, err := f.streams.pull(f.stream, consumer.CachedInfo().Name, followBatch, followExpires)
	if err != nil {
		return err
	}
	defer messages.stop()
	// A restarted server has lost the consumer. Ending the read at each reconnect is faster than waiting for missing
	// heartbeats.
	connected, breakOff := context.WithCancel(ctx)
	defer breakOff()
	defer f.streams.OnReconnect(breakOff)()
	f.pending = consumer.CachedInfo().NumPending
	f.progress()
	for delivered := uint64(1); ; delivered++ {
		msg, err := f.nextOf(connected, messages)
		if err != nil {
			return translate(err, "follow "+f.stream)
		}
		meta, err := msg.Metadata()
		if err != nil {
			return protocol.Errorf(protocol.Internal, "", "follow %s: %v", f.stream, err)
		}
		if meta.Sequence.Consumer != delivered {
			return protocol.Errorf(protocol.Unavailable, "", "follow %s: message %d arrived instead of %d",
				f.stream, meta.Sequence.Consumer, delivered)
		}
		f.next, f.pending, f.handled = meta.Sequence.Stream+1, meta.NumPending, meta.Timestamp
		f.handle(
			&stored{subject: msg.Subject, sequence: meta.Sequence.Stream, header: msg.Header, data: msg.Data,
				time: meta.Timestamp},
		)
		f.progress()
	}
}

// nextOf waits for the next message. If none arrives within quiet, nextOf asks the leader for the message. If the
// leader has no further message either, the messages that the follower waited for were removed, and the follower has
// caught up.
func (f *follower) nextOf(ctx context.Context, messages *puller) (*nats.Msg, error) {
	for f.caughtUp != nil {
		bounded, cancel := context.WithTimeout(ctx, quiet)
		msg, err := messages.next(bounded)
		over := bounded.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil || !over {
			return msg, err
		}
		m, err := f.streams.nextOnSubject(ctx, f.stream, f.filter, f.next)
		switch {
		case protocol.CodeOf(err) == protocol.NotFound:
			f.target, f.pending = 0, 0
		case err != nil:
			return nil, err
		default:
			return nil, protocol.Errorf(
				protocol.Unavailable,
				"",
				"follow %s: message %d did not arrive",
				f.stream,
				m.sequence,
			)
		}
		f.progress()
	}
	return messages.next(ctx)
}

// progress calls the function caughtUp when the follower has caught up. It calls caughtUp only once.
func (f *follower) progress() {
	if f.caughtUp != nil && f.next > f.target && f.pending == 0 {
		f.caughtUp()
		f.caughtUp = nil
	}
}
