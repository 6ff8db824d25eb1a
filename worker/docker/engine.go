package docker

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/docker/docker/client"

	"github.com/boxfleet/boxfleet/protocol"
)

// DefaultCallTimeout is the default maximum duration of one ordinary change.
const DefaultCallTimeout = 30 * time.Second

// Config configures an [Engine].
type Config struct {
	// Host is the engine's address, such as "unix:///var/run/docker.sock". "" means DOCKER_HOST with DOCKER_CERT_PATH and
	// DOCKER_TLS_VERIFY, or the default socket.
	Host string

	// Deployment is the deployment whose containers and networks the Engine creates, labels and lists. It must be a
	// valid id.
	Deployment string

	// Fence is called right before each request that could change something. If Fence returns an error, the request is
	// not sent and the call returns that error. Fence must not block. Required; see [Unfenced].
	Fence func() error

	// EmptyLayer empties a directory of the engine's host. It is called for a container's layer that is too deep for the
	// engine to remove: the engine needs one file descriptor for each level of nested directories. If EmptyLayer is nil,
	// the removal of such a container fails.
	EmptyLayer func(ctx context.Context, dir string) error

	// CallTimeout is the maximum duration of a change. A read may take a third of CallTimeout, starting and removing a
	// container twice CallTimeout, and stopping a container twice CallTimeout plus the grace period. 0 means
	// [DefaultCallTimeout].
	CallTimeout time.Duration

	// StallTimeout limits how long a copy may make no progress. 0 means [DefaultStallTimeout].
	StallTimeout time.Duration

	// PullStall limits how long a pull may make no progress. 0 means [DefaultPullStall].
	PullStall time.Duration

	// RetryPause is the pause before the first retry of an unreachable registry. 0 means a second.
	RetryPause time.Duration

	// DockerConfig is the directory of the Docker configuration with credentials for registries. "" means DOCKER_CONFIG,
	// or .docker in the user's home.
	DockerConfig string

	// Logger gets the engine's warnings. nil discards them.
	Logger *slog.Logger
}

// Engine is the client of one Docker Engine for one deployment. Its methods may be called concurrently. They return
// errors of type *protocol.Error, or the fence's own error. Each part implements the methods for one kind of object.
type Engine struct {
	*connection
	containers
	images
	pulls
	networks
	hostMark
	eventStreams
}

// Connect connects to the engine and negotiates the API version. It fails with [ErrEngineUnavailable] if the engine
// does not answer.
func Connect(ctx context.Context, cfg Config) (*Engine, error) {
	if err := protocol.ValidateID("deployment", cfg.Deployment); err != nil {
		return nil, err
	}
	if cfg.Fence == nil {
		return nil, protocol.Invalid("fence", "must be set")
	}
	if cfg.CallTimeout < 0 || cfg.StallTimeout < 0 || cfg.PullStall < 0 || cfg.RetryPause < 0 {
		return nil, protocol.Invalid("call_timeout", "timeouts must not be negative")
	}
	conn, err := newConnection(cfg)
	if err != nil {
		return nil, protocol.Invalid("host", "%v", err)
	}
	if err := conn.negotiate(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return newEngine(conn, cfg), nil
}

// newEngine creates the parts of an Engine, which share one connection.
func newEngine(conn *connection, cfg Config) *Engine {
	pullStall := cmp.Or(cfg.PullStall, DefaultPullStall)
	e := &Engine{
		connection: conn,
		containers: containers{
			connection:   conn,
			imageLabels:  &imageLabels{connection: conn, known: map[string]bool{}},
			emptyLayer:   cfg.EmptyLayer,
			stallTimeout: cmp.Or(cfg.StallTimeout, DefaultStallTimeout),
		},
		images:       images{connection: conn, pullStall: pullStall},
		networks:     networks{connection: conn},
		hostMark:     hostMark{connection: conn},
		eventStreams: eventStreams{connection: conn},
	}
	e.pulls = pulls{
		connection:   conn,
		images:       &e.images,
		pullStall:    pullStall,
		retryPause:   cmp.Or(cfg.RetryPause, defaultRetryPause),
		dockerConfig: cfg.DockerConfig,
		running:      map[string]*pull{},
	}
	return e
}

// CheckHost refuses an engine's address that can never work. It does not connect. The address has the form of
// [Config.Host]. Error: invalid_argument.
func CheckHost(host string) error {
	conn, err := newConnection(Config{Host: host, Fence: Unfenced})
	if err != nil {
		return protocol.Invalid("engine", "%v", err)
	}
	defer conn.Close()
	u, err := client.ParseHostURL(conn.Address())
	if err != nil {
		return protocol.Invalid("engine", "%v", err)
	}
	switch u.Scheme {
	case "unix", "tcp", "http", "https":
		return nil
	}
	return protocol.Invalid("engine", "must begin with unix://, tcp://, http:// or https://, got %.200q", conn.Address())
}
