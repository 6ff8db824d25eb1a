package worker

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/seldom"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/wake"
	"github.com/boxfleet/boxfleet/worker/abilities"
	"github.com/boxfleet/boxfleet/worker/disk"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/hostdir"
	"github.com/boxfleet/boxfleet/worker/hosterr"
	"github.com/boxfleet/boxfleet/worker/hostfiles"
	"github.com/boxfleet/boxfleet/worker/images"
	"github.com/boxfleet/boxfleet/worker/network"
	"github.com/boxfleet/boxfleet/worker/output"
	"github.com/boxfleet/boxfleet/worker/removal"
)

// Config says how a worker works.
type Config struct {
	Conn          *jetstream.Conn // required; the caller closes it
	Name          string          // of this worker, an id, unique in the deployment; required
	Build         string          // version, shown in the table of hosts
	StateDir      string          // directories of sandboxes; absolute; required
	Hidden        []string        // absolute paths that no sandbox may see either
	Engine        string          // address of the Docker Engine; default: DOCKER_HOST, or the local socket
	Supervisor    string          // path of the boxfleet-supervisor binary; required
	Slots         int             // sandboxes at most; default 100
	CPU           float64         // cores to offer; default: the host's
	Memory        protocol.Bytes  // to offer; default: nine tenths of the host's
	Labels        map[string]string
	AllowMounts   []string     // directories of the host that may be mounted, PATH[:ro] read-only or PATH:rw; default none
	Profiles      []string     // capability profiles that sandboxes may choose; default hardened only
	Runtimes      []string     // OCI runtimes that sandboxes may choose; default none, they get the engine's
	Firewall      string       // required (default): no sandbox without rules around its network; or off
	DenyNetworks  []string     // IPv4 ranges that no sandbox reaches, whatever it is allowed; default none
	AllowNetworks []string     // private IPv4 ranges that specs may allow; default none
	Connections   int          // that the containers of one sandbox may have beyond their network at a time; default 2048
	PIDs          int64        // processes and threads that a spec may give one container; default 16384
	Ports         string       // of the host's loopback that sandboxes may publish, FIRST-LAST; default DefaultPorts
	DNS           []string     // name servers of sandboxes; default: those of the engine's host
	Tools         []string     // builtin tools that are offered to sandboxes, or "all"; default none
	ToolsHome     string       // home directory whose files those are; absolute where there are any
	SSHAgent      string       // socket of the ssh agent that the tool git offers; "": none
	NetworkPool   string       // IPv4 prefix that sandboxes' networks come from; default 10.201.0.0/16
	Ephemeral     bool         // remove the engine's mark at the end: for a deployment that does not come back
	ReapDryRun    bool         // report what the log says is over, and bridges without a network, and remove nothing of it
	OnReady       func()       // called once, when work is taken; may be nil
	Logger        *slog.Logger // default slog.Default

	ServiceProfiles []string // capability profiles that services may choose; default hardened and standard

	// Defaults lies below the specs of the sandboxes here; of the fields in protocol.WorkerDefaults. May
	// be nil.
	Defaults *protocol.SandboxSpec

	Watermarks Watermarks // how full the host may be and still take sandboxes
	Images     Images     // what becomes of the images on the host

	// Where a disk of the worker or the engine has less than DiskLow free, the sandbox that fills it is
	// stopped. 0 is a tenth of the disk, 2 GiB at most. DiskReserve is held back on the worker's own disk for its
	// records. 0 is a fiftieth of the disk, 32 MiB at most.
	DiskLow, DiskReserve protocol.Bytes

	CrashWindow    time.Duration  // a primary command that never ran for CrashGuard within this fails its sandbox; default 5 min
	CrashGuard     time.Duration  // default 30 s
	OutputPatience time.Duration  // an exec's end waits so long for a log of output that takes nothing; default 30 s
	OutputWithin   time.Duration  // an exec's end waits for its output until so long after the exec's timeout and grace; default 30 s
	OutputBurst    protocol.Bytes // what a sandbox may publish as fast as the log takes it, of output; default 256 MiB
	OutputRate     protocol.Bytes // and how much in a second after that, from 1; default 8 MiB
	Reconcile      time.Duration  // between two looks at everything on the host; default 15 s

	// OnState is called with whether the worker works, and in a few words with what it does or waits for:
	// when that changes, and once a second. It must not block, and may be nil.
	OnState func(well bool, text string)

	// Probe is called at named points of the work, for tests that crash there. It may be nil.
	Probe func(point string)
}

