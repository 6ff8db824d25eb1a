package fleet

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
	"github.com/boxfleet/boxfleet/sdk"
)

// Names of the test's own credentials.
const (
	testUser     = "tester"   // the name of the user, in any tenant
	testOperator = "operator" // controls hosts and images
)

// refusals collects the permission violations of the test's own connections.
type refusals struct {
	mu  sync.Mutex
	all []string
}

// credsFor returns the credentials of a new process of the fleet.
func (f *Fleet) credsFor(r *Role) (file string, err error) {
	switch r.Kind {
	case "coordinator":
		return f.access.Of(rights.Identity{Role: rights.Coordinator, Name: r.Name})
	case "worker":
		return f.access.Worker(r.Name, r.Engine)
	}
	return "", nil
}

// Options returns o with the fleet's servers. If o names no credentials, Options adds the credentials of a user of o's
// tenant.
func (f *Fleet) Options(o sdk.Options) sdk.Options {
	f.TB.Helper()
	if o.URL == "" {
		o.URL = f.URL()
	}
	if o.Logger == nil {
		o.Logger = f.refused.logger()
	}
	o.TLS = f.clientTLS("test")
	if o.Creds != "" {
		return o
	}
	tenant := o.Tenant
	if tenant == "" {
		tenant = protocol.DefaultTenant
	}
	var err error
	if o.Creds, err = f.access.Of(rights.Identity{Role: rights.User, Name: testUser, Tenant: tenant}); err != nil {
		f.TB.Fatal(err)
	}
	return o
}

// AsViewer returns o with the fleet's servers and the credentials of a viewer of the default tenant.
func (f *Fleet) AsViewer(o sdk.Options) sdk.Options {
	f.TB.Helper()
	var err error
	o.Creds, err = f.access.Of(rights.Identity{Role: rights.Viewer, Name: "viewer", Tenant: protocol.DefaultTenant})
	if err != nil {
		f.TB.Fatal(err)
	}
	return f.Options(o)
}

// AsOperator returns o with the fleet's servers and the credentials of an operator.
func (f *Fleet) AsOperator(o sdk.Options) sdk.Options {
	f.TB.Helper()
	var err error
	if o.Creds, err = f.access.Of(rights.Identity{Role: rights.Operator, Name: testOperator}); err != nil {
		f.TB.Fatal(err)
	}
	return f.Options(o)
}

// Flags returns the flags with which the command line reaches the fleet, as a user of the default tenant.
func (f *Fleet) Flags() []string { return flags(f.Options(sdk.Options{})) }

// OperatorFlags returns the flags with which the command line reaches the fleet as an operator.
func (f *Fleet) OperatorFlags() []string { return flags(f.AsOperator(sdk.Options{})) }

// WorkerFlags returns the flags with which the command line runs a worker in place of w, on the same engine.
func (f *Fleet) WorkerFlags(w *Process) []string {
	return flags(sdk.Options{URL: f.URL(), Creds: w.Role.Creds, TLS: w.Role.TLS})
}

func flags(o sdk.Options) []string {
	args := []string{"--nats", o.URL}
	if o.Creds != "" {
		args = append(args, "--creds", o.Creds)
	}
	if o.TLS.CA != "" {
		args = append(args, "--tls-ca", o.TLS.CA, "--tls-cert", o.TLS.Cert, "--tls-key", o.TLS.Key)
	}
	return args
}

// Unlimited returns the configuration with which the test itself connects to the fleet's servers. It has rights that no
// role has.
func (f *Fleet) Unlimited(name string) jetstream.Config {
	f.TB.Helper()
	creds, err := f.access.Unlimited()
	if err != nil {
		f.TB.Fatal(err)
	}
	return jetstream.Config{URL: f.URL(), Creds: creds, TLS: f.clientTLS("test"), Name: name,
		Logger: f.refused.logger()}
}

// AsCoordinator opens a connection that appends to histories as a coordinator with this name does. The connection signs
// if the fleet runs with credentials. It is closed at the end of the test.
func (f *Fleet) AsCoordinator(name string) *jetstream.Conn {
	f.TB.Helper()
	creds, err := f.access.Of(rights.Identity{Role: rights.Coordinator, Name: name})
	if err != nil {
		f.TB.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := jetstream.Connect(ctx, jetstream.Config{URL: f.URL(), Creds: creds, TLS: f.clientTLS("test"), Name: name,
		Logger: f.refused.logger()})
	if err != nil {
		f.TB.Fatal(err)
	}
	f.TB.Cleanup(conn.Close)
	if err := conn.Open(ctx); err != nil {
		f.TB.Fatal(err)
	}
	if err := conn.RegisterWriter(ctx, protocol.OwnerCoordinator, name, ""); err != nil {
		f.TB.Fatal(err)
	}
	return conn
}

// NATS opens a connection to the fleet's servers with rights that no role has. The caller closes it.
func (f *Fleet) NATS(name string) (*nats.Conn, error) {
	creds, err := f.access.Unlimited()
	if err != nil {
		return nil, err
	}
	options := []nats.Option{nats.Name(name)}
	if creds != "" {
		options = append(options, nats.UserCredentials(creds))
	}
	if t := f.clientTLS("test"); t.CA != "" {
		options = append(options, nats.RootCAs(t.CA), nats.ClientCert(t.Cert, t.Key))
	}
	return nats.Connect(f.URL(), options...)
}

// violation is part of the error that the NATS client reports when a server refuses a subject.
const violation = "permissions violation"

// logger returns the logger of the test's own connections.
func (r *refusals) logger() *slog.Logger { return slog.New(violations{r, slog.Default().Handler()}) }

// violations is a log handler that notes permission violations.
type violations struct {
	of *refusals
	slog.Handler
}

func (v violations) Handle(ctx context.Context, r slog.Record) error {
	r.Attrs(func(attr slog.Attr) bool {
		if text := attr.Value.String(); strings.Contains(strings.ToLower(text), violation) {
			v.of.mu.Lock()
			defer v.of.mu.Unlock()
			v.of.all = append(v.of.all, "the test: "+text)
		}
		return true
	})
	return v.Handler.Handle(ctx, r)
}

func (v violations) WithAttrs(attrs []slog.Attr) slog.Handler {
	return violations{v.of, v.Handler.WithAttrs(attrs)}
}

func (v violations) WithGroup(name string) slog.Handler {
	return violations{v.of, v.Handler.WithGroup(name)}
}

// MayBeRefused makes the test accept that servers refuse subjects to the fleet's connections. Only tests in which a
// role tries something without the right to do so may call it.
func (f *Fleet) MayBeRefused() { f.mayBeRefused = true }

// checkViolations fails the test if a server refused a subject to a process of the fleet or to the test.
func (f *Fleet) checkViolations() {
	f.TB.Helper()
	if f.mayBeRefused {
		return
	}
	f.refused.mu.Lock()
	refused := slices.Clone(f.refused.all)
	f.refused.mu.Unlock()
	for _, p := range f.processes {
		for line := range strings.Lines(p.Log()) {
			if strings.Contains(strings.ToLower(line), violation) {
				refused = append(refused, p.role+" "+p.Name+": "+strings.TrimSpace(line))
			}
		}
	}
	const shown = 10
	if len(refused) > 0 {
		f.TB.Errorf("servers refused %d subjects that roles use, for example\n    %s", len(refused),
			strings.Join(refused[:min(len(refused), shown)], "\n    "))
	}
}
