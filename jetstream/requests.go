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

// RequestQueue holds the requests of clients until a coordinator decides them. Requests that cannot be processed become
// dead letters.
type RequestQueue struct {
	*streams

	quorum *quorum
}

// Submit publishes a request. If it returns nil, the request is stored and will be decided, or refused with the answer
// queue_full, because too many requests of its tenant wait. The answer is sent to the subject inbox, but may be lost;
// then the client finds the outcome by the request's id. Publishing a request again under the same id is harmless: the
// request is decided once, and each publish is answered. Errors: resource_exhausted with reason queue_full;
// invalid_argument with reason too_large; after unavailable and deadline_exceeded the outcome is unknown.
//
// The message has no JetStream message id: the server would drop a repeated message as a duplicate, and no coordinator
// would answer it.
func (q *RequestQueue) Submit(ctx context.Context, tenant, verb, sandbox, id, inbox string, payload []byte) error {
	ctx, done := q.quorum.whileQuorum(ctx)
	defer done()
	subject := protocol.RequestSubject(tenant, verb, sandbox)
	if q.user != "" {
		subject = protocol.UserRequestSubject(tenant, q.user, verb, sandbox)
	}
	ctx, cancel := q.await(ctx, subject)
	defer cancel()
	m := nats.NewMsg(subject)
	m.Header.Set(protocol.HeaderContentType, protocol.ContentMsgpack)
	if inbox != "" {
		m.Header.Set(protocol.HeaderReply, inbox)
	}
	m.Data = payload
	m.Header.Set(protocol.HeaderRequest, id)
	m.Header.Set(protocol.HeaderAccept, protocol.AcceptWaiting)
	_, err := q.js.PublishMsg(ctx, m)
	return q.quorum.orNoQuorum(translateWrite(causeOf(ctx, err), m.Subject))
}

// Answers is an inbox for the answers to many requests.
type Answers struct {
	queue  *RequestQueue
	sub    *nats.Subscription
	prefix string

	mu      sync.Mutex
	waiting map[string]chan<- *protocol.Reply // keyed by the part of the inbox after the prefix
	next    uint64
}

// Answers opens an inbox; Close closes it.
func (q *RequestQueue) Answers() (*Answers, error) {
	a := &Answers{queue: q, prefix: q.nc.NewRespInbox(), waiting: map[string]chan<- *protocol.Reply{}}
	var err error
	a.sub, err = q.nc.Subscribe(a.prefix+".>", a.deliver)
	return a, translate(err, "open an inbox")
}

// Expect returns an inbox for the answer to one request and the channel that the answer arrives on. Interim replies may
// arrive before the answer: see [protocol.Reply.Interim]. Each call returns an inbox of its own, even for a request
// that another call waits for.
func (a *Answers) Expect(request string) (inbox string, answer <-chan *protocol.Reply, stop func()) {
	ch := make(chan *protocol.Reply, 2) // room for one interim reply, and for the answer
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
	case !r.Interim():
		delete(a.waiting, own)
		ch <- r
	case len(ch) == 0: // drop the interim reply if an earlier one is unread
		ch <- r
	}
}

// Close closes the inbox.
func (a *Answers) Close() { _ = a.sub.Unsubscribe() } // fails only when the connection is closed

// Delivery is a request that was delivered to a coordinator.
type Delivery struct {
	Tenant, Verb, Sandbox string
	User                  string // who published the request, proven by the subject; empty: a client without a user
	ID                    string // id of the request
	ContentType           string
	Payload               []byte
	Attempt               int // 1 for the first delivery
	Sequence              uint64
	StoredAt              time.Time
	inbox                 string
	republished           bool
	waits                 bool // the client can tell "still waiting" from an outcome
	name                  heldName
}

// CheckOrigin refuses a request whose answer would go outside its user's inbox. It also refuses a request that a stream
// republished, because the subject then does not prove the user. Error: permission_denied with reason foreign_inbox.
func (d *Delivery) CheckOrigin() error {
	switch {
	case d.republished:
		return protocol.Errorf(protocol.PermissionDenied, protocol.ReasonForeignInbox,
			"a stream republished the request: publish it directly")
	case d.User != "" && d.inbox != "" && !protocol.MayAnswer(d.inbox, d.Tenant, d.User):
		return protocol.Errorf(protocol.PermissionDenied, protocol.ReasonForeignInbox,
			"the request asks for its answer at %.80q: want a subject below %s", d.inbox, protocol.Inbox(d.Tenant, d.User))
	}
	return nil
}

