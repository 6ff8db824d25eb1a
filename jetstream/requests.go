package jetstream

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/protocol"
)

// Submit publishes a request. When it returns nil the request is stored, and will be decided.
// inbox is where the answer goes, as a hint: it may be lost, and the request is found again by its
// id. Publishing the same id again is harmless. Errors: resource_exhausted with reason queue_full;
// invalid_argument with reason too_large; unavailable and deadline_exceeded leave the outcome open.
func (c *Conn) Submit(ctx context.Context, tenant, verb, sandbox, id, inbox string, payload []byte) error {
	ctx, cancel := c.await(ctx)
	defer cancel()
	m := nats.NewMsg(protocol.RequestSubject(tenant, verb, sandbox))
	m.Header.Set(protocol.HeaderContentType, protocol.ContentMsgpack)
	if inbox != "" {
		m.Header.Set(protocol.HeaderReply, inbox)
	}
	m.Data = payload
	m.Header.Set(protocol.HeaderRequest, id)
	// Deduplication knows no subjects, so the message's id carries what the request is about.
	_, err := c.js.PublishMsg(ctx, m, jetstream.WithMsgID(strings.Join([]string{tenant, verb, sandbox, id}, ".")))
	return translate(causeOf(ctx, err), "submit "+verb)
}

// Answers is one inbox for the answers to many requests.
type Answers struct {
	conn   *Conn
	sub    *nats.Subscription
	prefix string

	mu      sync.Mutex
	waiting map[string]chan<- *protocol.Reply
}

// Answers opens the inbox; Close ends it.
func (c *Conn) Answers() (*Answers, error) {
	a := &Answers{conn: c, prefix: c.nc.NewRespInbox(), waiting: map[string]chan<- *protocol.Reply{}}
	var err error
	a.sub, err = c.nc.Subscribe(a.prefix+".*", a.deliver)
	return a, translate(err, "open an inbox")
}

// Expect returns the inbox for the answer to one request, and the channel that it arrives on.
func (a *Answers) Expect(request string) (inbox string, answer <-chan *protocol.Reply, stop func()) {
	ch := make(chan *protocol.Reply, 1)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting[request] = ch
	return a.prefix + "." + request, ch, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.waiting, request)
	}
}

