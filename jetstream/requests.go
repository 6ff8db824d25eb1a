package jetstream

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

// Submit publishes a request. When it returns nil the request is stored, and will be decided.
// inbox is where the answer goes, as a hint: it may be lost, and the request is found again by its
// id. Publishing the same id again is harmless: it is decided once, and each publish is answered.
// Errors: resource_exhausted with reason queue_full; invalid_argument with reason too_large;
// unavailable and deadline_exceeded leave the outcome open.
//
// The message has no id of its own for JetStream: a repeat that the server drops as a duplicate is
// stored and answered by nobody.
func (c *Conn) Submit(ctx context.Context, tenant, verb, sandbox, id, inbox string, payload []byte) error {
	ctx, done := c.whileQuorum(ctx)
	defer done()
	ctx, cancel := c.await(ctx)
	defer cancel()
	m := nats.NewMsg(protocol.RequestSubject(tenant, verb, sandbox))
	m.Header.Set(protocol.HeaderContentType, protocol.ContentMsgpack)
	if inbox != "" {
		m.Header.Set(protocol.HeaderReply, inbox)
	}
	m.Data = payload
	m.Header.Set(protocol.HeaderRequest, id)
	m.Header.Set(protocol.HeaderAccept, protocol.AcceptWaiting)
	_, err := c.js.PublishMsg(ctx, m)
	return c.orNoQuorum(translateWrite(causeOf(ctx, err), m.Subject))
}

// Answers is one inbox for the answers to many requests.
type Answers struct {
	conn   *Conn
	sub    *nats.Subscription
	prefix string

	mu      sync.Mutex
	waiting map[string]chan<- *protocol.Reply // by the inbox's own part of the subject
	next    uint64
}

// Answers opens the inbox; Close ends it.
func (c *Conn) Answers() (*Answers, error) {
	a := &Answers{conn: c, prefix: c.nc.NewRespInbox(), waiting: map[string]chan<- *protocol.Reply{}}
	var err error
	a.sub, err = c.nc.Subscribe(a.prefix+".>", a.deliver)
	return a, translate(err, "open an inbox")
}

// Expect returns an inbox for the answer to one request, and the channel that it arrives on, maybe
// after some that only say what it waits for. Each call has an inbox of its own, also for a request
// that somebody else waits for.
func (a *Answers) Expect(request string) (inbox string, answer <-chan *protocol.Reply, stop func()) {
	ch := make(chan *protocol.Reply, 2) // one of them for the answer itself
	a.mu.Lock()
	defer a.mu.Unlock()
	a.next++
	own := request + "." + strconv.FormatUint(a.next, 10)
	a.waiting[own] = ch
	return a.prefix + "." + own, ch, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.waiting, own)
	}
}