// answerType returns the content type of the answer to a payload: JSON for a JSON payload, otherwise MessagePack.
func answerType(header string, payload []byte) string {
	if protocol.ContentTypeOf(header, payload) == protocol.ContentJSON {
		return protocol.ContentJSON
	}
	return protocol.ContentMsgpack
}

// Answer sends the reply to the request's inbox, if the request has one. The reply may be lost.
func (q *RequestQueue) Answer(d *Delivery, r *protocol.Reply) {
	if !protocol.MayAnswer(d.inbox, d.Tenant, d.User) {
		return
	}
	m := nats.NewMsg(d.inbox)
	contentType := answerType(d.ContentType, d.Payload)
	m.Header.Set(protocol.HeaderContentType, contentType)
	m.Data = protocol.EncodeAnswer(contentType, r, protocol.AnswersRequest)
	if err := q.nc.PublishMsg(m); err != nil {
		q.log.Warn("could not send the answer to a request", "request", d.ID, "error", err)
	}
}

// AnswerWaiting tells the client why its request is not decided yet, unless the client would mistake this reply for the
// outcome. The reply may be lost.
func (q *RequestQueue) AnswerWaiting(d *Delivery, why *protocol.Error) {
	if d.waits {
		q.Answer(d, &protocol.Reply{Version: protocol.Version, Waiting: why})
	}
}

const (
	requestsConsumer = "coordinators"
	requestsPull     = 512
	pullExpires      = 5 * time.Second // how long the server keeps a request for messages of the queue
	// requestAckWait is how long a dead coordinator's requests wait before they go to another coordinator. Handling a
	// request twice is harmless.
	requestAckWait = 4 * time.Second
	// extendPeriod is how often the ack wait of held requests is extended.
	extendPeriod = requestAckWait / 4
	// trimPeriod is how often acknowledged requests are removed.
	trimPeriod = 250 * time.Millisecond
	trimMost   = 2 * time.Second // longest pause between removals while a request stays unacknowledged
	// refusalsLogged is the shortest pause between two log lines about refused requests.
	refusalsLogged = 10 * time.Second
	// MaxAttempts is how often a request may fail because of a defect before it becomes a dead letter.
	MaxAttempts = 6
)

// Limits of the requests that one coordinator holds. Requests that end something have lines of their own.
var (
	endingTurns  = turnLimits{running: 128, ofOneLine: 96, waiting: amount{jobs: 8 << 10, bytes: 16 << 20}}
	requestTurns = turnLimits{running: 1024, ofOneLine: 768, waiting: amount{jobs: 32 << 10, bytes: 64 << 20}}
)

// HandleRequest decides one request. A nil error means that the request was decided and answered. After an error the
// request is delivered again, possibly to another coordinator.
type HandleRequest func(ctx context.Context, d *Delivery) error

