// Package fleet starts whole Boxfleet deployments for tests: real NATS servers in the test's
// process, coordinators and workers as processes of their own that can be killed, real engines.
//
//	test process: NATS servers, SDK client, judges
//	  ├── coordinator process ... (the test binary again, in a role)
//	  └── worker process ...  ──► Docker engine
package fleet

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/coordinator"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// Image is the image that tests run; `make image` makes it.
const Image = "boxfleet/demo:busybox"

// Options says what a fleet is made of.
type Options struct {
	Servers      int                // NATS servers: 1 (default) or 3, as one cluster
	Killable     bool               // the one NATS server is a process of its own, see [Fleet.Server]
	LockTTL      time.Duration      // of host locks; default: the product's
	CleanupTTL   time.Duration      // default: the product's
	BlobMaxAge   time.Duration      // uploaded trees are kept so long; default: the product's
	Duplicates   time.Duration      // window in which the request queue drops repeats; default: the product's
	Timing       coordinator.Timing // of the coordinators that are started at once
	Coordinators int                // started at once, named c1, c2, …; default 1; -1 for none
	Workers      int                // 1 (default): one worker, w1, on the default engine; -1 for none
}

// Fleet is one deployment.
type Fleet struct {
	TB      testing.TB
	Dir     string // of this fleet; removed at the end
	Servers []*embedded.Server
	Server  *Process // of [Options.Killable]
	Client  *sdk.Client
	Conn    *jetstream.Conn // of the test, for judging
	options Options

	processes []*Process
	engines   map[string]bool // addresses of engines that workers used
	began     time.Time
	mayLeave  string        // why nothing is checked at the end
	patience  time.Duration // how long what is left may take to go
}

// Start starts a fleet and waits until it is ready. When the test ends, Boxfleet must have left nothing
// behind, see [Fleet.MayLeave].
func Start(tb testing.TB, o Options) *Fleet {
	tb.Helper()
	f := &Fleet{TB: tb, options: o, engines: map[string]bool{}, began: time.Now(), patience: emptyWithin}
	var err error
	if f.Dir, err = os.MkdirTemp("", "boxfleet-fleet-"); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(f.cleanUp)
	tb.Cleanup(f.checkLeaks)
	switch {
	case o.Killable:
		f.startServer()
	case o.Servers > 1:
		f.Servers, err = embedded.StartCluster(f.Dir, o.Servers)
	default:
		var s *embedded.Server
		s, err = embedded.Start(embedded.Config{Dir: filepath.Join(f.Dir, "nats"), Name: "n1"})
		f.Servers = []*embedded.Server{s}
	}
	if err != nil {
		tb.Fatal(err)
	}
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

// Connect opens the test's own connections, once a coordinator has provisioned the deployment.
func (f *Fleet) Connect() {
	f.TB.Helper()
	if f.Client != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var err error
	if f.Client, err = sdk.Connect(ctx, sdk.Options{URL: f.URL()}); err != nil {
		f.TB.Fatal(err)
	}
	if f.Conn, err = jetstream.Connect(ctx, jetstream.Config{URL: f.URL(), Name: "judge"}); err != nil {
		f.TB.Fatal(err)
	}
	if err := f.Conn.Open(ctx); err != nil {
		f.TB.Fatal(err)
	}
}

// URL is where the fleet's NATS servers listen.
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

// Spec is a small sandbox.
func (f *Fleet) Spec() protocol.SandboxSpec {
	return protocol.SandboxSpec{Image: Image, Memory: 64 << 20, Grace: protocol.Duration(time.Second)}
}

// Run runs a part of the test as a test of its own: what fails in it fails there.
func (f *Fleet) Run(t *testing.T, name string, part func(t *testing.T)) bool {
	whole := f.TB
	defer func() { f.TB = whole }()
	return t.Run(name, func(t *testing.T) {
		f.TB = t
		part(t)
	})
}

// Context ends with the test, or after d.
func (f *Fleet) Context(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	f.TB.Cleanup(cancel)
	return ctx
}

// Create makes a sandbox and waits until it is ready.
func (f *Fleet) Create(id string) *sdk.Sandbox {
	f.TB.Helper()
	s, err := f.Client.Create(f.Context(time.Minute), f.Spec(), sdk.WithID(id))
	if err != nil {
		f.TB.Fatalf("create %s: %v", id, err)
	}
	return s
}

// Eventually waits until check returns nil, and fails the test with its last error after d. A check that
// began in time is not the last one: it may have taken long, or the test may have stood still.
func (f *Fleet) Eventually(d time.Duration, what string, check func() error) {
	f.TB.Helper()
	deadline := time.Now().Add(d)
	for {
		late := time.Now().After(deadline)
		err := check()
		if err == nil {
			return
		}
		if late {
			f.TB.Fatalf("%s: not within %s: %v", what, d, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
