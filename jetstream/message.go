package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/protocol"
)

// stored is one message of a stream.
type stored struct {
	subject  string
	sequence uint64
	header   nats.Header
	data     []byte
	time     time.Time // when it was stored; set where one message is read
}

// publish stores a message and waits for the acknowledgement. expected is the sequence of the last
// message on the subject, or anySequence.
func (c *Conn) publish(ctx context.Context, m *nats.Msg, expected int64) (uint64, error) {
	ctx, cancel := c.await(ctx)
	defer cancel()
	var opts []jetstream.PublishOpt
	if expected != anySequence {
		opts = append(opts, jetstream.WithExpectLastSequencePerSubject(uint64(expected)))
	}
	ack, err := c.js.PublishMsg(ctx, m, opts...)
	if err != nil {
		return 0, translate(causeOf(ctx, err), "write to "+m.Subject)
	}
	return ack.Sequence, nil
}

const anySequence = -1

// lastOnSubject reads the last message of a subject from the stream's leader: never stale. Error:
// not_found.
func (c *Conn) lastOnSubject(ctx context.Context, stream, subject string) (*stored, error) {
	return c.leaderGet(ctx, stream, map[string]any{"last_by_subj": subject})
}

// nextOnSubject reads the first message of a subject at or after a sequence from the stream's
// leader. Error: not_found.
func (c *Conn) nextOnSubject(ctx context.Context, stream, subject string, from uint64) (*stored, error) {
	return c.leaderGet(ctx, stream, map[string]any{"seq": from, "next_by_subj": subject})
}

func (c *Conn) leaderGet(ctx context.Context, stream string, query map[string]any) (*stored, error) {
	body, err := json.Marshal(query)
	if err != nil {
		return nil, protocol.Errorf(protocol.Internal, "", "%v", err)
	}
	bounded, cancel := c.bound(ctx)
	defer cancel()
	for {
		m, err := c.leaderGetOnce(bounded, stream, body)
		// A stream has no leader while one is elected.
		if protocol.CodeOf(err) != protocol.Unavailable || !sleep(bounded, retryPause) {
			return m, err
		}
	}
}