func (a *Answers) deliver(m *nats.Msg) {
	own := strings.TrimPrefix(m.Subject, a.prefix+".")
	r := &protocol.Reply{}
	if err := protocol.DecodeAs(m.Header.Get(protocol.HeaderContentType), m.Data, r); err != nil {
		r = &protocol.Reply{Error: protocol.AsError(err)}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	ch := a.waiting[own]
	switch {
	case ch == nil:
	case r.Waiting == nil:
		delete(a.waiting, own)
		ch <- r
	case len(ch) == 0: // else the one before is not read yet, and says the same
		ch <- r
	}
}

// Close closes the inbox.
func (a *Answers) Close() { _ = a.sub.Unsubscribe() } // fails only when the connection is closed

// Delivery is one request, delivered to a coordinator.
type Delivery struct {
	Tenant, Verb, Sandbox string
	ID                    string // of the request
	ContentType           string
	Payload               []byte
	Attempt               int // 1 for the first delivery
	Sequence              uint64
	StoredAt              time.Time
	inbox                 string
	waits                 bool // the client tells an answer that it waits from an outcome
}

// answerType is the form in which a payload is answered: its own where that is one that is spoken here.
func answerType(header string, payload []byte) string {
	if protocol.ContentTypeOf(header, payload) == protocol.ContentJSON {
		return protocol.ContentJSON
	}
	return protocol.ContentMsgpack
}

// Answer sends the reply to who made the request, if they left an inbox. It may be lost.
func (c *Conn) Answer(d *Delivery, r *protocol.Reply) {
	// An inbox that is anything else would let a client speak with a coordinator's rights.
	if !strings.HasPrefix(d.inbox, "_INBOX.") || strings.ContainsAny(d.inbox, "*> \t\r\n") {
		return
	}
	m := nats.NewMsg(d.inbox)
	contentType := answerType(d.ContentType, d.Payload)
	m.Header.Set(protocol.HeaderContentType, contentType)
	m.Data = protocol.EncodeAnswer(contentType, r, protocol.AnswersRequest)
	if err := c.nc.PublishMsg(m); err != nil {
		c.log.Warn("an answer is not sent", "request", d.ID, "error", err)
	}
}

// AnswerWaiting says to who made the request why it is not decided yet, where their client does not
// take that for the outcome. It may be lost.
func (c *Conn) AnswerWaiting(d *Delivery, why *protocol.Error) {
	if d.waits {
		c.Answer(d, &protocol.Reply{Version: protocol.Version, Waiting: why})
	}
}

const (
	requestsConsumer = "coordinators"
	endingConsumer   = "coordinators-ending"
	// requestsHeld is how many requests all coordinators together hold at most.
	requestsHeld = 1024
	endingHeld   = 64
	requestsPull = 512
	// requestAckWait is after how long a request goes to another coordinator, when the one that
	// took it died. Taking one twice is harmless.
	requestAckWait = 4 * time.Second
	// extendPeriod is how often the ack wait of held requests is extended.
	extendPeriod = requestAckWait / 4
	// trimPeriod is how often settled requests are removed.
	trimPeriod = 250 * time.Millisecond
	trimMost   = 2 * time.Second // and, while one is not settled yet, at least
	// MaxAttempts is how often a request may fail by a defect before it is filed as dead.
	MaxAttempts = 6
)

// HandleRequest decides one request. nil means decided and answered; an error means that somebody
// else shall decide it: it is delivered again, to another coordinator where there is one.
type HandleRequest func(ctx context.Context, d *Delivery) error

// Requests is one coordinator's side of the queue of requests.
type Requests struct {
	conn *Conn
	held held
}

// Requests opens the queue of requests; nothing is read yet.
func (c *Conn) Requests() *Requests { return &Requests{conn: c} }

// ConsumeRequests is [Requests.Consume] for a coordinator that needs nothing else of the queue.
func (c *Conn) ConsumeRequests(ctx context.Context, handle HandleRequest) error {
	return c.Requests().Consume(ctx, handle)
}

// Consume hands each request to handle, all that the server gives at once, until ctx ends; then it
// waits for those in hand. A request stays with this coordinator for as long as handle takes: no
// other one gets it meanwhile. A coordinator that dies in handle leaves it to the next.
//
// The stream is not a work queue: there each acknowledgement removes its message with a durable
// write of its own, which cost a tenth of all the work for an exec. The acknowledgements are kept
// in the consumer's memory, and what is settled is removed four times a second, many at once. A
// server that restarts in between delivers those again, which decides nothing twice.
func (q *Requests) Consume(ctx context.Context, handle HandleRequest) error {
	var settled atomic.Int64
	beside, stop := context.WithCancel(ctx)
	defer stop()
	go q.conn.trimRequests(beside, &settled)
	go q.held.extend(beside, extendPeriod)
	return q.conn.consume(ctx, consumption{
		stream: protocol.StreamRequests,
		config: jetstream.ConsumerConfig{
			Durable: requestsConsumer, AckPolicy: jetstream.AckExplicitPolicy, AckWait: requestAckWait,
			MaxDeliver: -1, MaxAckPending: requestsHeld, MemoryStorage: true,
		},
		pull: requestsPull,
		handle: func(ctx context.Context, m jetstream.Msg, inHand *sync.WaitGroup) {
			name, ok := q.take(m)
			if !ok {
				return
			}
			inHand.Go(func() {
				err := q.decide(ctx, m, handle)
				if q.conn.settle(q.held.release(name), err) {
					settled.Add(1)
				}
			})
		},
	})
}

// ConsumeEnding hands those requests to handle that end something, cancels, stops and deletes, past
// all that are waiting before them, until ctx ends. What it decided is removed from the queue: the
// other consumer of it, which comes to it later, must not decide it on what has become since.
func (q *Requests) ConsumeEnding(ctx context.Context, handle HandleRequest) error {
	var filters []string
	for _, verb := range []string{protocol.VerbCancel, protocol.VerbStop, protocol.VerbDelete} {
		filters = append(filters, protocol.RequestSubject("*", verb, "*"))
	}
	return q.conn.consume(ctx, consumption{
		stream: protocol.StreamRequests,
		config: jetstream.ConsumerConfig{
			Durable: endingConsumer, FilterSubjects: filters, AckPolicy: jetstream.AckExplicitPolicy, AckWait: requestAckWait,
			MaxDeliver: -1, MaxAckPending: endingHeld, MemoryStorage: true, InactiveThreshold: 30 * time.Second,
		},
		pull: endingHeld,
		handle: func(ctx context.Context, m jetstream.Msg, inHand *sync.WaitGroup) {
			name, ok := q.take(m)
			if !ok {
				return
			}
			inHand.Go(func() {
				err := q.decide(ctx, m, handle)
				if err == nil {
					q.conn.remove(ctx, name.sequence)
				}
				q.conn.settle(q.held.release(name), err)
			})
		},
	})
}

// take holds a request. It reports false where there is nothing to do: it is in hand already, or is
// no request.
func (q *Requests) take(m jetstream.Msg) (name heldName, ok bool) {
	meta, err := m.Metadata()
	if err != nil {
		q.conn.log.Error("a message of the queue says nothing of itself", "subject", m.Subject(), "error", err)
		return heldName{}, false
	}
	name = nameOf(meta)
	return name, q.held.take(name, m)
}

func (q *Requests) decide(ctx context.Context, m jetstream.Msg, handle HandleRequest) error {
	meta, err := m.Metadata()
	if err != nil {
		return err
	}
	tenant, verb, sandbox, ok := protocol.SplitRequestSubject(m.Subject())
	if !ok {
		return nil // the stream's filter lets nothing else in
	}
	h := m.Headers()
	return handle(ctx, &Delivery{
		Tenant: tenant, Verb: verb, Sandbox: sandbox,
		ID: requestID(h), ContentType: headerOf(h, protocol.HeaderContentType),
		Payload: m.Data(), Attempt: int(meta.NumDelivered), Sequence: meta.Sequence.Stream,
		StoredAt: meta.Timestamp, inbox: headerOf(h, protocol.HeaderReply), waits: headerOf(h, protocol.HeaderAccept) == protocol.AcceptWaiting,
	})
}

// RequestQueued says whether a request of a verb for a sandbox is stored in the queue, settled or not.
func (c *Conn) RequestQueued(ctx context.Context, tenant, verb, sandbox string) (bool, error) {
	_, err := c.lastOnSubject(ctx, protocol.StreamRequests, protocol.RequestSubject(tenant, verb, sandbox))
	if protocol.CodeOf(err) == protocol.NotFound {
		return false, nil
	}
	return err == nil, err
}

// LastRequest is the sequence of the request that was stored last.
func (c *Conn) LastRequest(ctx context.Context) (uint64, error) {
	return c.lastSequence(ctx, protocol.StreamRequests)
}

// remove takes a request out of the queue.
func (c *Conn) remove(ctx context.Context, sequence uint64) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	stream, err := c.js.Stream(ctx, protocol.StreamRequests)
	if err == nil {
		err = stream.DeleteMsg(ctx, sequence)
	}
	if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
		c.log.Warn("a request that was decided stays in the queue, and is decided again", "error", err)
	}
}

