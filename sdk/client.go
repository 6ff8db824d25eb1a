package sdk

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// DefaultURL is the NATS server that a client connects to unless [Options] names another: nats://127.0.0.1:4222.
const DefaultURL = "nats://127.0.0.1:4222"

// RequestTries limits how long a call without a deadline waits for an answer: it gives up after RequestTries times
// [Options.RequestTimeout].
const RequestTries = 3

const defaultRequestTimeout = 10 * time.Second

// Options says how a client reaches the fleet. The zero value connects to a NATS server on this machine that requires
// neither credentials nor a token.
type Options struct {
	URL string // NATS servers, separated by commas; default [DefaultURL]
	// How the client identifies itself, if the server requires it: at most one of Creds, NKey, Login and Token. The files
	// are read again at each attempt to connect, so they can be replaced while the client runs.
	Creds        string // path of a NATS credentials file
	NKey         string // path of a file with the seed of an NKey
	Login        string // name of a user with a password
	Password     string // the password of Login
	PasswordFile string // path of a file with the password of Login; ignored with Password
	Token        string // the server's token
	TokenFile    string // path of a file with the token; ignored with Token

	TLS jetstream.TLS // how the client checks the servers; with any field set, TLS is required

	Tenant string // the client works with sandboxes of this tenant; default: the tenant in Creds, or "default"
	User   string // the sender of requests, if the server has permissions for each user; default: the user in Creds
	Name   string // name of the connection, as the NATS server lists it; default "boxfleet-sdk"

	// RequestTimeout is how long the client waits for the answer to a request before it sends the request again with the
	// same id; default 10 s. Repeats are harmless: a request is carried out once. Once the queue has stored a request, the
	// time before each further copy doubles, up to 2 min. A request that is refused with the reason queue_full was not
	// accepted: the client sends it again, after pauses of 250 ms to 10 s, until its context ends. If a call waits only
	// for acceptance and its context has no deadline, it gives up after [RequestTries] times RequestTimeout. It then
	// returns the refusal, if there was one.
	RequestTimeout time.Duration

	// IDPrefixes lets callers pass the beginning of a generated sandbox id instead of the whole id: at least
	// [protocol.MinPrefix] characters, and enough to tell the sandbox from all others. This option is meant for people
	// who type ids.
	IDPrefixes bool

	Conn   *jetstream.Conn // an open connection to use instead of connecting; Close leaves it open
	Logger *slog.Logger    // logs changes of the connection and long waits for an answer; default [slog.Default]
}

// Client drives a fleet. It is safe for concurrent use and reconnects by itself without limit.
type Client struct {
	conn           *jetstream.Conn
	reads          *jetstream.TenantReads
	writers        *writers
	ownsConn       bool
	tenant         string
	requestTimeout time.Duration
	prefixes       bool
	answers        *jetstream.Answers
	stopOnLoss     func()
	status         fleetStatus
	stopStatus     func()
	log            *slog.Logger
	warned         atomic.Int64 // when the last warning about a waiting request was logged, in Unix nanoseconds

	ctx   context.Context // context of the goroutines that repair feeds; Close cancels it
	close context.CancelFunc

	mu     sync.Mutex
	feeds  map[string]*feed // by sandbox id
	losses map[int]func()   // called when live messages may have been lost
	nextID int              // the next key of losses
	wg     sync.WaitGroup   // goroutines that repair feeds
}