// DefaultNetworkPool is where sandboxes' networks come from.
const DefaultNetworkPool = "10.201.0.0/16"

// What one sandbox may take of what the kernel has for the whole machine.
const (
	DefaultConnections = 2048
	DefaultMostPIDs    = abilities.DefaultMostPIDs

	leastConnections = 64
)

// DefaultPorts are published for sandboxes. They lie below those that kernels give to outgoing connections, and
// above those of most services of a host.
const DefaultPorts = "20000-32767"

// Check says what [Run] would refuse, as far as that can be seen without NATS and without the engine. Conn
// need not be set yet. Error: invalid_argument.
func (c Config) Check() error { return c.check() }

func (c *Config) check() error {
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
	if c.DiskLow < 0 || c.DiskReserve < 0 {
		return protocol.Invalid("disk_low, disk_reserve", "must not be negative")
	}
	if c.Slots < 0 || c.CPU < 0 || c.Memory < 0 {
		return protocol.Invalid("slots, cpu, memory", "must not be negative")
	}
	if err := protocol.ValidateHostLabels("labels", c.Labels); err != nil {
		return err
	}
	if err := c.Images.Check(); err != nil {
		return err
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.CrashWindow, 5*time.Minute)
	def(&c.CrashGuard, 30*time.Second)
	def(&c.OutputPatience, 30*time.Second)
	def(&c.OutputWithin, 30*time.Second)
	def(&c.Reconcile, 15*time.Second)
	if c.OutputBurst < 0 || c.OutputRate < 0 {
		return protocol.Invalid("output_burst, output_rate", "must not be negative")
	}
	c.OutputBurst, c.OutputRate = cmp.Or(c.OutputBurst, output.DefaultBurst), cmp.Or(c.OutputRate, output.DefaultRate)
	if c.Slots == 0 {
		c.Slots = 100
	}
	if err := c.Watermarks.Check(); err != nil {
		return err
	}
	if c.NetworkPool == "" {
		c.NetworkPool = DefaultNetworkPool
	}
	if _, err := network.NewSubnets(c.NetworkPool); err != nil {
		return err
	}
	if c.Connections == 0 {
		c.Connections = DefaultConnections
	}
	if c.Connections < leastConnections {
		return protocol.Invalid("connections", "must be at least %d, got %d", leastConnections, c.Connections)
	}
	if c.PIDs == 0 {
		c.PIDs = DefaultMostPIDs
	}
	if c.PIDs < protocol.DefaultPIDs || c.PIDs > protocol.MaxPIDs {
		return protocol.Invalid("pids", "must be %d, the default of specs, to %d, got %d", protocol.DefaultPIDs, protocol.MaxPIDs, c.PIDs)
	}
	if c.Ports == "" {
		c.Ports = DefaultPorts
	}
	if _, err := protocol.ParsePortRange("ports", c.Ports); err != nil {
		return err
	}
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
	return nil
}

// worker is one running worker.
type worker struct {
	cfg      Config
	conn     *jetstream.Conn
	log      *slog.Logger
	engine   *docker.Engine
	info     docker.Info
	address  string // of the engine
	hostID   string
	dir      string       // of this host, below StateDir
	dirs     hostdir.Root // of sandboxes, below dir
	instance string
	place    string // identity of the local lock

	supervisor string // path of this worker's copy of the supervisor
	subnets    *network.Subnets
	ports      protocol.PortRange // that may be published
	gpus       *abilities.GPUs
	admissions *admissions
	firstLook  *firstLook
	disk       *disk.Watch
	files      hostfiles.Files
	images     *images.Images
	homes      hostfiles.Homes
	abilities  *abilities.Abilities
	isolation  *network.Isolation
	changed    wake.Signal // the entry in the table of hosts is old
	lease      atomic.Pointer[jetstream.Lease]
	started    time.Time // by the store's clock
	output     *output.Host

	health    health
	recovery  recovery
	listening *listening
	epoch     engineEpoch
	once      sync.Once
	unbounded sync.Once // the warning that terminals are not limited

	mu        sync.Mutex
	sandboxes map[key]*sandbox
	wg        sync.WaitGroup // mailboxes
}