// trimRequests removes requests up to the first that is not settled, each time that some were, until none
// is left that is settled.
func (c *Conn) trimRequests(ctx context.Context, settled *atomic.Int64) {
	trimmed, retries := int64(0), backoff.New(trimPeriod, trimMost)
	for pause := retries.Next(); backoff.Sleep(ctx, pause); {
		n := settled.Load()
		if n == trimmed {
			continue
		}
		if c.awaitConnection(ctx) != nil {
			return
		}
		all, err := c.trimRequestsOnce(ctx)
		if err != nil && ctx.Err() == nil {
			c.log.Warn("settled requests are removed later", "error", err)
		}
		if all && err == nil { // otherwise a request may take long to settle
			trimmed = n
			retries.Reset()
		}
		pause = retries.Next()
	}
}

// trimRequestsOnce says whether everything that was delivered is settled, as the server sees it: an
// acknowledgement may come to it later than the question.
func (c *Conn) trimRequestsOnce(ctx context.Context) (all bool, err error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	stream, err := c.js.Stream(ctx, protocol.StreamRequests)
	if err != nil {
		return false, translate(err, "trim requests")
	}
	consumer, err := stream.Consumer(ctx, requestsConsumer)
	if err != nil {
		return false, translate(err, "trim requests")
	}
	info := consumer.CachedInfo()
	floor := info.AckFloor.Stream
	all = info.NumAckPending == 0 && floor >= info.Delivered.Stream
	if floor < stream.CachedInfo().State.FirstSeq {
		return all, nil
	}
	return all, translate(stream.Purge(ctx, jetstream.WithPurgeSequence(floor+1)), "trim requests")
}

