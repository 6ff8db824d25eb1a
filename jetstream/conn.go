package jetstream

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/wake"
)

// Config configures a connection to NATS.
type Config struct {
	URL       string                     // one or more URLs of servers, comma separated; ignored with InProcess
	Token     string                     // token to present to the server; ignored with Login
	Creds     string                     // path of a credentials file, read again at each attempt to connect
	NKey      string                     // path of a file with the seed of an NKey, read again like Creds
	Login     func() (Login, error)      // called at each attempt to connect; must not block for long; may be nil
	TLS       TLS                        // how the servers are checked; ignored with InProcess
	LoginFrom string                     // where Login or Creds come from, for error messages; may be empty
	Wait      bool                       // try to connect until ctx ends, even if ctx has no deadline
	InProcess nats.InProcessConnProvider // connects to an embedded server
	Name      string                     // name of the connection, shown by the server
	Timeout   time.Duration              // how long a call waits for one answer; default 10 s
	Logger    *slog.Logger               // default slog.Default
	OnState   func(connected bool)       // called when the connection is lost or restored; may be nil

	// Tenant and User are the names under which the connection sends requests and queries. The connection receives the
	// answers in inboxes whose subjects contain both names. The user of a role that belongs to no tenant begins with @.
	// If `boxfleet auth` made the file Creds, Tenant and User are taken from that file, and other names are refused.
	// Without a user, the connection uses subjects that name no user.
	Tenant, User string

	// WithoutStreams says that the user has no right to JetStream's API. The connection then never calls this API. It
	// can still send requests and queries, and receive published messages.
	WithoutStreams bool

	// beside says that the process has another connection with the same credentials. That one logs what happens to both.
	beside bool

	Clock   Clock               // the machine's clocks; only tests set it
	Options func(*nats.Options) // changes the client's options after all others are set; only tests set it
}

// Conn is a connection to NATS with Boxfleet's streams and buckets. It reconnects forever. It is safe for concurrent
// use. Conn embeds a part for each task, such as [EventLog], and therefore has the methods of all parts. Code that
// needs only one part can take that part alone.
type Conn struct {
	core // embedded by value; all parts point to it

	*streams
	*objectStore
	*segments
	*quorum

	*EventLog
	*Writers
	*Histories
	*Journals
	*Snapshots
	*Compactor
	*ExecIndex
	*Registry
	*Leases
	*Hosts
	*Notifications
	*ImageStore
	*BlobStore
	*OutputLog
	*RequestQueue
	*Queries
	*StoredPages
	*Secrets
	*Streams
	*StoreHealth
	*Provisioner
	*Growth
}

// connection is the link to NATS. It reconnects forever, calls the registered functions after each reconnect, and
// bounds and repeats requests whose answers may be lost. Only core may embed a connection. If another part of Conn also
// embedded a connection, Conn would have the methods of connection twice at the same depth, and calls on Conn would not
// compile.
type connection struct {
	cfg     Config
	nc      *nats.Conn
	js      jetstream.JetStream
	log     *slog.Logger
	timeout time.Duration
	login   credentials
	closed  chan struct{} // closed when the connection is closed for good

	user           string // see [Config.User]
	withoutStreams bool   // see [Config.WithoutStreams]
	serves         bool   // see [Config.Wait]: the process retries even if the server refuses it

	life atomic.Uint64 // how often the connection was lost; each time, the next server may have another log

	mu          sync.Mutex
	waiting     map[int]call // calls that wait for an answer
	onReconnect map[int]func()
	onLoss      map[int]func()
	nextID      int
	others      []*Conn // made by another
}

// call is a call that waits for the answer to a message.
type call struct {
	subject string // where the message was published; empty: on several subjects
	end     context.CancelCauseFunc
}

// core is what all parts share: the connection, the store's clock, the room in the event log, and the deployment's id
// and number of replicas.
type core struct {
	connection

	clock     storeClock
	room      roomState
	meta      *assets // nil until read; guarded by mu
	elections bool    // subscribed to election notices; guarded by mu
}