// ConsumeRequests calls handle with requests until ctx ends, concurrently for many of them. At the end it waits for the
// calls in flight. A request stays with this coordinator while it waits and while handle runs. If the coordinator dies,
// the request goes to another coordinator.
//
// ConsumeRequests reads all requests that the server has, ahead of the decisions, and puts each request into the line
// of its tenant. The lines take turns. From a line that is too long, it refuses the oldest requests with queue_full:
// then the queue keeps room for other tenants, and holds no request for long. It refuses no request that was delivered
// before, because a coordinator may have decided such a request. A restarted server does not know which requests it
// delivered before.
//
// The stream is not a work queue. In a work queue each acknowledgement removes its message with a durable write of its
// own, which takes a tenth of all the work for an exec. Here the consumer keeps acknowledgements in memory, and
// trimRequests removes many acknowledged requests at once, up to four times a second. If the server restarts before
// that, it delivers acknowledged requests again, but no request is decided twice.
func (q *RequestQueue) ConsumeRequests(ctx context.Context, handle HandleRequest) error {
	var inHand sync.WaitGroup
	defer inHand.Wait()
	background, stop := context.WithCancel(ctx)
	defer stop()
	r := &requests{queue: q}
	go q.trimRequests(background, &r.settled)
	go r.held.extend(background, extendPeriod)
	decide := func(d *Delivery) {
		defer inHand.Done()
		err := ctx.Err()
		if err == nil {
			err = handle(ctx, d)
		}
		r.settle(d, err)
	}
	ending, others := newTurns(endingTurns, decide), newTurns(requestTurns, decide)
	return q.consume(ctx, consumption{
		stream: protocol.StreamRequests,
		config: jetstream.ConsumerConfig{
			Durable: requestsConsumer, AckPolicy: jetstream.AckExplicitPolicy, AckWait: requestAckWait,
			MaxDeliver: -1, MaxAckPending: -1, MemoryStorage: true,
		},
		pull: requestsPull,
		handle: func(m *nats.Msg) {
			d := r.take(m)
			if d == nil {
				return
			}
			lines, limits := others, requestTurns
			if protocol.EndsWork(d.Verb) {
				lines, limits = ending, endingTurns
			}
			line, of := lineOf(d.Tenant, d.User), amount{1, m.Size()}
			if d.Attempt > 1 {
				line, of = line+" again", amount{}
			}
			inHand.Add(1)
			for _, refused := range lines.add(line, d, of) {
				r.refuse(refused, limits.waiting.half())
				inHand.Done()
			}
		},
	})
}

// requests are the requests that one coordinator holds.
type requests struct {
	queue   *RequestQueue
	held    held
	settled atomic.Int64 // how many requests were acknowledged
	logged  time.Time    // when a refusal was last logged
}

// take adds a message to the held requests. It returns nil if the message is already held or is no request.
func (r *requests) take(m *nats.Msg) *Delivery {
	meta, err := m.Metadata()
	if err != nil {
		r.queue.log.Error("ignoring a message in the request queue, because it has no metadata",
			"subject", m.Subject, "error", err)
		return nil
	}
	tenant, user, verb, sandbox, ok := protocol.SplitRequestSubject(m.Subject)
	if !ok {
		return nil // the stream's filter admits no other subject
	}
	if !r.held.take(nameOf(meta), m) {
		return nil
	}
	h := m.Header
	return &Delivery{
		Tenant: tenant, User: user, Verb: verb, Sandbox: sandbox,
		ID: requestID(h), ContentType: headerOf(h, protocol.HeaderContentType),
		Payload: m.Data, Attempt: int(meta.NumDelivered), Sequence: meta.Sequence.Stream,
		StoredAt: meta.Timestamp, inbox: headerOf(h, protocol.HeaderReply), republished: isRepublished(h),
		waits: headerOf(h, protocol.HeaderAccept) == protocol.AcceptWaiting, name: nameOf(meta),
	}
}

// refuse answers and acknowledges a request that was not decided, because too many requests of its tenant wait. The
// parameter most is the limit of a tenant's waiting requests.
func (r *requests) refuse(d *Delivery, most amount) {
	why := protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonQueueFull,
		"too many requests of tenant %s wait (a coordinator holds at most %d of them, or %s): this one was not accepted; "+
			"try again later", d.Tenant, most.jobs, protocol.Bytes(most.bytes))
	if time.Since(r.logged) > refusalsLogged {
		r.logged = time.Now()
		r.queue.log.Warn("refusing requests of a tenant that sends them faster than they are decided", "error", why)
	}
	r.queue.Answer(d, &protocol.Reply{Version: protocol.Version, Error: why})
	r.settle(d, nil)
}

// settle acknowledges a decided request, or returns an undecided request to the queue.
func (r *requests) settle(d *Delivery, undecided error) {
	m := r.held.release(d.name)
	var err error
	switch {
	case undecided == nil:
		if err = m.Ack(); err == nil {
			r.settled.Add(1)
		}
	case errors.Is(undecided, context.Canceled):
		_ = m.NakWithDelay(retryPause) // if this fails, the server delivers the request again after the ack wait
	default:
		r.queue.log.Warn("could not decide a request; it will be delivered again", "subject", m.Subject,
			"error", undecided)
		err = m.NakWithDelay(retryPause)
	}
	if err != nil {
		r.queue.log.Warn("could not tell NATS the outcome of a request; it will be delivered again",
			"subject", m.Subject, "error", err)
	}
}

