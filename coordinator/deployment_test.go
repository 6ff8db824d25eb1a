package coordinator

import (
	"context"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/coordinator/placement"
	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
)

// deployment is a NATS server, and the test's connection to the server.
type deployment struct {
	t      *testing.T
	server *embedded.Server
	conn   *jetstream.Conn
}

func newDeployment(t *testing.T) *deployment {
	t.Helper()
	server, err := embedded.Start(embedded.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	d := &deployment{t: t, server: server}
	d.conn = d.connect("test")
	return d
}

func (d *deployment) connect(name string) *jetstream.Conn {
	d.t.Helper()
	return d.connectAs(jetstream.Config{InProcess: d.server, Name: name})
}

func (d *deployment) connectAs(cfg jetstream.Config) *jetstream.Conn {
	d.t.Helper()
	conn, err := jetstream.Connect(d.t.Context(), cfg)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(conn.Close)
	return conn
}

// coordinator runs a coordinator until stop is called.
func (d *deployment) coordinator(name string, timing Timing) (stop func()) {
	d.t.Helper()
	return d.run(Config{Name: name, Timing: timing})
}

// run runs a coordinator until stop is called.
func (d *deployment) run(cfg Config) (stop func()) {
	d.t.Helper()
	if cfg.Conn == nil {
		cfg.Conn = d.connect(cfg.Name)
	}
	return runUntilReady(d.t, cfg)
}

// runUntilReady runs a coordinator, and returns when it is ready.
func runUntilReady(t testing.TB, cfg Config) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	cfg.Assets.Duplicates, cfg.OnReady = duplicates, func() { close(ready) }
	go func() { done <- Run(ctx, cfg) }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatalf("coordinator %s: %v", cfg.Name, err)
	}
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("coordinator %s: %v", cfg.Name, err)
		}
	}
}

// request submits a request, and repeats the request until an answer comes.
func (d *deployment) request(verb, sandbox, id string, r protocol.Request) *protocol.Reply {
	d.t.Helper()
	answers, err := d.conn.Answers()
	if err != nil {
		d.t.Fatal(err)
	}
	defer answers.Close()
	inbox, answer, stop := answers.Expect(id)
	defer stop()
	r.Version = protocol.Version
	// An answer is lost with a coordinator that a test stops, so the request is repeated. It is not repeated sooner: if
	// two copies are decided at once, the second one's answer, which says that it changed nothing, may come first.
	for deadline := time.Now().Add(30 * time.Second); ; {
		if err := d.conn.Submit(d.t.Context(), "default", verb, sandbox, id, inbox, protocol.Encode(&r)); err != nil {
			d.t.Fatal(err)
		}
		if reply := outcomeWithin(answer, 2*time.Second); reply != nil {
			return reply
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("a %s of sandbox %s is not answered", verb, sandbox)
		}
	}
}

// outcomeWithin returns the outcome of a request, or nil if it does not arrive in time. An interim reply, which says
// why the request waits, is not an outcome.
func outcomeWithin(answer <-chan *protocol.Reply, within time.Duration) *protocol.Reply {
	for timeout := time.After(within); ; {
		select {
		case reply := <-answer:
			if !reply.Interim() {
				return reply
			}
		case <-timeout:
			return nil
		}
	}
}

// refused reports whether a request was refused because an id was used before.
func refused(r *protocol.Reply) bool { return r.Error != nil && r.Error.Is(protocol.ErrAlreadyExists) }

func (d *deployment) list(states ...string) map[string]*protocol.Sandbox {
	d.t.Helper()
	reply, err := d.conn.Query(d.t.Context(), "default", protocol.EndpointList,
		&protocol.Query{States: states, Limit: 1000})
	if err != nil {
		d.t.Fatal(err)
	}
	all := map[string]*protocol.Sandbox{}
	for _, b := range reply.Sandboxes {
		all[b.ID] = b
	}
	return all
}

// eventually waits until check holds.
func (d *deployment) eventually(what string, check func() bool) {
	d.t.Helper()
	eventually.Holds(d.t, 15*time.Second, what, check)
}

// host returns a host with ten slots and 10 GiB, of which n slots are taken by sandboxes of 1 GiB.
func host(worker string, n int) *protocol.Host {
	return &protocol.Host{
		Worker: worker, HostID: "h-" + worker, Instance: "i-" + worker, State: protocol.HostReady,
		Slots: 10, Memory: 10 << 30, CPU: 4, Sandboxes: n, UsedMem: protocol.Bytes(n) << 30,
		Firewall: protocol.FirewallNFTables, Mounts: []string{"/srv/cache"}, LeaseTTL: protocol.Duration(time.Second),
	}
}

const (
	appImage = "docker.io/library/app:latest"
	dbDigest = "registry.local/db@sha256:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
)

// reporting returns a host that reports exactly these images.
func reporting(worker string, n int, reports placement.Images, names ...string) *protocol.Host {
	h := host(worker, n)
	h.Images = true
	reports[worker] = &protocol.HostImages{Worker: worker, Instance: h.Instance, Listed: true, Names: names}
	return h
}