// Connect connects to NATS. It retries until ctx ends; without a deadline it tries once. It does not check that a
// coordinator is running; [Client.Ping] does. Ending ctx after Connect has returned does not affect the client.
//
// Errors: unavailable; permission_denied for wrong credentials and, with reason client_certificate, for a certificate
// that the server refuses; failed_precondition with reason server_certificate if the server's certificate is not
// trusted, or server_settings if the server offers no TLS although Options requires it; invalid_argument for an invalid
// URL or tenant, options that exclude each other, a file that cannot be read, a Tenant or User that differs from the
// one in Creds, or a negative RequestTimeout.
func Connect(ctx context.Context, o Options) (*Client, error) {
	if err := o.identify(); err != nil {
		return nil, err
	}
	if o.Tenant == "" {
		o.Tenant = protocol.DefaultTenant
	}
	if err := protocol.ValidateID("tenant", o.Tenant); err != nil {
		return nil, err
	}
	if o.User != "" {
		if err := protocol.ValidateUser("user", o.User); err != nil {
			return nil, err
		}
	}
	if o.RequestTimeout < 0 {
		return nil, protocol.Invalid("request_timeout", "must not be negative, got %s", o.RequestTimeout)
	}
	if o.URL == "" {
		o.URL = DefaultURL
	}
	if o.Name == "" {
		o.Name = "boxfleet-sdk"
	}
	if o.RequestTimeout == 0 {
		o.RequestTimeout = defaultRequestTimeout
	}
	c := &Client{conn: o.Conn, tenant: o.Tenant, requestTimeout: o.RequestTimeout, prefixes: o.IDPrefixes,
		feeds: map[string]*feed{}, losses: map[int]func(){}, log: o.Logger}
	if c.log == nil {
		c.log = slog.Default()
	}
	var err error
	if c.conn == nil {
		c.ownsConn = true
		config := jetstream.Config{URL: o.URL, Creds: o.Creds, NKey: o.NKey, TLS: o.TLS, Login: o.login(), Name: o.Name,
			Logger: o.Logger, Tenant: o.Tenant, User: o.User,
			// A connection calls JetStream's API to find out why JetStream does not answer. A user with its own
			// permissions may not call this API.
			WithoutStreams: o.User != ""}
		c.conn, err = jetstream.Connect(ctx, config)
		if err != nil {
			return nil, failed(ctx, err, "connect")
		}
	}
	c.reads, c.writers = c.conn.TenantReads(c.tenant), &writers{ask: c.askWriters}
	if err := c.subscribe(); err != nil {
		c.unsubscribe()
		if c.ownsConn {
			c.conn.Close()
		}
		return nil, failed(ctx, err, "connect")
	}
	return c, nil
}

// login returns a function that returns the token or the user, or nil if Options has neither. A login in the URL stays
// there.
func (o *Options) login() func() (jetstream.Login, error) {
	login := jetstream.Login{User: o.Login, Password: o.Password, PasswordFile: o.PasswordFile, Token: o.Token,
		TokenFile: o.TokenFile}
	if login == (jetstream.Login{}) {
		return nil
	}
	return func() (jetstream.Login, error) { return login, nil }
}

// identify takes the tenant and the user from the credentials. Connecting fails if Options has other names.
func (o *Options) identify() error {
	if o.Creds == "" || o.Conn != nil {
		return nil
	}
	id, ok, err := jetstream.CredentialsIdentity(o.Creds)
	if err != nil || !ok {
		return err
	}
	o.User, o.Tenant = cmp.Or(o.User, id.User()), cmp.Or(o.Tenant, id.Tenant)
	return nil
}

// subscribe opens the subscriptions that stay open as long as the client.
func (c *Client) subscribe() (err error) {
	c.ctx, c.close = context.WithCancel(context.Background())
	if c.answers, err = c.conn.Answers(); err != nil {
		return err
	}
	c.stopOnLoss = c.onLoss(c.mayHaveMissed)
	c.stopStatus, err = c.conn.FollowStatus(func(s *protocol.Status) {
		c.status.update(s)
		if s.Elected {
			c.callLoss()
		}
	})
	return err
}

// unsubscribe undoes subscribe, even if subscribe failed half-way.
func (c *Client) unsubscribe() {
	c.close()
	for _, stop := range []func(){c.stopOnLoss, c.stopStatus} {
		if stop != nil {
			stop()
		}
	}
	if c.answers != nil {
		c.answers.Close()
	}
}