func (c *Conn) leaderGetOnce(ctx context.Context, stream string, query []byte) (*stored, error) {
	reply, err := c.ask(ctx, &nats.Msg{Subject: "$JS.API.STREAM.MSG.GET." + stream, Data: query})
	if err != nil {
		return nil, translate(err, "read "+stream)
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message *struct {
			Subject  string    `json:"subject"`
			Sequence uint64    `json:"seq"`
			Header   []byte    `json:"hdrs"`
			Data     []byte    `json:"data"`
			Time     time.Time `json:"time"`
		} `json:"message"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return nil, protocol.Errorf(protocol.Internal, "", "read %s: %v", stream, err)
	}
	if answer.Error != nil {
		return nil, translate(answer.Error, "read "+stream)
	}
	m := &stored{subject: answer.Message.Subject, sequence: answer.Message.Sequence, data: answer.Message.Data, time: answer.Message.Time}
	if len(answer.Message.Header) > 0 {
		if m.header, err = nats.DecodeHeadersMsg(answer.Message.Header); err != nil {
			return nil, protocol.Errorf(protocol.Internal, "", "read %s: %v", stream, err)
		}
	}
	return m, nil
}

// directBatch is how many messages one batched direct get asks for, and directBytes how many bytes:
// what is more than a subscription lets wait would be dropped.
const (
	directBatch = 512
	directBytes = 16 << 20
)

// scan reads the messages of one literal subject from a sequence on, in order, by batched direct
// gets: no consumer is made. On a cluster a replica that is behind may answer, so the newest
// messages may be missing. It ends when visit returns false.
func (c *Conn) scan(ctx context.Context, stream, subject string, from uint64, visit func(*stored) (bool, error)) error {
	from = max(from, 1)
	heard := time.Now()
	for {
		next, more, err := c.scanBatch(ctx, stream, subject, from, visit)
		if next > from {
			from, heard = next, time.Now()
		}
		// The answer, or its rest, was lost: ask for it again.
		if err == errUnanswered && ctx.Err() == nil && time.Since(heard) < c.timeout {
			continue
		}
		if err != nil || !more {
			return err
		}
	}
}

var errUnanswered = protocol.Errorf(protocol.DeadlineExceeded, "", "no answer in time")

// scanBatch asks once. next is the sequence after the last message that was visited.
func (c *Conn) scanBatch(ctx context.Context, stream, subject string, from uint64, visit func(*stored) (bool, error)) (next uint64, more bool, err error) {
	next = from
	inbox := c.nc.NewRespInbox()
	sub, err := c.nc.SubscribeSync(inbox)
	if err != nil {
		return next, false, translate(err, "read "+stream)
	}
	defer func() { _ = sub.Unsubscribe() }() // the connection is closing when this fails
	body, err := json.Marshal(map[string]any{"seq": from, "next_by_subj": subject, "batch": directBatch, "max_bytes": directBytes})
	if err != nil {
		return next, false, protocol.Errorf(protocol.Internal, "", "%v", err)
	}
	if err := c.nc.PublishRequest("$JS.API.DIRECT.GET."+stream, inbox, body); err != nil {
		if c.mayAskAgain(ctx, ctx) {
			err = errUnanswered
		}
		return next, false, translate(err, "read "+stream)
	}
	for {
		try, end := c.awaitOnce(ctx) // each message: how long all of it takes is the visitor's affair
		msg, err := sub.NextMsgWithContext(try)
		if err != nil && c.mayAskAgain(ctx, try) {
			err = errUnanswered
		}
		end()
		if err != nil {
			return next, false, translate(err, "read "+stream)
		}
		switch status := msg.Header.Get("Status"); status {
		case "":
		case "204": // end of batch
			pending, _ := strconv.Atoi(msg.Header.Get("Nats-Num-Pending"))
			return next, pending > 0 && next > from, nil
		case "404":
			return next, false, nil
		case "503":
			return next, false, translate(nats.ErrNoResponders, "read "+stream)
		default:
			return next, false, protocol.Errorf(protocol.Internal, "", "read %s: status %s %s", stream, status, msg.Header.Get("Description"))
		}
		m := &stored{subject: msg.Header.Get("Nats-Subject"), header: msg.Header, data: msg.Data}
		if m.sequence, err = strconv.ParseUint(msg.Header.Get("Nats-Sequence"), 10, 64); err != nil {
			return next, false, protocol.Errorf(protocol.Internal, "", "read %s: a message without a sequence", stream)
		}
		next = m.sequence + 1
		if goOn, err := visit(m); err != nil || !goOn {
			return next, false, err
		}
	}
}

// pullHeartbeat is how often a server says that a request for messages stands; after twice that it is
// made again. In a cluster about one in a hundred of the first ones is lost, where the server that the
// client is connected to has not heard of the new consumer yet.
const pullHeartbeat = time.Second

// stopAfter is how long the end of a context has to end a wait for messages by itself.
const stopAfter = 500 * time.Millisecond

// follow reads a whole stream, or one filter of it, from a sequence on, and then what comes, until
// ctx ends. handle is called in order; caughtUp, when not nil, once nothing more is pending.
func (c *Conn) follow(ctx context.Context, stream, filter string, from uint64, handle func(*stored), caughtUp func()) error {
	start := from
	if start == 0 {
		start = 1
	}
	cfg := jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{filter}, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: start,
		InactiveThreshold: 10 * time.Second,
	}
	consumer, err := c.js.OrderedConsumer(ctx, stream, cfg)
	if err != nil {
		return translate(err, "follow "+stream)
	}
	if info := consumer.CachedInfo(); caughtUp != nil && info != nil && info.NumPending == 0 {
		caughtUp()
		caughtUp = nil
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(1024), jetstream.PullHeartbeat(pullHeartbeat))
	if err != nil {
		return translate(err, "follow "+stream)
	}
	// While it begins anew, Next hears nothing but Stop; but a Stop at that time may stop the old consumer
	// only, and not the new one that Next then waits for. So it hears both, and Stop a little later.
	defer messages.Stop()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(stopAfter, messages.Stop) })
	defer stop()
	untilEnd := jetstream.NextContext(ctx)
	for {
		msg, err := messages.Next(untilEnd)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, jetstream.ErrMsgIteratorClosed):
			return translate(err, "follow "+stream)
		case err != nil:
			c.log.Warn("follow", "stream", stream, "error", err)
			if !sleep(ctx, 100*time.Millisecond) {
				return ctx.Err()
			}
			continue
		}
		meta, err := msg.Metadata()
		if err != nil {
			return protocol.Errorf(protocol.Internal, "", "follow %s: %v", stream, err)
		}
		handle(&stored{subject: msg.Subject(), sequence: meta.Sequence.Stream, header: msg.Headers(), data: msg.Data()})
		if caughtUp != nil && meta.NumPending == 0 {
			caughtUp()
			caughtUp = nil
		}
	}
}
