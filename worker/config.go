package worker

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/seldom"
	"github.com/boxfleet/boxfleet/worker/abilities"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/images"
	"github.com/boxfleet/boxfleet/worker/network"
	"github.com/boxfleet/boxfleet/worker/output"
	"github.com/boxfleet/boxfleet/worker/watermark"
)

// Images configures how a worker treats images.
type Images = images.Config

// Watermarks are limits. A host that has reached one of them takes no new sandboxes.
type Watermarks = watermark.Limits

// Config configures a worker.
type Config struct {
	Conn          *jetstream.Conn // required; the caller closes it
	Name          string          // the worker's id, unique in the deployment; required
	Build         string          // version, shown in the table of hosts
	StateDir      string          // contains the directories of sandboxes; absolute; required
	Hidden        []string        // further absolute paths that no sandbox may mount, like StateDir and the engine's
	Engine        string          // address of the Docker Engine; default: DOCKER_HOST, or the local socket
	Supervisor    string          // path of the boxfleet-supervisor binary; required
	Slots         int             // maximum number of sandboxes; default 100
	CPU           float64         // cores to offer; default: all cores of the host
	Memory        protocol.Bytes  // memory to offer; default: nine tenths of the host's memory
	Labels        map[string]string
	AllowMounts   []string     // directories that may be mounted, PATH[:ro] read-only or PATH:rw; default none
	Profiles      []string     // capability profiles that sandboxes may choose; default hardened only
	Runtimes      []string     // OCI runtimes that sandboxes may choose; default none: only the engine's default runtime
	Firewall      string       // "required" (default): no sandbox runs without firewall rules; or "off"
	DenyNetworks  []string     // IPv4 ranges that no sandbox reaches, even if its spec allows them; default none
	AllowNetworks []string     // private IPv4 ranges that specs may allow; default none
	Connections   int          // maximum number of open connections of a sandbox to other networks; default 2048
	PIDs          int64        // maximum processes and threads that a spec may give a container; default 16384
	Ports         string       // loopback ports that sandboxes may publish, FIRST-LAST; default DefaultPorts
	DNS           []string     // name servers of sandboxes; default: the name servers of the engine's host
	Tools         []string     // built-in tools that are offered to sandboxes, or "all"; default none
	ToolsHome     string       // home directory with the tools' files; absolute; required with Tools
	SSHAgent      string       // socket of the ssh agent that the tool git offers; "": no agent
	NetworkPool   string       // IPv4 prefix for sandboxes' networks; default 10.201.0.0/16
	Ephemeral     bool         // for temporary deployments: removes the host's id from the engine when Run ends
	ReapDryRun    bool         // only reports leftovers of ended sandboxes and orphaned bridges; removes nothing
	OnReady       func()       // called once, when the worker takes sandboxes; may be nil
	Logger        *slog.Logger // default slog.Default

	// OnHost is called with the id of the Docker host whenever the worker has learned it, before the worker uses a
	// right that is limited to that host. OnHost can give Conn the credentials of the host and make it reconnect. If
	// OnHost returns unavailable, Run tries again; any other error ends Run. OnHost may be nil.
	OnHost func(ctx context.Context, host string) error

	ServiceProfiles []string // capability profiles that services may choose; default hardened and standard

	// Defaults has values for the fields that the spec of a sandbox on this host does not set. Only fields of
	// protocol.WorkerDefaults may be set. May be nil.
	Defaults *protocol.SandboxSpec

	Watermarks Watermarks // limits of disk, memory and processes at which the host takes no new sandboxes
	Images     Images     // how the worker treats the images on the host

	// When the worker's or the engine's disk has less than DiskLow free, the worker stops the sandbox that fills the
	// disk. DiskReserve is held back on the worker's own disk for the worker's records. A DiskLow of 0 means a tenth of
	// the disk, but at most 2 GiB. A DiskReserve of 0 means a fiftieth, but at most 32 MiB.
	DiskLow, DiskReserve protocol.Bytes

	// A sandbox fails if its command exits again and again for CrashWindow (default 5 min), and no run lasts for
	// CrashGuard (default 30 s) during that time.
	CrashWindow, CrashGuard time.Duration

	// The worker appends an exec's last event after it has stored the exec's output. It gives up the rest of the output
	// if the log has stored nothing for OutputPatience, or when OutputWithin has passed since the end of the exec's
	// timeout and grace. Both times default to 30 s.
	OutputPatience, OutputWithin time.Duration

	// A sandbox may publish OutputBurst of output (default 256 MiB) as fast as the log takes it. After that it may
	// publish OutputRate each second (default 8 MiB, at least 1).
	OutputBurst, OutputRate protocol.Bytes

	Reconcile time.Duration // the time between two inspections of everything on the host; default 15 s

	// OnState is called when the worker's state changes, and once a second. The parameter healthy is true if the worker
	// can do its work; the parameter text says what the worker does or waits for. OnState must not block, and may be
	// nil.
	OnState func(healthy bool, text string)

	// OnTurn is called at each turn of a main loop of the worker. The loop turns again within the time next, even while
	// NATS or the engine does not answer. A loop that does not turn again within that time is stuck. A time of 0 means
	// that the loop has ended. OnTurn must not block, and may be nil.
	OnTurn func(loop string, next time.Duration)

	// Probe is called at named points, for tests that crash the worker there. It may be nil.
	Probe func(point string)
}