// requestID is the id that a request was given: its own header, or, of a simple client, the
// message's id.
func requestID(h nats.Header) string {
	if id := headerOf(h, protocol.HeaderRequest); id != "" {
		return id
	}
	return h.Get(jetstream.MsgIDHeader)
}

// FileDead records a request that cannot be processed, with the reason. It is there once: also where
// two coordinators file it, or where it was sent again as it was and fails again.
func (c *Conn) FileDead(ctx context.Context, d *Delivery, why *protocol.Error) error {
	subject := protocol.DeadSubject(d.Tenant, d.Verb, d.Sandbox)
	last, err := c.lastOnSubject(ctx, protocol.StreamDead, subject)
	if err == nil && last.header.Get(protocol.HeaderRequest) == d.ID && bytes.Equal(last.data, d.Payload) {
		return nil
	}
	if err != nil && protocol.CodeOf(err) != protocol.NotFound {
		return err
	}
	m := nats.NewMsg(subject)
	m.Header.Set(protocol.HeaderContentType, d.ContentType)
	m.Header.Set(protocol.HeaderRequest, d.ID)
	m.Header.Set(protocol.HeaderReason, headerText(why.Error()))
	m.Header.Set(jetstream.MsgIDHeader, deadID(subject, d))
	m.Data = d.Payload
	_, err = c.publish(ctx, m, anySequence)
	return err
}

// deadID is the same for the same request, so that the server drops what is filed a second time.
func deadID(subject string, d *Delivery) string {
	sum := sha256.Sum256(d.Payload)
	return subject + "." + d.ID + "." + hex.EncodeToString(sum[:8])
}

// consumption is how a queue is consumed.
type consumption struct {
	stream string
	config jetstream.ConsumerConfig
	pull   int // messages that are asked for ahead
	// handle gets each message, one after another, and must not block.
	handle func(ctx context.Context, m jetstream.Msg, inHand *sync.WaitGroup)
}

// consume hands messages to the handler. The consumer is made again whenever it is gone: its state is
// in memory, what was not acknowledged is in the stream.
func (c *Conn) consume(ctx context.Context, k consumption) error {
	var inHand sync.WaitGroup
	defer inHand.Wait()
	for {
		err := c.consumeOnce(ctx, k, &inHand)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c.log.Warn("a queue is opened again", "stream", k.stream, "error", err)
		if !backoff.Sleep(ctx, retryPause) {
			return ctx.Err()
		}
		_ = c.awaitConnection(ctx) // where it fails, the next try says why
	}
}

func (c *Conn) consumeOnce(ctx context.Context, k consumption, inHand *sync.WaitGroup) error {
	consumer, err := c.openQueue(ctx, k)
	if err != nil {
		return err
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(k.pull), jetstream.PullExpiry(5*time.Second), jetstream.PullHeartbeat(pullHeartbeat))
	if err != nil {
		return translate(err, "open the queue "+k.stream)
	}
	stop := context.AfterFunc(ctx, messages.Stop)
	defer stop()
	defer messages.Stop()
	// A server that was restarted has lost the consumer, and the client would find out only by the
	// heartbeats that do not come. What is at hand already is still handed out.
	defer c.OnReconnect(messages.Drain)()
	for {
		m, err := messages.Next()
		if err != nil {
			return translate(err, "read the queue "+k.stream)
		}
		k.handle(ctx, m, inHand)
	}
}

// openQueue makes the consumer, or finds it: it has a name, so that it may be asked for twice.
func (c *Conn) openQueue(ctx context.Context, k consumption) (jetstream.Consumer, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	return askRepeatedly(ctx, c, "open the queue "+k.stream, func(ctx context.Context) (jetstream.Consumer, error) {
		return c.js.CreateOrUpdateConsumer(ctx, k.stream, k.config)
	})
}

// settle acknowledges a message that was decided, and gives back one that was not. It reports whether
// the message was acknowledged.
func (c *Conn) settle(m jetstream.Msg, undecided error) bool {
	var err error
	if undecided == nil {
		err = m.Ack()
	} else {
		if !errors.Is(undecided, context.Canceled) {
			c.log.Warn("a message is delivered again", "subject", m.Subject(), "error", undecided)
		}
		err = m.NakWithDelay(retryPause)
	}
	if err != nil {
		c.log.Warn("a message is not settled and comes again", "subject", m.Subject(), "error", err)
	}
	return undecided == nil && err == nil
}