// key identifies a sandbox.
type key = protocol.SandboxKey

// Run takes the host's lock and works until ctx ends. Execs and sandboxes go on without it; the
// next worker on the host adopts them. Errors: failed_precondition with reason host_held, naming
// the holder, when another worker has the host; already_exists when another host has this worker's
// name; internal when what was in hand at the end of the lock, or of ctx, does not end within five
// minutes, after which the process should end. It returns nil after the end of ctx. Where the engine comes
// back with another configuration or version, or is another one, it begins anew. An engine that does not
// answer is waited for, from the beginning on, unless the worker is ephemeral.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Conn == nil {
		return protocol.Invalid("conn", "must be set")
	}
	if err := cfg.check(); err != nil {
		return err
	}
	if ready := cfg.OnReady; ready != nil {
		cfg.OnReady = sync.OnceFunc(ready)
	}
	pause := engineFirst
	for again := !cfg.Ephemeral; ; again = true {
		err := newWorker(cfg).run(ctx)
		switch {
		case ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled) || protocol.CodeOf(err) == protocol.Cancelled):
			return nil
		case begunAnew(err):
			cfg.Logger.Warn("the worker begins anew", "worker", cfg.Name, "error", err)
			pause = engineFirst
		case hosterr.DiskFull(err):
			cfg.Logger.Warn("waiting for room on the worker's disk", "worker", cfg.Name, "error", err)
			cfg.OnState(false, "waits for room on its disk: "+err.Error())
			if !backoff.Sleep(ctx, engineMost) {
				return nil
			}
		case again && protocol.CodeOf(err) == protocol.Unavailable: // it is not there yet, or restarted once more
			cfg.Logger.Warn("waiting for the Docker engine", "worker", cfg.Name, "error", err)
			cfg.OnState(false, "waits for the Docker engine: "+err.Error())
			if !backoff.Sleep(ctx, pause) {
				return nil
			}
			pause = min(2*pause, engineMost)
		default:
			return err
		}
	}
}

// An engine that is not there is asked again after engineFirst, and then more rarely.
const (
	engineFirst = 250 * time.Millisecond
	engineMost  = 2 * time.Second
)

func newWorker(cfg Config) *worker {
	return &worker{
		cfg: cfg, conn: cfg.Conn, log: cfg.Logger.With("worker", cfg.Name), instance: strings.ToLower(ulid.Make().String()),
		sandboxes: map[key]*sandbox{}, listening: newListening(), output: output.New(output.Config{
			Conn: cfg.Conn, Burst: cfg.OutputBurst, Rate: cfg.OutputRate, Patience: cfg.OutputPatience,
			After: cfg.OutputWithin, Probe: cfg.Probe,
		}),
		changed: wake.New(), admissions: newAdmissions(), firstLook: newFirstLook(),
	}
}