// Close ends the client's subscriptions and closes its connection, unless [Options.Conn] provided the connection. Calls
// that are still waiting return an error when their own context ends. Sandboxes and execs are not affected.
func (c *Client) Close() {
	c.unsubscribe()
	c.mu.Lock()
	for _, f := range c.feeds {
		f.unsubscribe()
		// A repair starts only under f.mu, and none starts after unsubscribe. wg.Wait below therefore waits for all
		// repairs. The field closed ends the rechecks.
		f.mu.Lock()
		f.closed = true
		f.mu.Unlock()
	}
	c.feeds = map[string]*feed{}
	c.mu.Unlock()
	if c.ownsConn {
		c.conn.Close()
	}
	c.wg.Wait()
}

// Tenant returns the tenant that the client works for.
func (c *Client) Tenant() string { return c.tenant }

// Ping asks one coordinator for its name and for the state of the deployment. Ping does not retry. Errors: unavailable
// if no coordinator is running.
func (c *Client) Ping(ctx context.Context) (*Ping, error) {
	reply, err := c.query(ctx, protocol.EndpointPing, protocol.Query{})
	if err != nil {
		return nil, err
	}
	return reply.Ping, nil
}

// nowTimeout bounds how long Now asks the store for its time.
const nowTimeout = time.Second

// Now returns the time by the clock of the store, which also provides the times in handles and events. The clock of
// this machine may differ. If the store does not answer within a second, Now returns this machine's time.
func (c *Client) Now(ctx context.Context) time.Time {
	ctx, cancel := context.WithTimeout(ctx, nowTimeout)
	defer cancel()
	return c.reads.Now(ctx)
}

// Defaults reads the operator's default values for the sandbox specs of this tenant. A field that neither the spec nor
// Defaults sets gets the default of the sandbox's worker: see [Host]. Defaults asks one coordinator and does not retry.
// Errors: unavailable if no coordinator is running.
func (c *Client) Defaults(ctx context.Context) (*SandboxSpec, error) {
	reply, err := c.query(ctx, protocol.EndpointDefaults, protocol.Query{})
	if err != nil {
		return nil, err
	}
	if reply.Defaults == nil {
		return &SandboxSpec{}, nil
	}
	return reply.Defaults, nil
}

// query asks an endpoint of the read service, without retrying.
func (c *Client) query(ctx context.Context, endpoint string, q protocol.Query) (*protocol.Reply, error) {
	reply, err := c.reads.Query(ctx, endpoint, q)
	return reply, failed(ctx, err, "ask for "+endpoint)
}

// history reads the batches of a sandbox after a record.
func (c *Client) history(ctx context.Context, sandbox string, after uint64) ([]*protocol.Batch, error) {
	var batches []*protocol.Batch
	err := c.reads.AfterRecord(ctx, sandbox, after, func(b *protocol.Batch) bool {
		batches = append(batches, b)
		return true
	})
	return batches, err
}

// onLoss calls f when live messages may have been lost for good, until stop is called: after each reconnect, and when
// coordinators report that a stream has a new leader. The old leader may have stored messages without publishing them.
// f must not block. The coordinators' reports can be lost too, so a caller that waits for something also polls now and
// then.
func (c *Client) onLoss(f func()) (stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := c.nextID
	c.nextID++
	c.losses[id] = f
	stopReconnect := c.conn.OnReconnect(f)
	return func() {
		stopReconnect()
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.losses, id)
	}
}

func (c *Client) callLoss() {
	c.mu.Lock()
	calls := slices.Collect(maps.Values(c.losses))
	c.mu.Unlock()
	for _, f := range calls {
		f()
	}
}

// giveUpAfter is how long a call without a deadline waits for a coordinator or a NATS server to answer. It exceeds the
// time that NATS takes to elect a leader.
func (c *Client) giveUpAfter() time.Duration { return RequestTries * c.requestTimeout }

// NewID generates a new unique id: a ULID in lower case, 26 characters.
func NewID() string { return strings.ToLower(ulid.Make().String()) }