// assets is what a connection reads once from the provisioned streams.
type assets struct {
	deployment string
	replicas   int
}

// Connect connects to NATS. It retries until ctx's deadline; without a deadline it tries once, unless [Config.Wait] is
// set. It does not retry errors that need a change of configuration.
//
// Errors: invalid_argument for unusable URLs, for settings that exclude each other, for files that cannot be read, and
// for a user or tenant that differs from the credentials; permission_denied if the server refuses the credentials, with
// reason client_certificate if it refuses the certificate; failed_precondition with reason server_certificate if the
// server's certificate is not trusted, or server_settings if the server offers no TLS; unavailable.
func Connect(ctx context.Context, cfg Config) (*Conn, error) {
	if err := cfg.identify(); err != nil {
		return nil, err
	}
	c := newConn(cfg)
	if cfg.InProcess == nil {
		if err := checkURLs(cfg.URL); err != nil {
			return nil, err
		}
	}
	options, err := c.options(cfg)
	if err != nil {
		return nil, err
	}
	opts := nats.GetDefaultOptions()
	for _, o := range options {
		if err := o(&opts); err != nil {
			return nil, translate(err, "connect to NATS")
		}
	}
	if cfg.Options != nil {
		cfg.Options(&opts)
	}
	nc, err := c.connectWithin(ctx, opts, cfg)
	if err != nil {
		return nil, cfg.explain(err, "connect to NATS at "+redacted(cfg.URL))
	}
	c.login.nc.Store(nc)
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(4096), jetstream.WithDefaultTimeout(c.timeout))
	if err != nil {
		nc.Close()
		return nil, translate(err, "open JetStream")
	}
	c.nc, c.js = nc, js
	if err := c.awaitServer(ctx, cfg.Wait); err != nil {
		nc.Close()
		return nil, err
	}
	return c, nil
}

// newConn builds a Conn and its parts without connecting.
func newConn(cfg Config) *Conn {
	c := &Conn{core: core{connection: connection{
		cfg: cfg, log: cfg.Logger, timeout: cfg.Timeout, closed: make(chan struct{}),
		onReconnect: map[int]func(){}, onLoss: map[int]func(){}, waiting: map[int]call{},
	}}}
	if c.log == nil {
		c.log = slog.Default()
	}
	if c.timeout == 0 {
		c.timeout = 10 * time.Second
	}
	c.clock.machine = cfg.Clock
	c.clock.machine.setDefaults()
	c.withoutStreams, c.user, c.serves = cfg.WithoutStreams, cfg.User, cfg.Wait
	c.login.log, c.login.from, c.login.closed = c.log, cfg.LoginFrom, c.closed
	if cfg.beside {
		c.login.log = slog.New(slog.DiscardHandler)
	}

	s := &streams{core: &c.core, directs: make(chan struct{}, directsAtOnce)}
	c.streams, c.quorum, c.objectStore, c.Writers = s, &quorum{core: &c.core}, &objectStore{s}, &Writers{streams: s}
	c.EventLog = &EventLog{streams: s, writers: c.Writers}
	c.segments = &segments{
		streams: s, events: c.EventLog, objects: c.objectStore,
		cache: segmentCache{full: segmentSize, inManifest: segmentsInManifest},
	}
	c.Histories = &Histories{streams: s, events: c.EventLog, segments: c.segments, writers: c.Writers}
	c.Snapshots = &Snapshots{streams: s, events: c.EventLog, segments: c.segments}
	c.Journals = &Journals{
		streams: s, events: c.EventLog, segments: c.segments, histories: c.Histories, snapshots: c.Snapshots,
		writers: c.Writers, openings: make(chan struct{}, openingsAtOnce),
	}
	c.Histories.journals, c.Snapshots.histories = c.Journals, c.Histories
	c.Compactor = &Compactor{
		streams: s, events: c.EventLog, segments: c.segments, snapshots: c.Snapshots, histories: c.Histories,
	}
	c.ExecIndex = &ExecIndex{streams: s, histories: c.Histories}
	c.Registry, c.Leases, c.Hosts = &Registry{s}, &Leases{s}, &Hosts{s}
	c.Notifications = &Notifications{&c.core, c.Writers}
	c.ImageStore, c.BlobStore = &ImageStore{s, c.objectStore}, &BlobStore{s, c.objectStore}
	c.OutputLog = &OutputLog{streams: s}
	c.Secrets = &Secrets{streams: s, writers: c.Writers}
	c.RequestQueue, c.Queries = &RequestQueue{s, c.quorum}, &Queries{&c.core, c.quorum}
	c.Streams = &Streams{core: &c.core}
	c.StoredPages = &StoredPages{histories: c.Histories, keys: c.Writers, output: c.OutputLog, blobs: c.BlobStore}
	c.StoreHealth, c.Provisioner = &StoreHealth{streams: s}, &Provisioner{s}
	c.Growth = &Growth{s, c.Provisioner}
	return c
}

