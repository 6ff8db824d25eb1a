package docker

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
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

	// Deployment labels the objects of this engine's caller. It must be a valid id.
	Deployment string

	// Fence is called right before each request that could change something. If it returns an error, nothing is sent and
	// the call returns that error. It must not block. Required; see [Unfenced].
	Fence func() error

	// EmptyLayer empties a directory of the engine's host that is too deep for the engine: removing a container, the
	// engine needs one file descriptor for each level of directories in its layer. nil: such a container is not removed.
	EmptyLayer func(ctx context.Context, dir string) error

	// CallTimeout is the maximum duration of a change. Reading may take a third of that, starting and removing twice as
	// long, and stopping the grace period in addition. 0 means [DefaultCallTimeout].
	CallTimeout time.Duration

	// StallTimeout is how long a copy may make no progress. 0 means [DefaultStallTimeout].
	StallTimeout time.Duration

	// PullStall is how long a pull may make no progress. 0 means [DefaultPullStall].
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
// errors of type *protocol.Error, or the fence's own.
type Engine struct {
	client       *client.Client
	transport    *http.Transport
	pinger       *client.Client // a new connection for each request
	deployment   string
	emptyLayer   func(ctx context.Context, dir string) error
	callTimeout  time.Duration
	stallTimeout time.Duration
	pullStall    time.Duration
	retryPause   time.Duration
	dockerConfig string
	fence        func() error // called by the transport before every change
	log          *slog.Logger

	mu    sync.Mutex
	pulls map[string]*pull // running pulls by the name that the image gets

	imageLabels map[string]bool // by image id: whether the image has Boxfleet labels
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
	e := &Engine{
		deployment:   cfg.Deployment,
		emptyLayer:   cfg.EmptyLayer,
		callTimeout:  cmp.Or(cfg.CallTimeout, DefaultCallTimeout),
		stallTimeout: cmp.Or(cfg.StallTimeout, DefaultStallTimeout),
		pullStall:    cmp.Or(cfg.PullStall, DefaultPullStall),
		retryPause:   cmp.Or(cfg.RetryPause, defaultRetryPause),
		dockerConfig: cfg.DockerConfig,
		fence:        cfg.Fence,
		log:          cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)),
		pulls:        map[string]*pull{},
		imageLabels:  map[string]bool{},
	}
	if err := e.dial(cfg); err != nil {
		return nil, protocol.Invalid("host", "%v", err)
	}
	err := e.do(ctx, call{verb: "connect to", kind: kindEngine, name: e.client.DaemonHost(), limit: e.readLimit()},
		func(ctx context.Context) error {
			ping, err := e.client.Ping(ctx)
			if err == nil {
				e.client.NegotiateAPIVersionPing(ping)
			}
			return err
		})
	if err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// CheckHost refuses an engine's address that can never work, without connecting; "" means the same as in [Config.Host].
// Error: invalid_argument.
func CheckHost(host string) error {
	e := &Engine{}
	if err := e.dial(Config{Host: host, Fence: Unfenced}); err != nil {
		return protocol.Invalid("engine", "%v", err)
	}
	defer e.Close()
	u, err := client.ParseHostURL(e.Address())
	if err != nil {
		return protocol.Invalid("engine", "%v", err)
	}
	switch u.Scheme {
	case "unix", "tcp", "http", "https":
		return nil
	}
	return protocol.Invalid("engine", "want unix://, tcp://, http:// or https:// in %.200q", e.Address())
}

// dial makes the clients with the fence below them. It sends no request.
func (e *Engine) dial(cfg Config) error {
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
	if e.client, e.transport, err = newClient(address, cfg.Fence); err != nil {
		return err
	}
	e.transport.MaxIdleConnsPerHost = 16
	e.transport.MaxIdleConns = 16
	pinging := (*http.Transport)(nil)
	e.pinger, pinging, err = newClient(address, cfg.Fence)
	if err == nil {
		pinging.DisableKeepAlives = true
	}
	return err
}

