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

// DefaultCallTimeout is the longest that one ordinary change may take.
const DefaultCallTimeout = 30 * time.Second

// Config is what an [Engine] is made of.
type Config struct {
	// Host is the engine's address, such as "unix:///var/run/docker.sock". Empty takes DOCKER_HOST
	// with DOCKER_CERT_PATH and DOCKER_TLS_VERIFY, or the default socket.
	Host string

	// Deployment marks what this engine's caller owns. It must be a valid id.
	Deployment string

	// Fence is asked right before each request that could change something. When it returns an
	// error, nothing is sent and the call returns that error. It must not block. Required; see
	// [Unfenced].
	Fence func() error

	// EmptyLayer empties a directory of the engine's host, where the engine has no descriptors for it: it takes
	// one for each level of what a container made in its own layer. nil: such a container is not removed.
	EmptyLayer func(ctx context.Context, dir string) error

	// CallTimeout bounds a change; reading takes a third of it at most, starting and removing twice
	// as long, stopping its grace besides. 0 is [DefaultCallTimeout].
	CallTimeout time.Duration

	// StallTimeout bounds how long a copy may stand still. 0 is [DefaultStallTimeout].
	StallTimeout time.Duration

	// PullStall bounds how long a pull may go on without progress. 0 is [DefaultPullStall].
	PullStall time.Duration

	// RetryPause is how long to wait before a registry that was not reached is tried once more. 0 is
	// a second.
	RetryPause time.Duration

	// DockerConfig is the directory of the Docker configuration with credentials for registries. ""
	// is DOCKER_CONFIG, or .docker in the user's home.
	DockerConfig string

	// Logger gets the engine's warnings. nil discards them.
	Logger *slog.Logger
}

// Engine is one Docker Engine, seen by one deployment. Its methods may be called at the same time,
// and return errors of type *protocol.Error, or the fence's own.
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
	fence        func() error // asked for every change by the transport
	log          *slog.Logger

	mu    sync.Mutex
	pulls map[string]*pull // running pulls by the names that they give

	imageLabels map[string]bool // by the id of an image, whether it carries labels of Boxfleet's
}

// Connect finds the engine and agrees on an API version. It fails with [ErrEngineUnavailable] when
// the engine does not answer.
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
	err := e.do(ctx, call{verb: "connect to", kind: kindEngine, name: e.client.DaemonHost(), limit: e.readLimit()}, func(ctx context.Context) error {
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

// CheckHost refuses an engine's address that leads nowhere, whatever becomes of the engine; "" is what
// [Config.Host] says. Error: invalid_argument.
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

// dial makes the client with the fence below it. No request is sent yet.
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

// newClient makes a client with the fence below it, and the transport below that.
func newClient(address client.Opt, check func() error) (made *client.Client, transport *http.Transport, err error) {
	fenced := func(c *client.Client) error {
		transport = c.HTTPClient().Transport.(*http.Transport)
		fenceConns(transport)
		if transport.TLSClientConfig != nil {
			// The client derives the scheme from a transport that it can see into.
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

// Address is where the engine is reached, such as "unix:///var/run/docker.sock".
func (e *Engine) Address() string { return e.client.DaemonHost() }

// Close closes idle connections. Calls that run are not ended.
func (e *Engine) Close() {
	e.transport.CloseIdleConnections()
}

// Ping asks whether the engine answers, on a new connection: one that is about to end takes none
// any more, while it still answers on those that it has, and stops its containers.
func (e *Engine) Ping(ctx context.Context) error {
	return e.do(ctx, call{verb: "ping", kind: kindEngine, limit: e.readLimit()}, func(ctx context.Context) error {
		_, err := e.pinger.Ping(ctx)
		return err
	})
}

// Info is what an engine says of itself.
type Info struct {
	Version       string
	APIVersion    string // the one spoken with it
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
	DiskQuota     bool   // the storage driver may be able to bound a container's own layer
	RootDir       string // where images and containers are, on the engine's host
	Rootless      bool
	Seccomp       string // its profile: default, builtin, the path of another, or unconfined; "": it filters nothing
	UserNamespace bool   // it maps the user ids of containers
	MAC           string // apparmor, selinux, or ""
	Runc          string // version, where it says it
	Containerd    string

	// Which limits the host's kernel can enforce. The engine drops the others with a warning.
	CanLimitCPU, CanLimitMemory, CanLimitSwap, CanLimitPIDs bool
}

// Like says whether an engine is as another one, in all that a restart of it can change.
func (i Info) Like(o Info) bool { return reflect.DeepEqual(i, o) }

// mayLimitDisk says whether a storage driver can bound a container's own layer, as far as it says:
// overlay2 can on xfs that is mounted with project quotas, which only a try tells.
func mayLimitDisk(driver string, status [][2]string) bool {
	switch driver {
	case "btrfs", "zfs", "devicemapper":
		return true
	case "overlay2":
		return slices.Contains(status, [2]string{"Backing Filesystem", "xfs"})
	}
	return false
}

// readSecurity reads what an engine says as name=seccomp,profile=default.
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

// Info asks the engine what it is.
func (e *Engine) Info(ctx context.Context) (Info, error) {
	var info Info
	err := e.do(ctx, call{verb: "ask", kind: kindEngine, limit: e.readLimit()}, func(ctx context.Context) error {
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