func (a *Answers) deliver(m *nats.Msg) {
	request := strings.TrimPrefix(m.Subject, a.prefix+".")
	r := &protocol.Reply{}
	if err := protocol.DecodeAs(m.Header.Get(protocol.HeaderContentType), m.Data, r); err != nil {
		r = &protocol.Reply{Error: protocol.AsError(err)}
	}
	a.mu.Lock()
	ch := a.waiting[request]
	delete(a.waiting, request)
	a.mu.Unlock()
	if ch != nil {
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
}

// Answer sends the reply to who made the request, if they left an inbox. It may be lost.
func (c *Conn) Answer(d *Delivery, r *protocol.Reply) {
	// An inbox that is anything else would let a client speak with a coordinator's rights.
	if !strings.HasPrefix(d.inbox, "_INBOX.") || strings.ContainsAny(d.inbox, "*> \t\r\n") {
		return
	}
	m := nats.NewMsg(d.inbox)
	contentType := protocol.ContentMsgpack
	if d.ContentType == protocol.ContentJSON {
		contentType = protocol.ContentJSON
	}
	m.Header.Set(protocol.HeaderContentType, contentType)
	m.Data = protocol.EncodeAs(contentType, r)
	if err := c.nc.PublishMsg(m); err != nil {
		c.log.Warn("an answer is not sent", "request", d.ID, "error", err)
	}
}

const (
	requestsConsumer = "coordinators"
	requestsInFlight = 512
	// requestAckWait is after how long a request goes to another coordinator, when the one that
	// took it died. Taking one twice is harmless.
	requestAckWait = 4 * time.Second
	// trimPeriod is how often settled requests are removed.
	trimPeriod = 250 * time.Millisecond
	trimMost   = 2 * time.Second // and, while one is not settled yet, at least
	// MaxAttempts is how often a request is tried before it is filed as dead.
	MaxAttempts = 6
)

// ConsumeRequests hands each request to handle, many at once, until ctx ends; then it waits for
// those in hand. What handle returns settles the request: nil means decided and answered; an error
// means that it could not be decided now, and it is delivered again later. A coordinator that dies
// in handle leaves the request to the next.
//
// The stream is not a work queue: there each acknowledgement removes its message with a durable
// write of its own, which cost a tenth of all the work for an exec. The acknowledgements are kept
// in the consumer's memory, and what is settled is removed four times a second, many at once. A
// server that restarts in between delivers those again, which decides nothing twice.
func (c *Conn) ConsumeRequests(ctx context.Context, handle func(ctx context.Context, d *Delivery) error) error {
	var settled atomic.Int64
	trimming, stop := context.WithCancel(ctx)
	defer stop()
	go c.trimRequests(trimming, &settled)
	return c.consume(ctx, consumption{
		settled: &settled,
		stream:  protocol.StreamRequests,
		config: jetstream.ConsumerConfig{
			Durable: requestsConsumer, AckPolicy: jetstream.AckExplicitPolicy, AckWait: requestAckWait,
			MaxDeliver: -1, MaxAckPending: 2 * requestsInFlight, MemoryStorage: true,
		},
		inFlight: requestsInFlight,
		handle: func(ctx context.Context, m jetstream.Msg, meta *jetstream.MsgMetadata) error {
			tenant, verb, sandbox, ok := protocol.SplitRequestSubject(m.Subject())
			if !ok {
				return nil // the stream's filter lets nothing else in
			}
			return handle(ctx, &Delivery{
				Tenant: tenant, Verb: verb, Sandbox: sandbox,
				ID: requestID(m.Headers()), ContentType: m.Headers().Get(protocol.HeaderContentType),
				Payload: m.Data(), Attempt: int(meta.NumDelivered), Sequence: meta.Sequence.Stream,
				StoredAt: meta.Timestamp, inbox: m.Headers().Get(protocol.HeaderReply),
			})
		},
	})
}

// trimRequests removes requests up to the first that is not settled, each time that some were, until none
// is left that is settled.
func (c *Conn) trimRequests(ctx context.Context, settled *atomic.Int64) {
	trimmed, pause := int64(0), trimPeriod
	for sleep(ctx, pause) {
		n := settled.Load()
		if n == trimmed {
			continue
		}
		all, err := c.trimRequestsOnce(ctx)
		if err != nil && ctx.Err() == nil {
			c.log.Warn("settled requests are removed later", "error", err)
		}
		if pause = min(2*pause, trimMost); all && err == nil { // else one of them may take long to settle
			trimmed, pause = n, trimPeriod
		}
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
	if id := h.Get(protocol.HeaderRequest); id != "" {
		return id
	}
	return h.Get(jetstream.MsgIDHeader)
}

// FileDead records a request that cannot be processed, with the reason.
func (c *Conn) FileDead(ctx context.Context, d *Delivery, why *protocol.Error) error {
	m := nats.NewMsg(protocol.DeadSubject(d.Tenant, d.Verb, d.Sandbox))
	m.Header.Set(protocol.HeaderContentType, d.ContentType)
	m.Header.Set(protocol.HeaderRequest, d.ID)
	m.Header.Set(protocol.HeaderReason, strings.NewReplacer("\r", " ", "\n", " ").Replace(why.Error()))
	m.Data = d.Payload
	_, err := c.publish(ctx, m, anySequence)
	return err
}

// consumption is how a queue is consumed.
type consumption struct {
	stream   string
	config   jetstream.ConsumerConfig
	inFlight int
	settled  *atomic.Int64 // counts what was acknowledged; may be nil
	handle   func(ctx context.Context, m jetstream.Msg, meta *jetstream.MsgMetadata) error
}

// consume hands messages to the handler and settles them by what it returns. The consumer is made
// again whenever it is gone: its state is in memory, what was not acknowledged is in the stream.
func (c *Conn) consume(ctx context.Context, k consumption) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, k.inFlight)
	for {
		err := c.consumeOnce(ctx, k, slots, &wg)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c.log.Warn("a queue is opened again", "stream", k.stream, "error", err)
		if !sleep(ctx, retryPause) {
			return ctx.Err()
		}
	}
}

func (c *Conn) consumeOnce(ctx context.Context, k consumption, slots chan struct{}, wg *sync.WaitGroup) error {
	bounded, cancel := c.bound(ctx)
	defer cancel()
	consumer, err := c.js.CreateOrUpdateConsumer(bounded, k.stream, k.config)
	if err != nil {
		return translate(err, "open the queue "+k.stream)
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(k.inFlight), jetstream.PullExpiry(5*time.Second), jetstream.PullHeartbeat(pullHeartbeat))
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
		slots <- struct{}{}
		wg.Add(1)
		go func() {
			defer func() { <-slots; wg.Done() }()
			if c.settle(ctx, m, k.handle) && k.settled != nil {
				k.settled.Add(1)
			}
		}()
	}
}

// settle reports whether the message was acknowledged.
func (c *Conn) settle(ctx context.Context, m jetstream.Msg, handle func(context.Context, jetstream.Msg, *jetstream.MsgMetadata) error) bool {
	meta, err := m.Metadata()
	if err == nil {
		err = handle(ctx, m, meta)
	}
	decided := err == nil
	if decided {
		err = m.Ack()
	} else {
		c.log.Warn("a message is delivered again later", "subject", m.Subject(), "error", err)
		delay := min(retryPause<<min(int(meta.NumDelivered)-1, 4), 2*time.Second)
		err = m.NakWithDelay(delay)
	}
	if err != nil {
		c.log.Warn("a message is not settled and comes again", "subject", m.Subject(), "error", err)
	}
	return decided && err == nil
}