// newClient returns a client with the fence below it, and the transport below the fence.
func newClient(address client.Opt, check func() error) (made *client.Client, transport *http.Transport, err error) {
	fenced := func(c *client.Client) error {
		transport = c.HTTPClient().Transport.(*http.Transport)
		fenceConns(transport)
		if transport.TLSClientConfig != nil {
			// The client derives the scheme from its transport, which the fence hides.
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
func (e *Engine) Address() string { return e.client.DaemonHost() }

// Close closes idle connections. It does not end running calls.
func (e *Engine) Close() {
	e.transport.CloseIdleConnections()
}

// Ping checks that the engine answers on a new connection. An engine that is shutting down, and stopping its
// containers, accepts no new connections but still answers on existing ones.
func (e *Engine) Ping(ctx context.Context) error {
	return e.do(ctx, call{verb: "ping", kind: kindEngine, limit: e.readLimit()}, func(ctx context.Context) error {
		_, err := e.pinger.Ping(ctx)
		return err
	})
}

// Info describes an engine.
type Info struct {
	Version       string
	APIVersion    string // negotiated with the engine
	Name          string // the host's name
	Runtime       string // the default OCI runtime, such as "runc" or "runsc"
	Runtimes      []string
	CPUs          int
	Memory        int64 // bytes
	Kernel        string
	OS            string
	Architecture  string
	CgroupVersion string // "1" or "2"
	StorageDriver string
	DiskQuota     bool   // the storage driver may be able to limit a container's own layer
	RootDir       string // directory of images and containers on the engine's host
	Rootless      bool
	Seccomp       string // profile: default, builtin, a path, or unconfined; "": no filter
	UserNamespace bool   // the engine maps the user ids of containers
	MAC           string // apparmor, selinux, or ""
	Runc          string // version, "" if the engine does not say
	Containerd    string

	// Limits that the host's kernel can enforce. The engine ignores the others with a warning.
	CanLimitCPU, CanLimitMemory, CanLimitSwap, CanLimitPIDs bool
}

// Like reports whether two descriptions are the same in everything that a restart of the engine can change.
func (i Info) Like(o Info) bool { return reflect.DeepEqual(i, o) }

// mayLimitDisk reports whether a storage driver may be able to limit a container's own layer. overlay2 can do so on xfs
// mounted with project quotas, which only an attempt shows.
func mayLimitDisk(driver string, status [][2]string) bool {
	switch driver {
	case "btrfs", "zfs", "devicemapper":
		return true
	case "overlay2":
		return slices.Contains(status, [2]string{"Backing Filesystem", "xfs"})
	}
	return false
}

// readSecurity parses security options such as name=seccomp,profile=default.
func (i *Info) readSecurity(options []string) {
	for _, option := range options {
		name, rest, _ := strings.Cut(strings.TrimPrefix(option, "name="), ",")
		switch name {
		case "seccomp":
			i.Seccomp = cmp.Or(strings.TrimPrefix(rest, "profile="), "default")
		case "apparmor", "selinux":
			i.MAC = name
		case "userns":
			i.UserNamespace = true
		case "rootless":
			i.Rootless = true
		}
	}
}

// Info reads the engine's description.
func (e *Engine) Info(ctx context.Context) (Info, error) {
	var info Info
	err := e.do(ctx, call{verb: "query", kind: kindEngine, limit: e.readLimit()}, func(ctx context.Context) error {
		got, err := e.client.Info(ctx)
		if err != nil {
			return err
		}
		info = Info{
			Version: got.ServerVersion, APIVersion: e.client.ClientVersion(), Name: got.Name,
			Runtime: got.DefaultRuntime, CPUs: got.NCPU, Memory: got.MemTotal,
			Kernel: got.KernelVersion, OS: got.OperatingSystem, Architecture: got.Architecture,
			CgroupVersion: got.CgroupVersion, StorageDriver: got.Driver, RootDir: got.DockerRootDir,
			CanLimitCPU: got.CPUCfsQuota, CanLimitMemory: got.MemoryLimit,
			CanLimitSwap: got.SwapLimit, CanLimitPIDs: got.PidsLimit,
		}
		for name := range got.Runtimes {
			info.Runtimes = append(info.Runtimes, name)
		}
		slices.Sort(info.Runtimes)
		info.DiskQuota = mayLimitDisk(got.Driver, got.DriverStatus)
		info.readSecurity(got.SecurityOptions)
		made, err := e.client.ServerVersion(ctx)
		for _, c := range made.Components {
			switch c.Name {
			case "runc":
				info.Runc = c.Version
			case "containerd":
				info.Containerd = c.Version
			}
		}
		return err
	})
	return info, err
}