func (w *worker) run(ctx context.Context) error {
	if err := w.awaitDeployment(ctx); err != nil {
		return err
	}
	w.started = w.conn.Now()
	if err := w.identify(ctx); err != nil {
		return err
	}
	defer w.engine.Close()
	unlock, err := w.lockPlace()
	if err != nil {
		return err
	}
	defer unlock()
	if err := w.prepare(ctx); err != nil {
		return err
	}
	defer w.isolation.Close()
	w.disk = disk.New(disk.Config{
		WorkerDir: w.cfg.StateDir, EngineDir: w.info.RootDir, ReserveDir: w.dir, Low: w.cfg.DiskLow,
		Reserve: w.cfg.DiskReserve, OnStop: w.diskStopped, Logger: w.log,
	})
	watching, stopWatching := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		w.disk.Run(watching)
	}()
	defer func() {
		stopWatching()
		<-watched
	}()
	for {
		lease, err := w.takeLock(ctx)
		if err != nil {
			return err
		}
		err = w.tenure(ctx, lease)
		switch {
		case err == errNotAtRest:
			return err
		case ctx.Err() != nil:
			return w.leave(lease)
		case err == errEngineReplaced:
			w.giveUp(ctx, lease)
			return err
		case err == errEngineChanged: // who begins anew takes the lock over
			return err
		case protocol.CodeOf(err) == protocol.AlreadyExists: // the name is another host's
			w.release(ctx, lease)
			return err
		}
		// Somebody else had the lock. Whatever they did is in the log: take the lock again, and
		// look at everything anew.
		w.log.Warn("the host's lock was lost and is taken again", "error", err)
	}
}

// awaitDeployment waits until a coordinator has made the streams.
func (w *worker) awaitDeployment(ctx context.Context) error {
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := w.conn.Open(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		w.log.Warn("waiting for a coordinator to provision the deployment", "error", err)
		w.cfg.OnState(false, "waits for a coordinator to make the streams: "+err.Error())
		if !backoff.Sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

// identify connects to the Engine and learns which host it is.
func (w *worker) identify(ctx context.Context) error {
	cfg := docker.Config{Host: w.cfg.Engine, Deployment: w.conn.Deployment(), Fence: docker.Unfenced, Logger: w.log,
		PullStall: w.cfg.Images.PullStall, DockerConfig: w.cfg.Images.DockerConfig}
	marker, err := docker.Connect(ctx, cfg)
	if err != nil {
		return err
	}
	defer marker.Close()
	if w.hostID, err = marker.HostID(ctx); err != nil {
		return err
	}
	cfg.Fence = w.fence
	if hostfiles.CanVerify() { // others may not look into containers
		cfg.EmptyLayer = removal.Contents
	}
	if w.engine, err = docker.Connect(ctx, cfg); err != nil {
		return err
	}
	w.address = w.engine.Address()
	w.dir = filepath.Join(w.cfg.StateDir, w.conn.Deployment(), w.hostID)
	w.dirs = hostdir.In(w.dir)
	w.images = newImages(w)
	return nil
}

// fence is what every change on the host must pass: the lock is held, and may be trusted.
func (w *worker) fence() error {
	_, err := w.trusted()
	return err
}

// trusted is until when the fence lets pass, as far as is known now; a moment that is over beside the
// fence's error. It is by [control.Clock], as the lease's own clock is.
func (w *worker) trusted() (until time.Duration, err error) {
	lease := w.lease.Load()
	if lease == nil {
		return control.Clock(), protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonLeaseLost, "the host's lock is not held")
	}
	return lease.Trusted()
}

func (w *worker) token() uint64 {
	if lease := w.lease.Load(); lease != nil {
		return lease.Token()
	}
	return 0
}

// prepare makes ready what all sandboxes need. What an engine says of itself takes it 10 ms.
func (w *worker) prepare(ctx context.Context) error {
	kept := make(chan error, 1)
	go func() {
		w.images.Load()
		kept <- w.keepSupervisor()
	}()
	err := w.preparePolicy(ctx)
	return cmp.Or(err, <-kept)
}

func (w *worker) preparePolicy(ctx context.Context) error {
	var err error
	if w.info, err = w.engine.Info(ctx); err != nil {
		return err
	}
	if w.files.Mounts, err = hostfiles.NewPolicy(w.cfg.AllowMounts, w.hidden()); err != nil {
		return err
	}
	if w.files.Tools, err = hostfiles.NewToolbox(w.cfg.Tools, w.cfg.ToolsHome, w.cfg.SSHAgent, w.files.Mounts); err != nil {
		return err
	}
	if w.abilities, err = abilities.New(abilities.Config{
		Profiles: w.cfg.Profiles, ServiceProfiles: w.cfg.ServiceProfiles, Runtimes: w.cfg.Runtimes, PIDs: w.cfg.PIDs,
	}, w.info); err != nil {
		return err
	}
	w.gpus = abilities.NewGPUs(w.abilities.GPUs)
	if w.subnets, err = network.NewSubnets(w.cfg.NetworkPool); err != nil {
		return err
	}
	if w.ports, err = protocol.ParsePortRange("ports", w.cfg.Ports); err != nil {
		return err
	}
	if w.isolation, err = network.New(w.networkConfig()); err != nil {
		return err
	}
	if err = w.checkDefaults(); err != nil {
		return err
	}
	return w.isolation.RefreshSubnets(ctx)
}

// hidden is what no sandbox may see of this host, beside what is so on every host.
func (w *worker) hidden() []string {
	hidden := []string{w.cfg.StateDir}
	for _, path := range append([]string{w.info.RootDir, strings.TrimPrefix(w.address, "unix://")}, w.cfg.Hidden...) {
		if filepath.IsAbs(path) {
			hidden = append(hidden, path)
		}
	}
	return hidden
}

// keepSupervisor copies the supervisor into the worker's directory. Containers mount the copy: it is
// there for as long as they are, whatever becomes of the installed one.
func (w *worker) keepSupervisor() error {
	data, err := os.ReadFile(w.cfg.Supervisor)
	if err != nil {
		return protocol.Invalid("supervisor", "%v", err)
	}
	sum := sha256.Sum256(data)
	w.supervisor = filepath.Join(w.dir, "supervisor-"+hex.EncodeToString(sum[:8]))
	if info, err := os.Stat(w.supervisor); err == nil && info.Size() == int64(len(data)) {
		return nil
	}
	err = os.WriteFile(w.supervisor+".tmp", data, 0o555)
	if err == nil {
		err = os.Rename(w.supervisor+".tmp", w.supervisor)
	}
	if err != nil {
		return hosterr.Wrap(err, "keep the supervisor")
	}
	return nil
}

// tenure works for as long as the lock is held, or until ctx ends.
func (w *worker) tenure(ctx context.Context, lease *jetstream.Lease) error {
	w.lease.Store(lease)
	w.firstLook = newFirstLook()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return lease.Run(ctx) })
	group.Go(func() error { return w.work(ctx, group) })
	seen := w.firstLook.done
	go func() {
		select {
		case <-seen:
			w.disk.AllTracked()
		case <-ctx.Done():
		}
	}()
	atRest := make(chan error, 1)
	go func() {
		err := group.Wait()
		w.wg.Wait()
		w.mu.Lock()
		clear(w.sandboxes)
		w.mu.Unlock()
		w.gpus.Forget()
		w.admissions.forget()
		atRest <- err
	}()
	<-ctx.Done()
	return w.awaitRest(atRest, restWithin)
}