// DefaultNetworkPool is the default of Config.NetworkPool.
const DefaultNetworkPool = "10.201.0.0/16"

// Limits on one sandbox's use of resources that all sandboxes of the machine share.
const (
	DefaultConnections = 2048
	DefaultMostPIDs    = abilities.DefaultMostPIDs

	leastConnections = 64
)

// DefaultPorts is the default of Config.Ports. These ports are below the ports that kernels use for outgoing
// connections, and above the ports of most services on a host.
const DefaultPorts = "20000-32767"

// Check returns the error that [Run] would return for a wrong setting. Check uses neither NATS nor the engine, so Run
// may still refuse a setting that Check accepts. Conn need not be set. Error: invalid_argument.
func (c Config) Check() error { return c.check() }

// check sets the defaults, and validates the configuration.
func (c *Config) check() error {
	c.setDefaults()
	if err := protocol.ValidateID("name", c.Name); err != nil {
		return err
	}
	if !filepath.IsAbs(c.StateDir) {
		return protocol.Invalid("state_dir", "must be an absolute path, got %.80q", c.StateDir)
	}
	if info, err := os.Stat(c.Supervisor); err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return protocol.Invalid("supervisor", "must be an executable file, got %.200q", c.Supervisor)
	}
	if err := docker.CheckHost(c.Engine); err != nil {
		return err
	}
	switch {
	case c.DiskLow < 0 || c.DiskReserve < 0:
		return protocol.Invalid("disk_low, disk_reserve", "must not be negative")
	case c.Slots < 0 || c.CPU < 0 || c.Memory < 0:
		return protocol.Invalid("slots, cpu, memory", "must not be negative")
	case c.OutputBurst < 0 || c.OutputRate < 0:
		return protocol.Invalid("output_burst, output_rate", "must not be negative")
	case c.Connections < leastConnections:
		return protocol.Invalid("connections", "must be at least %d, got %d", leastConnections, c.Connections)
	case c.PIDs < protocol.DefaultPIDs || c.PIDs > protocol.MaxPIDs:
		return protocol.Invalid("pids", "must be between %d, the default of specs, and %d, got %d",
			protocol.DefaultPIDs, protocol.MaxPIDs, c.PIDs)
	}
	if err := protocol.ValidateHostLabels("labels", c.Labels); err != nil {
		return err
	}
	if err := c.Images.Check(); err != nil {
		return err
	}
	if err := c.Watermarks.Check(); err != nil {
		return err
	}
	if _, err := network.NewSubnets(c.NetworkPool); err != nil {
		return err
	}
	_, err := protocol.ParsePortRange("ports", c.Ports)
	return err
}

func (c *Config) setDefaults() {
	c.Slots = cmp.Or(c.Slots, 100)
	c.CrashWindow = cmp.Or(c.CrashWindow, 5*time.Minute)
	c.CrashGuard = cmp.Or(c.CrashGuard, 30*time.Second)
	c.OutputPatience = cmp.Or(c.OutputPatience, 30*time.Second)
	c.OutputWithin = cmp.Or(c.OutputWithin, 30*time.Second)
	c.OutputBurst = cmp.Or(c.OutputBurst, output.DefaultBurst)
	c.OutputRate = cmp.Or(c.OutputRate, output.DefaultRate)
	c.Reconcile = cmp.Or(c.Reconcile, 15*time.Second)
	c.NetworkPool = cmp.Or(c.NetworkPool, DefaultNetworkPool)
	c.Connections = cmp.Or(c.Connections, DefaultConnections)
	c.PIDs = cmp.Or(c.PIDs, DefaultMostPIDs)
	c.Ports = cmp.Or(c.Ports, DefaultPorts)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Logger = seldom.Logger(c.Logger)
	if c.Probe == nil {
		c.Probe = func(string) {}
	}
	if c.OnState == nil {
		c.OnState = func(bool, string) {}
	}
	if c.OnTurn == nil {
		c.OnTurn = func(string, time.Duration) {}
	}
}
