// Package fleet starts whole Boxfleet deployments for tests: real NATS servers in the test's process, coordinators and
// workers in separate processes that tests can kill, and real engines.
//
//	test process: NATS servers, SDK client, checks of the log
//	  ├── coordinator process ... (the test binary again, in a role)
//	  └── worker process ...  ──► Docker engine
package fleet

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/coordinator"
	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/integration/access"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/seal"
)

// Image is the image that tests run; `make image` builds it.
const Image = "boxfleet/demo:busybox"

// ServersVariable is the environment variable that sets the number of NATS servers, 1 (default) or 3, for fleets whose
// options do not set the number. A fleet whose only server can be killed always has one server.
const ServersVariable = "BOXFLEET_TEST_SERVERS"

// Options configures a fleet.
type Options struct {
	Servers      int                // NATS servers: 1 or 3, as one cluster; default: see ServersVariable
	Killable     bool               // run the only NATS server in its own process, see [Fleet.Server]
	LockTTL      time.Duration      // time to live of host locks; default: as in production
	CleanupTTL   time.Duration      // how long stopped and failed sandboxes are kept; default: as in production
	BlobMaxAge   time.Duration      // how long uploaded trees are kept; default: as in production
	Duplicates   time.Duration      // deduplication window of the request queue; default: as in production
	Timing       coordinator.Timing // timing of the coordinators that Start starts
	Coordinators int                // coordinators that Start starts, named c1, c2, …; default 1; -1 for no coordinator
	Workers      int                // 1 (default): one worker, w1, on the default engine; -1 for no worker

	// Secrets gives the coordinators a key for secrets.
	Secrets bool

	// TLS makes the servers demand TLS, with a certificate of each client. It needs one server that is not killable.
	TLS bool
}

// Fleet is one deployment.
type Fleet struct {
	TB       testing.TB
	Dir      string // the fleet's directory; removed at the end of the test
	StoreDir string // the stores of the NATS servers; removed at the end of the test
	Servers  []*embedded.Server
	Server   *Process        // the NATS server's process, only with [Options.Killable]
	Client   *sdk.Client     // acts as a user of the default tenant
	Conn     *jetstream.Conn // connection of the test itself, which checks the log

	// Operator acts as an operator: it controls hosts and images.
	Operator *sdk.Client

	options Options

	processes []*Process
	engines   map[string]bool // addresses of the engines that workers used
	began     time.Time
	mayLeave  string        // why the end of the test does not check for leaks
	patience  time.Duration // time limit for cleaning up
	access    access.Dir    // empty: a fleet without credentials
	refused   refusals
	tls       *secured // nil: no TLS
	secrets   string   // seed of the coordinators' key for secrets; "": they keep no secrets

	mayBeRefused bool // see MayBeRefused
}

// Start starts a fleet and waits until it is ready. When the test ends, Boxfleet must have left nothing behind; see
// [Fleet.MayLeave] for exceptions.
func Start(tb testing.TB, o Options) *Fleet {
	tb.Helper()
	f := &Fleet{TB: tb, options: o, engines: map[string]bool{}, began: time.Now(), patience: emptyWithin}
	var err error
	if f.Dir, err = os.MkdirTemp("", "boxfleet-fleet-"); err != nil {
		tb.Fatal(err)
	}
	if f.StoreDir, err = os.MkdirTemp(os.Getenv(eventually.StoresVariable), "boxfleet-stores-"); err != nil {
		tb.Fatal(err)
	}
	if os.Getenv(access.Variable) == "" {
		if f.access, err = access.New(f.Dir); err != nil {
			tb.Fatal(err)
		}
	}
	if o.Secrets {
		f.makeSecretsKey()
	}
	// The temporary directories of the test must outlive the fleet, because the check for leaks may restart workers that
	// use them. TempDir registers their removal when it is called first, and clean-ups run in reverse order.
	tb.TempDir()
	tb.Cleanup(remains{f}.cleanUp)
	tb.Cleanup(f.checkViolations)
	tb.Cleanup(remains{f}.checkLeaks)
	f.startServers()
	coordinators := max(o.Coordinators, 0)
	if o.Coordinators == 0 {
		coordinators = 1
	}
	for i := range coordinators {
		f.Coordinator("c"+string(rune('1'+i)), Role{Timing: o.Timing})
	}
	if coordinators > 0 {
		f.Connect()
	}
	if o.Workers >= 0 && coordinators > 0 {
		f.Worker("w1", Role{})
	}
	return f
}

// ReplaceSecretsKey puts a new key for secrets before the others, for coordinators that start from now on. Call the
// returned function to take the earlier keys away, or to give them back.
func ReplaceSecretsKey(f *Fleet) (keepEarlier func(keep bool)) {
	f.TB.Helper()
	earlier := f.secrets
	f.makeSecretsKey()
	all := f.secrets
	return func(keep bool) {
		if f.secrets = all; !keep {
			f.secrets = strings.TrimSuffix(all, earlier)
		}
	}
}

