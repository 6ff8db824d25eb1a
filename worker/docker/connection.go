package docker

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/docker/docker/api/types/versions"
	"github.com/docker/docker/client"

	"github.com/boxfleet/boxfleet/protocol"
)

// connection is shared by all parts of an [Engine]. It has the deadlines and the Docker clients. All requests of the
// clients pass the fence. The parts make every call through connection.do.
type connection struct {
	client      *client.Client
	transport   *http.Transport
	pinger      *client.Client // dials a new connection for each request
	deployment  string
	callTimeout time.Duration
	fence       func() error // the transport calls fence before every change
	log         *slog.Logger
}

// newConnection creates the Docker clients. It sends no request.
func newConnection(cfg Config) (*connection, error) {
	conn := &connection{
		deployment:  cfg.Deployment,
		callTimeout: cmp.Or(cfg.CallTimeout, DefaultCallTimeout),
		fence:       cfg.Fence,
		log:         cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)),
	}
	return conn, conn.dial(cfg)
}

// oldestAPI is the API version of Docker Engine 20.10, the oldest that Boxfleet is tested with.
const oldestAPI = "1.41"

// negotiate checks that the engine answers, and agrees with the engine on the API version. Error: failed_precondition
// with reason unsupported if the engine is older than 20.10.
func (conn *connection) negotiate(ctx context.Context) error {
	c := call{verb: "connect to", kind: kindEngine, name: conn.Address(), limit: conn.readLimit()}
	err := conn.do(ctx, c, func(ctx context.Context) error {
		ping, err := conn.client.Ping(ctx)
		if err == nil {
			conn.client.NegotiateAPIVersionPing(ping)
		}
		return err
	})
	if v := conn.client.ClientVersion(); err == nil && versions.LessThan(v, oldestAPI) {
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonUnsupported,
			"the engine at %s speaks API version %s, older than %s: install Docker Engine 20.10 or newer",
			conn.Address(), v, oldestAPI)
	}
	return err
}

// dial creates the Docker clients, with the fence as their transport. It sends no request.
func (conn *connection) dial(cfg Config) error {
	address := client.WithHost(cfg.Host)
	if cfg.Host == "" {
		address = func(c *client.Client) error {
			if err := client.WithTLSClientConfigFromEnv()(c); err != nil {
				return err
			}
			return client.WithHostFromEnv()(c)
		}
	}
	var err error
	if conn.client, conn.transport, err = newClient(address, cfg.Fence); err != nil {
		return err
	}
	conn.transport.MaxIdleConnsPerHost = 16
	conn.transport.MaxIdleConns = 16
	pinging := (*http.Transport)(nil)
	conn.pinger, pinging, err = newClient(address, cfg.Fence)
	if err == nil {
		pinging.DisableKeepAlives = true
	}
	return err
}

// newClient returns a client whose requests pass the fence, and the HTTP transport behind the fence.
func newClient(address client.Opt, check func() error) (made *client.Client, transport *http.Transport, err error) {
	fenced := func(c *client.Client) error {
		transport = c.HTTPClient().Transport.(*http.Transport)
		fenceConns(transport)
		if transport.TLSClientConfig != nil {
			// The Docker client would derive the scheme from its transport, but the fence hides the TLS transport.
			if err := client.WithScheme("https")(c); err != nil {
				return err
			}
		}
		return client.WithHTTPClient(&http.Client{
			Transport:     &fence{check: check, next: transport},
			CheckRedirect: client.CheckRedirect,
		})(c)
	}
	made, err = client.NewClientWithOpts(address, fenced, client.WithAPIVersionNegotiation())
	return made, transport, err
}

// Address returns the engine's address, such as "unix:///var/run/docker.sock".
func (conn *connection) Address() string { return conn.client.DaemonHost() }

// Close closes idle connections. It does not end running calls.
func (conn *connection) Close() {
	conn.transport.CloseIdleConnections()
}

// Ping checks that the engine answers on a new connection. While an engine shuts down and stops its containers, it
// accepts no new connections, but still answers on existing ones.
func (conn *connection) Ping(ctx context.Context) error {
	return conn.do(ctx, call{verb: "ping", kind: kindEngine, limit: conn.readLimit()}, func(ctx context.Context) error {
		_, err := conn.pinger.Ping(ctx)
		return err
	})
}

// warn logs the engine's warnings about settings that it ignored or changed.
func (conn *connection) warn(ctx context.Context, kind, name string, warnings ...string) {
	for _, w := range warnings {
		if w != "" {
			conn.log.WarnContext(ctx, "the Docker engine ignored or changed a setting of an object", "kind", kind,
				"name", name, "warning", w)
		}
	}
}