// another opens a connection of its own for messages that clients may send in floods. The server sends the messages of
// a connection one after another, so a flood of queries would delay answers of JetStream, for example to the renewal of
// a lock. The parameter what becomes part of the connection's name. Until the new connection is closed, [Conn.Health]
// reports its problems too.
func (c *connection) another(ctx context.Context, what string) (*Conn, error) {
	cfg := c.cfg
	cfg.Name, cfg.OnState, cfg.WithoutStreams, cfg.beside = cfg.Name+" "+what, nil, true, true
	made, err := Connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.others = append(slices.DeleteFunc(c.others, func(o *Conn) bool { return o.nc.IsClosed() }), made)
	return made, nil
}

func (c *core) options(cfg Config) ([]nats.Option, error) {
	state := cfg.OnState
	if state == nil {
		state = func(bool) {}
	}
	ended := sync.OnceFunc(func() { close(c.closed) })
	link := c.log
	if cfg.beside {
		link = slog.New(slog.DiscardHandler)
	}
	opts := []nats.Option{
		nats.Name(cfg.Name),
		nats.MaxReconnects(-1),
		// A publish that timed out must not be stored after a reconnect.
		nats.ReconnectBufSize(-1),
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				link.Warn("lost the connection to NATS", "error", err)
			}
			c.cutOff()
			state(false)
		}),
		nats.ClosedHandler(func(*nats.Conn) { ended() }),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			c.login.accepted()
			link.Info("reconnected to NATS", "server", nc.ConnectedServerName())
			state(true)
			c.reconnected()
		}),
		nats.ErrorHandler(c.asyncError),
	}
	if cfg.User != "" {
		opts = append(opts, nats.CustomInboxPrefix(protocol.Inbox(cfg.Tenant, cfg.User)))
	}
	login, err := c.login.options(cfg)
	if err != nil {
		return nil, err
	}
	opts = append(opts, login...)
	if cfg.InProcess != nil {
		opts = append(opts, nats.InProcessServer(cfg.InProcess))
	} else {
		opts = append(opts, func(o *nats.Options) error { o.Servers = splitURLs(cfg.URL); return nil })
	}
	return opts, nil
}

// asyncError handles an error that belongs to no call of the NATS client. sub is nil if the error belongs to no
// subscription.
func (c *core) asyncError(nc *nats.Conn, sub *nats.Subscription, err error) {
	if isRefusal(err) || c.login.tls(err) != nil || !nc.IsConnected() && c.login.problem() != nil {
		c.login.refuse(nc, err)
		return
	}
	if c.forbid(err) {
		return // the calls that forbid ended report the error
	}
	subject := ""
	if sub != nil {
		subject = sub.Subject
	}
	if errors.Is(err, nats.ErrSlowConsumer) && strings.HasPrefix(subject, protocol.StreamPrefix) {
		return // the stream sends the dropped frames again
	}
	c.log.Warn("the NATS client reports an error", "error", err, "subject", subject)
	asked := isUnder(subject, protocol.BlobFilter) || isUnder(subject, protocol.APISubject("*", "*"))
	if errors.Is(err, nats.ErrSlowConsumer) && !asked { // clients repeat queries and uploads
		go c.reconnected() // messages were dropped: followers must read them from the streams
	}
}