// TakeSecretsKey takes the keys for secrets away from coordinators that start from now on. Call the returned function
// to give the keys back.
func TakeSecretsKey(f *Fleet) (giveBack func()) {
	keys := f.secrets
	f.secrets = ""
	return func() { f.secrets = keys }
}

func (f *Fleet) makeSecretsKey() {
	f.TB.Helper()
	key, err := seal.New()
	if err != nil {
		f.TB.Fatal(err)
	}
	seed, err := key.Seed()
	if err != nil {
		f.TB.Fatal(err)
	}
	f.secrets = string(seed) + "\n" + f.secrets
}

func (f *Fleet) startServers() {
	f.TB.Helper()
	if f.options.Killable {
		f.startServer()
		return
	}
	if f.options.TLS {
		f.options.Servers = 1
	}
	trusted, err := f.access.Operators()
	if err != nil {
		f.TB.Fatal(err)
	}
	servers := f.options.Servers
	if text := os.Getenv(ServersVariable); servers == 0 && text != "" {
		if servers, err = strconv.Atoi(text); err != nil || servers != 1 && servers != 3 {
			f.TB.Fatalf("%s must be 1 or 3, got %q", ServersVariable, text)
		}
	}
	if servers > 1 {
		f.Servers, err = embedded.StartClusterOf(f.StoreDir, servers, trusted)
	} else {
		cfg := embedded.Config{Dir: filepath.Join(f.StoreDir, "nats"), Name: "n1", Operators: trusted}
		if f.options.TLS {
			f.startTLS()
			cfg.TLS = f.tls.server(f.TB)
		}
		var s *embedded.Server
		s, err = embedded.Start(cfg)
		f.Servers = []*embedded.Server{s}
	}
	if err != nil {
		f.TB.Fatal(err)
	}
}

// Connect opens the test's own connections. A coordinator must already have created the streams.
func (f *Fleet) Connect() {
	f.TB.Helper()
	if f.Client != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var err error
	if f.Client, err = sdk.Connect(ctx, f.Options(sdk.Options{})); err != nil {
		f.TB.Fatal(err)
	}
	if f.Operator, err = sdk.Connect(ctx, f.AsOperator(sdk.Options{})); err != nil {
		f.TB.Fatal(err)
	}
	if f.Conn, err = jetstream.Connect(ctx, f.Unlimited("judge")); err != nil {
		f.TB.Fatal(err)
	}
	if err := f.Conn.Open(ctx); err != nil {
		f.TB.Fatal(err)
	}
}

// URL returns the address of the fleet's NATS servers.
func (f *Fleet) URL() string {
	if f.Server != nil {
		return f.Server.Role.NATS
	}
	var urls []string
	for _, s := range f.Servers {
		urls = append(urls, s.ClientURL())
	}
	return strings.Join(urls, ",")
}

// Spec returns the spec of a small sandbox.
func (f *Fleet) Spec() protocol.SandboxSpec {
	return protocol.SandboxSpec{Image: Image, Memory: 64 << 20, Grace: protocol.Duration(time.Second)}
}

// Run runs a part of the test as a subtest. During the subtest, f reports failures to the subtest.
func (f *Fleet) Run(t *testing.T, name string, part func(t *testing.T)) bool {
	whole := f.TB
	defer func() { f.TB = whole }()
	return t.Run(name, func(t *testing.T) {
		f.TB = t
		part(t)
	})
}

// Context returns a context that ends after d or at the end of the test.
func (f *Fleet) Context(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	f.TB.Cleanup(cancel)
	return ctx
}

// Create creates a sandbox and waits until it is ready.
func (f *Fleet) Create(id string) *sdk.Sandbox {
	f.TB.Helper()
	s, err := f.Client.Create(f.Context(time.Minute), f.Spec(), sdk.WithID(id))
	if err != nil {
		f.TB.Fatalf("create %s: %v", id, err)
	}
	return s
}

// Eventually waits until check returns nil. If check still fails after d, Eventually fails the test with the last
// error. If a check starts in time but ends late, it runs once more: the check may have been slow, or the test process
// may have been paused. Unlike eventually.Holds, Eventually reports why the condition does not hold.
func (f *Fleet) Eventually(d time.Duration, what string, check func() error) {
	f.TB.Helper()
	began := time.Now()
	for {
		waited := time.Since(began)
		late := waited > d
		err := check()
		if err == nil {
			return
		}
		if late {
			f.TB.Fatalf("%s: not within %s: %v", what, d, err)
		}
		// Tests of several fleets run at once, so frequent checks would take too much processor time.
		time.Sleep(min(max(waited/20, 20*time.Millisecond), 200*time.Millisecond))
	}
}