// work adopts what is on the host, and takes work, until ctx ends.
func (w *worker) work(ctx context.Context, group *errgroup.Group) error {
	unknown := w.adopt(ctx)
	if unknown != nil && ctx.Err() == nil {
		w.log.Warn("what is on the host is not known yet, and will be looked at again", "error", unknown)
	}
	// The coordinator is asked by registering and by heartbeats to tell everything; the worker must
	// be listening then.
	stop, err := w.conn.Work(w.cfg.Name, func(tenant, id string, b *protocol.Batch) {
		w.reach(ctx, key{Tenant: tenant, ID: id}, func(s *sandbox) bool { return s.told(b) })
	})
	if err != nil {
		return err
	}
	defer stop()
	w.listening.again()
	defer w.conn.OnReconnect(w.listening.again)()
	defer w.conn.OnReconnect(w.recovery.happened)()
	if err := w.register(ctx); err != nil {
		return err
	}
	group.Go(func() error { return w.beat(ctx) })
	group.Go(func() error { return w.keepRegistered(ctx) })
	group.Go(func() error { return w.watchEngine(ctx, unknown == nil) })
	group.Go(func() error { return w.images.Run(ctx, w.info.RootDir) })
	group.Go(func() error { return w.watchWatchers(ctx) })
	w.once.Do(func() {
		w.logPosture()
		w.log.Info("worker is ready", "host", w.hostID, "engine", w.info.Version, "token", w.token())
		if w.cfg.OnReady != nil {
			w.cfg.OnReady()
		}
	})
	<-ctx.Done()
	return ctx.Err()
}