// RequestQueued reports whether a request of a verb for a sandbox is stored in the queue, decided or not.
func (q *RequestQueue) RequestQueued(ctx context.Context, tenant, verb, sandbox string) (bool, error) {
	for _, subject := range []string{
		protocol.RequestSubject(tenant, verb, sandbox), protocol.UserRequestSubject(tenant, "*", verb, sandbox),
	} {
		_, err := q.lastOnSubject(ctx, protocol.StreamRequests, subject)
		if protocol.CodeOf(err) != protocol.NotFound {
			return err == nil, err
		}
	}
	return false, nil
}

// LastRequest returns the sequence of the newest request.
func (q *RequestQueue) LastRequest(ctx context.Context) (uint64, error) {
	return q.lastSequence(ctx, protocol.StreamRequests)
}

// RemoveRequest removes a decided request from the queue, ahead of the requests before it.
func (q *RequestQueue) RemoveRequest(ctx context.Context, d *Delivery) {
	ctx, cancel := q.bound(ctx)
	defer cancel()
	stream, err := q.js.Stream(ctx, protocol.StreamRequests)
	if err == nil {
		err = stream.DeleteMsg(ctx, d.Sequence)
	}
	if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
		q.log.Warn("could not remove a decided request from the queue; it may be decided again", "error", err)
	}
}

// trimRequests removes all requests before the first unacknowledged one. It begins after requests were acknowledged,
// and repeats the removal until the server reports that all delivered requests are acknowledged.
func (q *RequestQueue) trimRequests(ctx context.Context, settled *atomic.Int64) {
	trimmed, retries := int64(0), backoff.New(trimPeriod, trimMost)
	for pause := retries.Next(); backoff.Sleep(ctx, pause); {
		n := settled.Load()
		if n == trimmed {
			continue
		}
		if q.awaitConnection(ctx) != nil {
			return
		}
		all, err := q.trimRequestsOnce(ctx)
		if err != nil && ctx.Err() == nil {
			q.log.Warn("could not remove acknowledged requests; retrying", "error", err)
		}
		if all && err == nil { // otherwise repeat at longer intervals: deciding a request may take long
			trimmed = n
			retries.Reset()
		}
		pause = retries.Next()
	}
}

// trimRequestsOnce removes the requests that the server knows to be acknowledged. all says whether these are all
// delivered requests. The server may not have received the latest acknowledgements yet.
func (q *RequestQueue) trimRequestsOnce(ctx context.Context) (all bool, err error) {
	ctx, cancel := q.bound(ctx)
	defer cancel()
	stream, err := q.js.Stream(ctx, protocol.StreamRequests)
	if err != nil {
		return false, translate(err, "remove settled requests")
	}
	consumer, err := stream.Consumer(ctx, requestsConsumer)
	if err != nil {
		return false, translate(err, "remove settled requests")
	}
	info := consumer.CachedInfo()
	floor := info.AckFloor.Stream
	all = info.NumAckPending == 0 && floor >= info.Delivered.Stream
	if floor < stream.CachedInfo().State.FirstSeq {
		return all, nil
	}
	return all, translate(stream.Purge(ctx, jetstream.WithPurgeSequence(floor+1)), "remove settled requests")
}

// requestID returns a request's id, from Boxfleet's header or else from the message id, which simple clients set.
func requestID(h nats.Header) string {
	if id := headerOf(h, protocol.HeaderRequest); id != "" {
		return id
	}
	return h.Get(jetstream.MsgIDHeader)
}

