package jetstream

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/protocol"
)

// Config says how to reach NATS.
type Config struct {
	URL       string // one or more, comma separated; ignored with InProcess
	Token     string
	Creds     string                     // path of a credentials file
	InProcess nats.InProcessConnProvider // an embedded server
	Name      string                     // of the connection, shown by the server
	Timeout   time.Duration              // of one call where the caller's context has no deadline; default 10 s
	Logger    *slog.Logger               // default slog.Default
	OnState   func(connected bool)       // called on each change; may be nil
	Options   func(*nats.Options)        // for tests: the last word on the client's options
}

// Conn is a connection to NATS with Boxfleet's assets. It reconnects for ever. Its methods may be
// called at once from many goroutines.
type Conn struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	log     *slog.Logger
	timeout time.Duration

	mu          sync.Mutex
	waiting     map[int]context.CancelCauseFunc // calls that wait for an answer
	meta        *assets
	onReconnect map[int]func()
	onLoss      map[int]func()
	elections   bool // they are heard
	nextID      int
}

// assets is what is read once from the provisioned streams.
type assets struct {
	deployment string
	replicas   int
}

// Connect connects, waiting at most until ctx ends. Errors: unavailable, permission_denied.
func Connect(ctx context.Context, cfg Config) (*Conn, error) {
	c := &Conn{log: cfg.Logger, timeout: cfg.Timeout, onReconnect: map[int]func(){}, onLoss: map[int]func(){}, waiting: map[int]context.CancelCauseFunc{}}
	if c.log == nil {
		c.log = slog.Default()
	}
	if c.timeout == 0 {
		c.timeout = 10 * time.Second
	}
	opts := nats.GetDefaultOptions()
	for _, o := range c.options(cfg) {
		if err := o(&opts); err != nil {
			return nil, translate(err, "connect to NATS")
		}
	}
	if cfg.Options != nil {
		cfg.Options(&opts)
	}
	nc, err := connectWithin(ctx, opts)
	if err != nil {
		return nil, translate(err, "connect to NATS at "+cfg.URL)
	}
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(4096), jetstream.WithDefaultTimeout(c.timeout))
	if err != nil {
		nc.Close()
		return nil, translate(err, "open JetStream")
	}
	c.nc, c.js = nc, js
	return c, nil
}

func (c *Conn) options(cfg Config) []nats.Option {
	state := cfg.OnState
	if state == nil {
		state = func(bool) {}
	}
	opts := []nats.Option{
		nats.Name(cfg.Name),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(100*time.Millisecond, 250*time.Millisecond),
		// A publish that timed out must not be stored after the reconnect.
		nats.ReconnectBufSize(-1),
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				c.log.Warn("NATS is away", "error", err)
			}
			c.cutOff()
			state(false)
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			c.log.Info("NATS is back", "server", nc.ConnectedServerName())
			state(true)
			c.reconnected()
		}),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			subject := ""
			if sub != nil {
				subject = sub.Subject
			}
			c.log.Warn("NATS reports", "error", err, "subject", subject)
			if errors.Is(err, nats.ErrSlowConsumer) {
				go c.reconnected() // messages were dropped: followers read what they missed
			}
		}),
	}
	if cfg.Token != "" {
		opts = append(opts, nats.Token(cfg.Token))
	}
	if cfg.Creds != "" {
		opts = append(opts, nats.UserCredentials(cfg.Creds))
	}
	if cfg.InProcess != nil {
		opts = append(opts, nats.InProcessServer(cfg.InProcess))
	} else {
		opts = append(opts, func(o *nats.Options) error { o.Servers = splitURLs(cfg.URL); return nil })
	}
	return opts
}