// restWithin is how long what is in hand may take to end at the end of a tenure: longer than the Engine
// is waited for, which is at most two minutes.
const restWithin = 5 * time.Minute

// errNotAtRest says that something of an earlier tenure goes on.
var errNotAtRest = protocol.Errorf(protocol.Internal, "", "what was in hand does not end")

// awaitRest waits for the end of a tenure. What does not end is a fault of the worker's, which may go no
// further with it, nor wait for ever: its process has to end.
func (w *worker) awaitRest(atRest <-chan error, within time.Duration) error {
	late := time.NewTimer(within)
	defer late.Stop()
	select {
	case err := <-atRest:
		return err
	case <-late.C:
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	going := make([]string, 0, len(w.sandboxes))
	for k := range w.sandboxes {
		going = append(going, k.String())
	}
	stacks := make([]byte, 1<<20)
	w.log.Error("what was in hand does not end", "within", within, "sandboxes", going, "goroutines", string(stacks[:runtime.Stack(stacks, true)]))
	return errNotAtRest
}

// reach gives something to a sandbox's mailbox, to a new one when the present one has just ended.
func (w *worker) reach(ctx context.Context, k key, give func(*sandbox) bool) {
	for ctx.Err() == nil && !give(w.sandbox(ctx, k)) {
	}
}

// sandbox returns the mailbox of a sandbox, started when it is not there.
func (w *worker) sandbox(ctx context.Context, k key) *sandbox {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.sandboxes[k]
	if s == nil || s.retired() {
		s = newSandbox(w, k)
		w.sandboxes[k] = s
		w.wg.Add(1)
		go func() {
			defer w.wg.Done()
			s.run(ctx)
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.sandboxes[k] == s {
				delete(w.sandboxes, k)
			}
		}()
	}
	return s
}

// leave says goodbye at the end of a worker's life.
func (w *worker) leave(lease *jetstream.Lease) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	var errs []error
	if w.cfg.Ephemeral {
		errs = append(errs, w.forgetHost(ctx), w.conn.ForgetImages(ctx, w.cfg.Name))
	}
	errs = append(errs, w.conn.ForgetHost(ctx, w.cfg.Name), lease.Release(ctx))
	if err := errors.Join(errs...); err != nil {
		w.log.Warn("the worker leaves without a word; its lock ends by itself", "error", err)
	}
	return nil
}

// begunAnew says whether everything that the worker knows of its engine is to be asked anew.
func begunAnew(err error) bool { return err == errEngineChanged || err == errEngineReplaced }

// giveUp leaves a host whose engine is gone, so that the worker can have the one in its place.
func (w *worker) giveUp(ctx context.Context, lease *jetstream.Lease) {
	for ctx.Err() == nil {
		err := w.conn.ForgetHost(ctx, w.cfg.Name)
		if err == nil {
			break
		}
		w.log.Warn("the host's entry is not removed yet", "error", err)
		backoff.Sleep(ctx, time.Second)
	}
	w.release(ctx, lease)
}

// release gives the lock up, as far as that can be done at once.
func (w *worker) release(ctx context.Context, lease *jetstream.Lease) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if err := lease.Release(ctx); err != nil {
		w.log.Warn("the host's lock is not released; it ends by itself", "error", err)
	}
}

// forgetHost takes away the engine's mark and the host's directory, if no sandbox is left.
func (w *worker) forgetHost(ctx context.Context) error {
	left, err := w.containers(ctx)
	if err != nil || len(left) > 0 {
		return err
	}
	if err := removal.Tree(ctx, filepath.Join(w.cfg.StateDir, w.conn.Deployment())); err != nil {
		return err
	}
	if err := w.isolation.RemoveAll(); err != nil {
		return err
	}
	return w.engine.RemoveHostID(ctx)
}