// StoreDeadLetter stores a dead letter: a request that cannot be processed, with the reason. The request is stored only
// once, even if two coordinators call StoreDeadLetter, or if a client sends the same request again.
func (q *RequestQueue) StoreDeadLetter(ctx context.Context, d *Delivery, why *protocol.Error) error {
	subject := protocol.DeadSubject(d.Tenant, d.Verb, d.Sandbox)
	last, err := q.lastOnSubject(ctx, protocol.StreamDead, subject)
	if err == nil && last.header.Get(protocol.HeaderRequest) == d.ID && bytes.Equal(last.data, d.Payload) {
		return nil
	}
	if err != nil && protocol.CodeOf(err) != protocol.NotFound {
		return err
	}
	m := nats.NewMsg(subject)
	contentType := d.ContentType
	if len(contentType) > maxContentType { // the headers of the dead letter must fit into the server's limit
		contentType = protocol.ContentTypeOf(contentType, d.Payload)
	}
	m.Header.Set(protocol.HeaderContentType, contentType)
	m.Header.Set(protocol.HeaderRequest, d.ID)
	m.Header.Set(protocol.HeaderReason, headerText(why.Error()))
	m.Header.Set(jetstream.MsgIDHeader, deadID(subject, d))
	m.Data = d.Payload
	_, err = q.publish(ctx, m, anySequence)
	if protocol.CodeOf(err) == protocol.InvalidArgument {
		// The server will never store this dead letter. If the request were not dropped, it would be delivered again
		// forever.
		q.log.Error("could not store a dead letter; the request is dropped", "subject", subject, "request", d.ID,
			"error", err)
		return nil
	}
	return err
}

// maxContentType is the length of the longest content type that a dead letter keeps unchanged.
const maxContentType = 64

// deadID returns the same message id for the same request, so that the server drops a second copy.
func deadID(subject string, d *Delivery) string {
	sum := sha256.Sum256(d.Payload)
	return subject + "." + d.ID + "." + hex.EncodeToString(sum[:8])
}

// consumption configures the consumption of a queue.
type consumption struct {
	stream string
	config jetstream.ConsumerConfig
	pull   int               // number of messages to request ahead
	handle func(m *nats.Msg) // is called with one message after another and must not block
}

// consume calls k.handle with messages until ctx ends. It makes the consumer again each time the server has lost it.
// The server keeps the consumer only in memory, but messages that are not acknowledged stay in the stream.
func (q *RequestQueue) consume(ctx context.Context, k consumption) error {
	for {
		err := q.consumeOnce(ctx, k)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		q.log.Warn("could not read the request queue; opening it again", "stream", k.stream, "error", err)
		if !backoff.Sleep(ctx, retryPause) {
			return ctx.Err()
		}
		_ = q.awaitConnection(ctx) // if this fails, the next attempt reports why
	}
}

func (q *RequestQueue) consumeOnce(ctx context.Context, k consumption) error {
	consumer, err := q.openQueue(ctx, k)
	if err != nil {
		return err
	}
	messages, err := q.pull(k.stream, consumer.CachedInfo().Name, k.pull, pullExpires)
	if err != nil {
		return err
	}
	defer messages.stop()
	// A restarted server has lost the consumer. Ending the read at each reconnect is faster than waiting for missing
	// heartbeats.
	connected, breakOff := context.WithCancel(ctx)
	defer breakOff()
	defer q.OnReconnect(breakOff)()
	for {
		m, err := messages.next(connected)
		if err == errSilent && q.nc.IsConnected() {
			continue
		}
		if err != nil {
			q.consumeArrived(ctx, k, messages)
			return translate(err, "read the queue "+k.stream)
		}
		k.handle(m)
	}
}

// consumeArrived handles the messages that arrived before the reading ended. Otherwise the server would deliver them
// again only after the ack wait.
func (q *RequestQueue) consumeArrived(ctx context.Context, k consumption, p *puller) {
	p.stop()
	for ctx.Err() == nil {
		select {
		case m := <-p.arrived:
			if !isStatus(m) {
				k.handle(m)
			}
		default:
			return
		}
	}
}

// openQueue makes the consumer, or finds it if it exists. The consumer has a name, so repeating the request does no
// harm.
func (q *RequestQueue) openQueue(ctx context.Context, k consumption) (jetstream.Consumer, error) {
	ctx, cancel := q.bound(ctx)
	defer cancel()
	doing := "open the queue " + k.stream
	return askRepeatedly(ctx, &q.connection, doing, func(ctx context.Context) (jetstream.Consumer, error) {
		return q.js.CreateOrUpdateConsumer(ctx, k.stream, k.config)
	})
}