// connectWithin tries until it works, the server refuses the credentials, or ctx ends.
func connectWithin(ctx context.Context, opts nats.Options) (*nats.Conn, error) {
	for {
		nc, err := opts.Connect()
		if err == nil {
			return nc, nil
		}
		if errors.Is(err, nats.ErrAuthorization) || ctx.Err() != nil {
			return nil, err
		}
		if _, bounded := ctx.Deadline(); !bounded {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// OnReconnect calls f after each reconnect, when messages may have been missed, until stop is
// called. f must not block.
func (c *Conn) OnReconnect(f func()) (stop func()) { return c.register(c.onReconnect, f) }

func (c *Conn) register(calls map[int]func(), f func()) (stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := c.nextID
	c.nextID++
	calls[id] = f
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(calls, id)
	}
}

func (c *Conn) reconnected() {
	c.call(c.onReconnect)
	c.call(c.onLoss)
}

// call calls what was registered.
func (c *Conn) call(registered map[int]func()) {
	c.mu.Lock()
	fs := slices.Collect(maps.Values(registered))
	c.mu.Unlock()
	for _, f := range fs {
		f()
	}
}

// OnLoss calls f when messages may have been lost that nobody sends again: after each reconnect, and
// each time that the event log or the log of output has a new leader, since what the old one stored
// last it may not have passed on. It does so until stop is called. f must not block. Election notices
// can be lost themselves: who waits for something also looks from time to time. Errors: unavailable
// where the connection is closed.
func (c *Conn) OnLoss(f func()) (stop func(), err error) {
	if err := c.hearElections(); err != nil {
		return nil, err
	}
	return c.register(c.onLoss, f), nil
}

// hearElections subscribes once to what a server says when it becomes the leader of a stream.
func (c *Conn) hearElections() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.elections {
		return nil
	}
	for _, stream := range []string{protocol.StreamEvents, protocol.StreamLogs} {
		if _, err := c.nc.Subscribe("$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED."+stream, func(*nats.Msg) { c.call(c.onLoss) }); err != nil {
			return translate(err, "listen for elections")
		}
	}
	c.elections = true
	return nil
}

// errCutOff is why a call ended whose connection was lost: its answer cannot come any more.
var errCutOff = protocol.Errorf(protocol.Unavailable, "", "the connection to NATS was lost before the answer")

// await bounds a call that waits for an answer like bound, and ends it with errCutOff as its cause
// when the connection is lost, so that it can be made again on the next one.
func (c *Conn) await(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := c.bound(ctx)
	ctx, end := context.WithCancelCause(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	id := c.nextID
	c.nextID++
	c.waiting[id] = end
	return ctx, func() {
		c.mu.Lock()
		delete(c.waiting, id)
		c.mu.Unlock()
		end(nil)
		cancel()
	}
}

func (c *Conn) cutOff() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, end := range c.waiting {
		end(errCutOff)
	}
}

// causeOf is errCutOff where that ended ctx, otherwise err.
func causeOf(ctx context.Context, err error) error {
	if context.Cause(ctx) == error(errCutOff) {
		return errCutOff
	}
	return err
}

// Connected says whether the connection is up now.
func (c *Conn) Connected() bool { return c.nc.IsConnected() }

// Close closes the connection. What is in flight fails.
func (c *Conn) Close() { c.nc.Close() }

// bound ends what waits for one answer after the connection's timeout, however much time the caller
// has: an answer that was lost never comes.
func (c *Conn) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.timeout)
}

// askAgain is after how long a question is asked again that was not answered.
const askAgain = 2 * time.Second

// ask sends a question that may be asked twice, and waits for the answer. Question and answer are
// core messages, and either is lost where a connection or a server breaks: it is asked again, on
// the next connection where this one is away, until the connection's timeout is over.
func (c *Conn) ask(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	for {
		try, end := c.awaitOnce(ctx)
		answer, err := c.nc.RequestMsgWithContext(try, m)
		again := err != nil && c.mayAskAgain(ctx, try)
		end()
		if !again {
			return answer, err
		}
	}
}

// awaitOnce is await for one of several tries.
func (c *Conn) awaitOnce(ctx context.Context) (try context.Context, end func()) {
	try, cancel := c.await(ctx)
	again := time.AfterFunc(askAgain, cancel)
	return try, func() { again.Stop(); cancel() }
}

// mayAskAgain says whether a try failed because no answer came, or because there is no connection
// just now, and ctx leaves time for another.
func (c *Conn) mayAskAgain(ctx, try context.Context) bool {
	if try.Err() != nil {
		return ctx.Err() == nil
	}
	return c.nc.IsReconnecting() && sleep(ctx, firstPause)
}

// Open reads what the deployment is: its id and its replicas. Error: failed_precondition with
// reason not_provisioned where no coordinator has been here yet.
func (c *Conn) Open(ctx context.Context) error {
	_, err := c.assets(ctx)
	return err
}

// Deployment is the id of the deployment, made when it was first provisioned. [Conn.Open] or
// [Conn.Provision] must have succeeded.
func (c *Conn) Deployment() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.meta == nil {
		return ""
	}
	return c.meta.deployment
}

func (c *Conn) assets(ctx context.Context) (*assets, error) {
	c.mu.Lock()
	meta := c.meta
	c.mu.Unlock()
	if meta != nil {
		return meta, nil
	}
	ctx, cancel := c.bound(ctx)
	defer cancel()
	stream, err := c.js.Stream(ctx, protocol.StreamEvents)
	if err != nil {
		return nil, translate(err, "look for Boxfleet's streams")
	}
	cfg := stream.CachedInfo().Config
	meta = &assets{deployment: cfg.Metadata[metadataDeployment], replicas: cfg.Replicas}
	c.mu.Lock()
	c.meta = meta
	c.mu.Unlock()
	return meta, nil
}

// sleep waits for d or the end of ctx, and says which: false for the end of ctx.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
