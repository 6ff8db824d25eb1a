package sdk

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// DefaultURL is where a client looks for NATS when it is told nothing else.
const DefaultURL = "nats://127.0.0.1:4222"

// Options says how a client reaches the fleet. The zero value means a fleet of `boxfleet up` on
// this machine without a token.
type Options struct {
	URL    string // of NATS; several, comma separated, for a cluster; default [DefaultURL]
	Token  string // where the server wants one
	Creds  string // path of a NATS credentials file, where the server wants one
	Tenant string // default [protocol.DefaultTenant]
	Name   string // of the connection, shown by the NATS server; default "boxfleet-sdk"

	// RequestTimeout is how long an answer to a request is waited for before the request is sent
	// again with the same id, which is harmless; default 10 s. Each time it is waited for twice as
	// long, up to 2 min, since the request itself is stored. Calls that only wait for the
	// acceptance give up after [RequestTries] times that when their context has no deadline.
	RequestTimeout time.Duration

	// IDPrefixes has handles also be made from the beginning of a generated id, of [protocol.MinPrefix] characters or
	// more, if only one sandbox has an id that begins so. It is for people who type ids.
	IDPrefixes bool

	Conn   *jetstream.Conn // an open connection to use instead; Close leaves it open
	Logger *slog.Logger    // of the connection's changes, and of requests that wait; default slog.Default
}

// RequestTries times the request timeout is how long an answer is waited for without a deadline.
const RequestTries = 3

// Client drives a fleet. Its methods may be called at once from many goroutines. It reconnects by
// itself, for ever.
type Client struct {
	conn           *jetstream.Conn
	ownsConn       bool
	tenant         string
	requestTimeout time.Duration
	prefixes       bool
	answers        *jetstream.Answers
	stopOnLoss     func()
	status         status
	stopStatus     func()
	log            *slog.Logger
	complained     atomic.Int64 // when it was last said that a request waits

	ctx   context.Context // of the repairs of feeds; ended by Close
	close context.CancelFunc

	mu    sync.Mutex
	feeds map[string]*feed
	wg    sync.WaitGroup // repairs
}

// Connect connects to NATS, waiting at most until ctx ends; with no deadline it tries once. It
// does not ask whether a coordinator runs: [Client.Ping] does. Errors: unavailable;
// permission_denied for wrong credentials; invalid_argument for a tenant that is no id.
func Connect(ctx context.Context, o Options) (*Client, error) {
	if o.Tenant == "" {
		o.Tenant = protocol.DefaultTenant
	}
	if err := protocol.ValidateID("tenant", o.Tenant); err != nil {
		return nil, err
	}
	if o.URL == "" {
		o.URL = DefaultURL
	}
	if o.Name == "" {
		o.Name = "boxfleet-sdk"
	}
	if o.RequestTimeout == 0 {
		o.RequestTimeout = 10 * time.Second
	}
	c := &Client{conn: o.Conn, tenant: o.Tenant, requestTimeout: o.RequestTimeout, prefixes: o.IDPrefixes, feeds: map[string]*feed{}, log: o.Logger}
	if c.log == nil {
		c.log = slog.Default()
	}
	var err error
	if c.conn == nil {
		c.ownsConn = true
		c.conn, err = jetstream.Connect(ctx, jetstream.Config{URL: o.URL, Token: o.Token, Creds: o.Creds, Name: o.Name, Logger: o.Logger})
		if err != nil {
			return nil, failed(ctx, err, "connect")
		}
	}
	if err := c.listen(); err != nil {
		c.unlisten()
		if c.ownsConn {
			c.conn.Close()
		}
		return nil, failed(ctx, err, "connect")
	}
	return c, nil
}

// listen opens what the client hears of by itself.
func (c *Client) listen() (err error) {
	c.ctx, c.close = context.WithCancel(context.Background())
	if c.answers, err = c.conn.Answers(); err != nil {
		return err
	}
	if c.stopStatus, err = c.conn.HearStatus(c.status.hear); err != nil {
		return err
	}
	c.stopOnLoss, err = c.conn.OnLoss(c.mayHaveMissed)
	return err
}

// unlisten ends what listen opened, as far as it came.
func (c *Client) unlisten() {
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

// Close ends the client's subscriptions and its connection, unless that was given to it. Calls
// that are still waiting end with an error when their context does.
func (c *Client) Close() {
	c.unlisten()
	c.mu.Lock()
	for _, f := range c.feeds {
		f.unsubscribe()
		f.mu.Lock() // a repair that has begun is waited for; no other begins
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

// Tenant is the tenant that the client works for.
func (c *Client) Tenant() string { return c.tenant }

// Ping asks who is there: which coordinator answered, and what the deployment promises. Errors:
// unavailable where no coordinator runs.
func (c *Client) Ping(ctx context.Context) (*protocol.Ping, error) {
	reply, err := c.Query(ctx, protocol.EndpointPing, protocol.Query{})
	if err != nil {
		return nil, err
	}
	return reply.Ping, nil
}

// nowWithin bounds how long the store is asked for its time.
const nowWithin = time.Second

// Now returns the time of the store, which is that of all times in handles and events: this machine's clock
// may be set otherwise. The store is asked once, for at most a second; where it does not answer, the time is
// this machine's.
func (c *Client) Now(ctx context.Context) time.Time {
	ctx, cancel := context.WithTimeout(ctx, nowWithin)
	defer cancel()
	_ = c.conn.Open(ctx) // which tells the time; without an answer it is this machine's
	return c.conn.Now()
}

// Hosts lists the hosts of the fleet, as a coordinator sees them now.
func (c *Client) Hosts(ctx context.Context) ([]*protocol.Host, error) {
	var hosts []*protocol.Host
	for q := (protocol.Query{}); ; {
		reply, err := c.Query(ctx, protocol.EndpointHosts, q)
		if err != nil {
			return nil, err
		}
		hosts = append(hosts, reply.Hosts...)
		if q.Page = reply.Next; q.Page == "" {
			return hosts, nil
		}
	}
}

// Defaults reads what lies below the specs of this tenant's creates, as the operator configured it
// for the coordinator that answers. Those of the worker that a sandbox is placed on lie below them;
// each of [Client.Hosts] has its own.
func (c *Client) Defaults(ctx context.Context) (*protocol.SandboxSpec, error) {
	reply, err := c.Query(ctx, protocol.EndpointDefaults, protocol.Query{})
	if err != nil {
		return nil, err
	}
	if reply.Defaults == nil {
		return &protocol.SandboxSpec{}, nil
	}
	return reply.Defaults, nil
}

// NewID makes an id that nobody has used: a ULID in lower case.
func NewID() string { return strings.ToLower(ulid.Make().String()) }