// mostUnclear limits how often connectWithin tries again for a caller that wants only one attempt, if the server closed
// the connection in or after the TLS handshake. Such an error lacks the cause: the client loses the server's reason if
// the client's next write fails first. Another attempt may show the cause.
const mostUnclear = 10

// connectWithin retries until a connection is established, the server refuses the credentials, TLS fails, or ctx ends.
func (c *connection) connectWithin(ctx context.Context, opts nats.Options, cfg Config) (*nats.Conn, error) {
	_, bounded := ctx.Deadline()
	var last error
	unclear := 0
	pause := backoff.New(100*time.Millisecond, time.Second)
	for {
		nc, err := connectOnce(ctx, opts)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, cmp.Or(last, err)
		case err == nil || cfg.isHopeless(err):
			return nc, err
		case cfg.TLS.explain(err) != nil && unclear < mostUnclear:
			unclear++
		case !bounded && !cfg.Wait:
			return nil, cmp.Or(cfg.hopelessServer(ctx, opts), err)
		}
		last = err
		if cfg.Wait {
			c.log.Warn("waiting for NATS: could not connect yet", "at", redacted(cfg.URL), "error", err)
		} else {
			pause.Reset()
		}
		if !pause.Wait(ctx) {
			return nil, err
		}
		if cfg.NKey != "" {
			if err := c.login.reseed(cfg.NKey, &opts.Nkey); err != nil {
				c.log.Warn("could not read the seed of the NKey", "file", cfg.NKey, "error", err)
			}
		}
	}
}

// isHopeless reports whether another attempt to connect is of no use before somebody changes a configuration.
func (cfg *Config) isHopeless(err error) bool {
	problem := cfg.TLS.explain(err)
	return isRefusal(err) || problem != nil && problem.Code != protocol.Unavailable
}

// hopelessServer tries each of several servers alone, and returns the first hopeless error. The client itself reports
// only the error of the server that it tried last. If one URL requires TLS, the client requires it of all servers. A
// server that is tried alone must not get the credentials without TLS either.
func (cfg *Config) hopelessServer(ctx context.Context, opts nats.Options) error {
	all := opts.Servers
	if len(all) < 2 {
		return nil
	}
	opts.Secure = opts.Secure || slices.ContainsFunc(all, requiresTLS)
	for _, server := range all {
		opts.Servers = []string{server}
		nc, err := connectOnce(ctx, opts)
		if err == nil {
			nc.Close()
		} else if cfg.isHopeless(err) {
			return err
		}
	}
	return nil
}

func requiresTLS(server string) bool {
	scheme, _, _ := strings.Cut(server, "://")
	return strings.EqualFold(scheme, "tls") || strings.EqualFold(scheme, "wss")
}

