package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/boxfleet/boxfleet/backoff"
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
	if why := c.room.broken(); why != "" && isUnder(m.Subject, protocol.AppendFilter) {
		return 0, Room{Failed: why}.Err() // the server would not even answer
	}
	ctx, cancel := c.await(ctx)
	defer cancel()
	var opts []jetstream.PublishOpt
	if expected != anySequence {
		opts = append(opts, jetstream.WithExpectLastSequencePerSubject(uint64(expected)))
	}
	ack, err := c.js.PublishMsg(ctx, m, opts...)
	if err != nil {
		if isUnder(m.Subject, protocol.AppendFilter) && errors.Is(err, context.DeadlineExceeded) {
			c.room.suspect()
		}
		return 0, translateWrite(causeOf(ctx, err), m.Subject)
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
		if protocol.CodeOf(err) != protocol.Unavailable || !backoff.Sleep(bounded, retryPause) {
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

// One batched direct get asks for so many messages and so many bytes, and a connection waits for few of
// them at once: a server cuts off a connection that has far more to take than it takes.
const (
	directBatch   = 512
	directBytes   = 2 << 20
	directsAtOnce = 6
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

// scanBatch asks once, and visits what came when all of it is there: a visitor may take long, and another
// reader need not wait for that. next is the sequence after the last message that was visited.
func (c *Conn) scanBatch(ctx context.Context, stream, subject string, from uint64, visit func(*stored) (bool, error)) (next uint64, more bool, err error) {
	messages, more, failed := c.directGet(ctx, stream, subject, from)
	next = from
	for _, m := range messages {
		next = m.sequence + 1
		if goOn, err := visit(m); err != nil || !goOn {
			return next, false, err
		}
	}
	return next, more && next > from, failed
}

// directGet asks once for a batch of messages. With an error it returns those that came before.
func (c *Conn) directGet(ctx context.Context, stream, subject string, from uint64) (messages []*stored, more bool, err error) {
	select {
	case c.directs <- struct{}{}:
		defer func() { <-c.directs }()
	case <-ctx.Done():
		return nil, false, translate(ctx.Err(), "read "+stream)
	}
	inbox := c.nc.NewRespInbox()
	// The client's own subscriptions for one reader have room for 64 Ki messages each, which is 512 KB.
	answers := make(chan *nats.Msg, directBatch+8)
	sub, err := c.nc.ChanSubscribe(inbox, answers)
	if err != nil {
		return nil, false, translate(err, "read "+stream)
	}
	defer func() { _ = sub.Unsubscribe() }() // the connection is closing when this fails
	body, err := json.Marshal(map[string]any{"seq": from, "next_by_subj": subject, "batch": directBatch, "max_bytes": directBytes})
	if err != nil {
		return nil, false, protocol.Errorf(protocol.Internal, "", "%v", err)
	}
	if err := c.nc.PublishRequest("$JS.API.DIRECT.GET."+stream, inbox, body); err != nil {
		if c.mayAskAgain(ctx, ctx) {
			err = errUnanswered
		}
		return nil, false, translate(err, "read "+stream)
	}
	for {
		msg, err := c.nextAnswer(ctx, answers)
		if err != nil {
			return messages, false, translate(err, "read "+stream)
		}
		switch status := msg.Header.Get("Status"); status {
		case "":
		case "204": // end of batch
			pending, _ := strconv.Atoi(msg.Header.Get("Nats-Num-Pending"))
			return messages, pending > 0, nil
		case "404":
			return messages, false, nil
		case "503":
			return messages, false, translate(nats.ErrNoResponders, "read "+stream)
		default:
			return messages, false, protocol.Errorf(protocol.Internal, "", "read %s: status %s %s", stream, status, msg.Header.Get("Description"))
		}
		m := &stored{subject: msg.Header.Get("Nats-Subject"), header: msg.Header, data: msg.Data}
		if m.sequence, err = strconv.ParseUint(msg.Header.Get("Nats-Sequence"), 10, 64); err != nil {
			return messages, false, protocol.Errorf(protocol.Internal, "", "read %s: a message without a sequence", stream)
		}
		messages = append(messages, m)
	}
}

// nextAnswer waits for one message of an answer, each for as long as an answer may take: how long all of
// them take depends on how many there are.
func (c *Conn) nextAnswer(ctx context.Context, answers <-chan *nats.Msg) (*nats.Msg, error) {
	select {
	case msg := <-answers:
		return msg, nil
	default:
	}
	try, end := c.awaitOnce(ctx)
	defer end()
	select {
	case msg := <-answers:
		return msg, nil
	case <-c.closed:
		return nil, nats.ErrConnectionClosed
	case <-try.Done():
		if c.mayAskAgain(ctx, try) {
			return nil, errUnanswered
		}
		return nil, causeOf(try, try.Err())
	}
}

// pullHeartbeat is how often a server says that a request for messages stands; after twice that it is
// made again. In a cluster about one in a hundred of the first ones is lost, where the server that the
// client is connected to has not heard of the new consumer yet.
const pullHeartbeat = time.Second

// follow reads a whole stream, or one filter of it, from a sequence on, and then what comes, until
// ctx ends, or the stream no longer has what was handled: [IsRewound]. handle is called in order;
// caughtUp, when not nil, once everything was handled that the stream's leader had at the beginning, and
// what came in its place meanwhile. Where reading breaks later, it goes on behind the last handled message with a
// new consumer, for as long as it takes: the client's own ordered consumer, where a server is away or an
// answer is lost, waits longer each time.
func (c *Conn) follow(ctx context.Context, stream, filter string, from uint64, handle func(*stored), caughtUp func()) error {
	f := &follower{conn: c, stream: stream, filter: filter, next: max(from, 1), handle: handle, caughtUp: caughtUp}
	return f.run(ctx)
}

func (f *follower) run(ctx context.Context) error {
	c := f.conn
	if f.caughtUp != nil {
		m, err := c.lastOnSubject(ctx, f.stream, f.filter)
		if err == nil {
			f.target = m.sequence
		} else if protocol.CodeOf(err) != protocol.NotFound {
			return err
		}
	}
	for begun := false; ; {
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
		case !begun || c.nc.IsClosed() || IsRewound(err):
			return err
		}
		c.log.Warn("following starts again", "stream", f.stream, "error", err)
		if !backoff.Sleep(ctx, retryPause) {
			return ctx.Err()
		}
		_ = c.awaitConnection(ctx) // where it fails, the next try says why
	}
}

// follower is one call of follow.
type follower struct {
	conn           *Conn
	stream, filter string
	headersOnly    bool
	next           uint64 // where the next consumer begins
	handle         func(*stored)
	handled        time.Time // when the message before next was stored; zero: not known
	caughtUp       func()    // nil once it was called
	target         uint64    // what it has to come to before
	pending        uint64    // so many more are to come, as the replica sees it that the consumer sits on
}

// open makes a consumer. The question is put again until it is answered, under the same name; where the
// cluster gave the consumer to a server that has died without its knowing yet, another one is asked for,
// which has another name, and each time there is more patience, for a cluster that is slow.
func (f *follower) open(ctx context.Context) (consumer jetstream.Consumer, err error) {
	c := f.conn
	ctx, cancel := c.bound(ctx)
	defer cancel()
	for patience := askAgain; ; patience *= 2 {
		if err := c.awaitConnection(ctx); err != nil {
			return nil, err
		}
		config := jetstream.ConsumerConfig{
			Name:          nuid.Next(),
			FilterSubject: f.filter, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: f.next,
			HeadersOnly: f.headersOnly, AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: consumerIdle,
		}
		try, stop := context.WithTimeout(ctx, patience)
		consumer, err = askRepeatedly(try, c, "follow "+f.stream, func(ctx context.Context) (jetstream.Consumer, error) {
			return c.js.CreateConsumer(ctx, f.stream, config)
		})
		again := err != nil && try.Err() != nil && ctx.Err() == nil
		stop()
		if !again {
			return consumer, err
		}
	}
}

// consumerIdle is after how long a server forgets a consumer that nobody reads from any more.
const consumerIdle = 10 * time.Second

// quiet is after how long without a message the leader is asked whether what is waited for is still there:
// what expires or is purged is never delivered. Missing heartbeats are noticed before.
const quiet = 3 * pullHeartbeat

// read handles what a consumer delivers, until something is missing or ctx ends.
func (f *follower) read(ctx context.Context, consumer jetstream.Consumer) error {
	messages, err := consumer.Messages(jetstream.PullMaxMessages(1024), jetstream.PullHeartbeat(pullHeartbeat), jetstream.WithMessagesErrOnMissingHeartbeat(true))
	if err != nil {
		return translate(err, "follow "+f.stream)
	}
	defer messages.Stop()
	// A server that was restarted has lost the consumer, and the client would find out only by the
	// heartbeats that do not come.
	connected, breakOff := context.WithCancel(ctx)
	defer breakOff()
	defer f.conn.OnReconnect(breakOff)()
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
			return protocol.Errorf(protocol.Unavailable, "", "follow %s: message %d came in place of %d", f.stream, meta.Sequence.Consumer, delivered)
		}
		f.next, f.pending, f.handled = meta.Sequence.Stream+1, meta.NumPending, meta.Timestamp
		f.handle(&stored{subject: msg.Subject(), sequence: meta.Sequence.Stream, header: msg.Headers(), data: msg.Data()})
		f.progress()
	}
}

// nextOf waits for the next message, and asks for what it waits for where none comes for long.
func (f *follower) nextOf(ctx context.Context, messages jetstream.MessagesContext) (jetstream.Msg, error) {
	for f.caughtUp != nil {
		bounded, cancel := context.WithTimeout(ctx, quiet)
		msg, err := messages.Next(jetstream.NextContext(bounded))
		over := bounded.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil || !over {
			return msg, err
		}
		m, err := f.conn.nextOnSubject(ctx, f.stream, f.filter, f.next)
		switch {
		case protocol.CodeOf(err) == protocol.NotFound:
			f.target, f.pending = 0, 0
		case err != nil:
			return nil, err
		default:
			return nil, protocol.Errorf(protocol.Unavailable, "", "follow %s: message %d does not come", f.stream, m.sequence)
		}
		f.progress()
	}
	return messages.Next(jetstream.NextContext(ctx))
}

// progress says, once, that it has caught up.
func (f *follower) progress() {
	if f.caughtUp != nil && f.next > f.target && f.pending == 0 {
		f.caughtUp()
		f.caughtUp = nil
	}
}