// connectOnce tries each server once. It abandons the attempt when ctx ends. The client itself would wait 2 s for each
// server that accepts the connection and then stays silent.
func connectOnce(ctx context.Context, opts nats.Options) (*nats.Conn, error) {
	type try struct {
		nc  *nats.Conn
		err error
	}
	tries := make(chan try)
	go func() {
		nc, err := opts.Connect()
		select {
		case tries <- try{nc, err}:
		case <-ctx.Done():
			if err == nil {
				nc.Close()
			}
		}
	}()
	select {
	case t := <-tries:
		return t.nc, t.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// OnReconnect calls f after each reconnect, until stop is called. The connection may have missed messages before a
// reconnect. f must not block.
func (c *connection) OnReconnect(f func()) (stop func()) { return c.register(c.onReconnect, f) }

func (c *connection) register(calls map[int]func(), f func()) (stop func()) {
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

func (c *core) reconnected() {
	if err := c.checkPayload(); err != nil { // this may be another server, or the same server with new settings
		c.log.Error("the NATS server refuses Boxfleet's largest messages", "error", err)
	}
	c.clock.distrust()
	c.call(c.onReconnect)
	c.call(c.onLoss)
}

func (c *connection) call(registered map[int]func()) {
	c.mu.Lock()
	fs := slices.Collect(maps.Values(registered))
	c.mu.Unlock()
	for _, f := range fs {
		f()
	}
}

// OnLoss calls f each time the connection may have missed messages that the server does not send again, until stop is
// called. f must not block. f is called after each reconnect, and when the event log or the output log elects a leader:
// the old leader may have stored messages without publishing them. Election notices can be lost too, so callers that
// wait for a message also poll occasionally. Error: unavailable if the connection is closed.
func (c *core) OnLoss(f func()) (stop func(), err error) {
	if err := c.hearElections(); err != nil {
		return nil, err
	}
	return c.register(c.onLoss, f), nil
}

// hearElections subscribes once to the notices of new stream leaders.
func (c *core) hearElections() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.elections {
		return nil
	}
	elected := func(*nats.Msg) {
		c.mayHaveGrown()
		c.clock.distrust()
		c.call(c.onLoss)
	}
	for _, stream := range []string{protocol.StreamEvents, protocol.StreamLogs} {
		if _, err := c.nc.Subscribe("$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED."+stream, elected); err != nil {
			return translate(err, "listen for elections")
		}
	}
	c.elections = true
	return nil
}

// mayHaveGrown discards the known number of replicas. A stream with one replica holds no elections, so after an
// election there may be several replicas, and the answer of a replica may be stale.
func (c *core) mayHaveGrown() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.meta != nil {
		c.meta = &assets{deployment: c.meta.deployment}
	}
}

// errCutOff ends a call whose connection was lost, because the answer cannot arrive any more.
var errCutOff = protocol.Errorf(protocol.Unavailable, "", "the connection to NATS was lost before the answer arrived")

// await limits the wait for one answer, as [connection.bound] does. If the connection is lost, the returned context
// ends with the cause errCutOff, so that the caller can repeat the call on the next connection. It also ends if the
// server refuses the message that the caller publishes on the subject. If the caller publishes on several subjects,
// subject is empty.
func (c *connection) await(ctx context.Context, subject string) (context.Context, context.CancelFunc) {
	ctx, cancel := c.bound(ctx)
	ctx, end := c.awaitLong(ctx, subject)
	return ctx, func() {
		end()
		cancel()
	}
}

// awaitLong is like await, but only ctx limits the time.
func (c *connection) awaitLong(ctx context.Context, subject string) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	id := c.nextID
	c.nextID++
	c.waiting[id] = call{subject, end}
	return ctx, func() {
		c.mu.Lock()
		delete(c.waiting, id)
		c.mu.Unlock()
		end(nil)
	}
}

func (c *connection) cutOff() {
	c.life.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, call := range c.waiting {
		call.end(errCutOff)
	}
}

// causeOf returns the cause of ctx's end instead of err if the cause is more specific: the connection was lost, or the
// servers have no majority.
func causeOf(ctx context.Context, err error) error {
	var cause *protocol.Error
	if err != nil && errors.As(context.Cause(ctx), &cause) {
		return cause
	}
	return err
}

// Connected reports whether the connection is up.
func (c *connection) Connected() bool { return c.nc.IsConnected() }

// Health returns nil while the connection is up, and also the one that receives queries, if there is one. Errors:
// permission_denied if the server refuses the credentials, or if the credentials cannot be read; unavailable.
func (c *connection) Health() error {
	if !c.nc.IsConnected() {
		if err := c.login.problem(); err != nil {
			return err
		}
		return protocol.Errorf(protocol.Unavailable, "", "no connection to NATS")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range c.others {
		if err := o.Health(); err != nil && !o.nc.IsClosed() {
			return err
		}
	}
	return nil
}

// Closed returns a channel that is closed when the connection has ended for good: by [Conn.Close], or because the
// client gave up after an error of the server.
func (c *connection) Closed() <-chan struct{} { return c.closed }

// awaitConnection waits until the connection is up. It fails when ctx ends or the connection is closed.
func (c *connection) awaitConnection(ctx context.Context) error {
	back := wake.New()
	defer c.OnReconnect(back.Wake)()
	for !c.nc.IsConnected() {
		select {
		case <-ctx.Done():
			return translate(ctx.Err(), "wait for NATS")
		case <-c.closed:
			return translate(nats.ErrConnectionClosed, "wait for NATS")
		case <-back:
		}
	}
	return nil
}

// Reconnect ends the connection to the server and waits for a new one, for which the credentials are read again. Calls
// in flight fail. Errors: the error of ctx; unavailable if the connection is closed.
func (c *connection) Reconnect(ctx context.Context) error {
	if err := c.nc.ForceReconnect(); err != nil {
		return translate(err, "connect to NATS again")
	}
	return c.awaitConnection(ctx)
}

// Close closes the connection. Calls in flight fail, and open streams are reset.
func (c *Conn) Close() {
	c.Streams.resetAll()
	c.core.Close()
}

// Close closes the connection. Calls in flight fail.
func (c *connection) Close() { c.nc.Close() }

// bound limits the wait for one answer to the connection's timeout, even if the caller has more time, because a lost
// answer never arrives.
func (c *connection) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.timeout)
}

// sleep pauses between two attempts. It returns false if ctx ended or the connection was closed first.
func (c *connection) sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-c.closed:
		return false
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// askAgain is how long a question waits for its answer before it is repeated.
const askAgain = 2 * time.Second

// ask sends an idempotent question and waits for the answer. The question and the answer are core NATS messages. Such
// messages are lost if a connection breaks or a server dies. Until the connection's timeout, ask repeats the question,
// on the next connection if necessary.
func (c *connection) ask(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	for {
		try, end := c.awaitOnce(ctx, m.Subject)
		answer, err := c.nc.RequestMsgWithContext(try, m)
		again := err != nil && c.mayAskAgain(ctx, try)
		if err != nil && isForbidden(try) {
			err, again = context.Cause(try), false
		}
		end()
		if !again {
			return answer, err
		}
	}
}

// awaitOnce is like await, but the returned context also ends after askAgain, the time for one attempt.
func (c *connection) awaitOnce(ctx context.Context, subject string) (try context.Context, end func()) {
	try, cancel := c.await(ctx, subject)
	again := time.AfterFunc(askAgain, cancel)
	return try, func() { again.Stop(); cancel() }
}

// mayAskAgain reports whether an attempt got no answer or had no connection, and ctx leaves time for another attempt.
func (c *connection) mayAskAgain(ctx, try context.Context) bool {
	if try.Err() != nil {
		return ctx.Err() == nil
	}
	return c.nc.IsReconnecting() && backoff.Sleep(ctx, firstPause)
}

// Open reads the deployment's id and number of replicas. Error: failed_precondition with reason not_provisioned if
// no coordinator has made the streams yet.
func (c *core) Open(ctx context.Context) error {
	_, err := c.assets(ctx)
	return err
}

// Deployment returns the id of the deployment, which was chosen when the streams were first made. [Conn.Open] or
// [Provisioner.Provision] must have succeeded.
func (c *core) Deployment() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.meta == nil {
		return ""
	}
	return c.meta.deployment
}

func (c *core) assets(ctx context.Context) (*assets, error) {
	c.mu.Lock()
	meta := c.meta
	c.mu.Unlock()
	if meta != nil {
		return meta, nil
	}
	ctx, cancel := c.bound(ctx)
	defer cancel()
	stream, err := askRepeatedly(
		ctx,
		&c.connection,
		"find Boxfleet's streams",
		func(ctx context.Context) (jetstream.Stream, error) {
			return c.readStream(ctx, protocol.StreamEvents)
		},
	)
	if err != nil {
		return nil, err
	}
	cfg := stream.CachedInfo().Config
	meta = &assets{deployment: cfg.Metadata[metadataDeployment], replicas: cfg.Replicas}
	c.mu.Lock()
	c.meta = meta
	c.mu.Unlock()
	return meta, c.hearElections() // a single server holds no elections, but the deployment may grow
}
