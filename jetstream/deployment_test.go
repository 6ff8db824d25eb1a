package jetstream_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
)

// lockTTL is short, so that leases end while a test waits.
const lockTTL = 3 * time.Second

// deployment is a provisioned set of assets on real servers.
type deployment struct {
	servers []*embedded.Server
	assets  jetstream.Assets
	tenant  string // the test's own tenant
}

var (
	quiet   = slog.New(slog.DiscardHandler)
	cluster struct {
		once    sync.Once
		dir     string
		servers []*embedded.Server
		err     error
		tests   atomic.Int64
	}
)

func TestMain(m *testing.M) {
	if config := os.Getenv(serverProcess); config != "" {
		serve(config)
	}
	eventually.InMemory()
	// Tests spend most of their time waiting for elections and for the ends of leases. On small machines they therefore
	// finish sooner with more parallel tests than cores. The flag -parallel overrides this number.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	code := m.Run()
	for _, s := range cluster.servers {
		s.Stop()
	}
	if cluster.dir != "" {
		if err := os.RemoveAll(cluster.dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// conform runs a test against a single server of its own that syncs each write, and against a cluster of three that all
// tests share.
func conform(t *testing.T, test func(t *testing.T, d *deployment)) {
	t.Helper()
	t.Parallel()
	conformAlone(t, test)
}

// conformAlone is like conform, but no other test runs at the same time. Tests use it if they must not share a
// deployment's request queue with other tests.
func conformAlone(t *testing.T, test func(t *testing.T, d *deployment)) {
	t.Helper()
	t.Run("server", func(t *testing.T) {
		t.Parallel()
		test(t, startServer(t, jetstream.Assets{LockTTL: lockTTL}))
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		test(t, sharedCluster(t))
	})
}

func startServer(t testing.TB, a jetstream.Assets) *deployment {
	t.Helper()
	s, err := embedded.Start(embedded.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	d := &deployment{servers: []*embedded.Server{s}, assets: a, tenant: "t1"}
	t.Cleanup(func() { d.servers[0].Stop() })
	d.provision(t)
	return d
}

func sharedCluster(t testing.TB) *deployment {
	t.Helper()
	cluster.once.Do(func() {
		if cluster.dir, cluster.err = os.MkdirTemp("", "boxfleet-jetstream-"); cluster.err == nil {
			cluster.servers, cluster.err = embedded.StartCluster(cluster.dir, 3)
		}
	})
	if cluster.err != nil {
		t.Fatal(cluster.err)
	}
	d := &deployment{servers: cluster.servers, assets: jetstream.Assets{Replicas: 3, LockTTL: lockTTL}}
	d.tenant = fmt.Sprintf("t%d", cluster.tests.Add(1))
	d.provision(t)
	return d
}

// startCluster runs a cluster that the test may break.
func startCluster(t testing.TB) *deployment {
	t.Helper()
	servers, err := embedded.StartCluster(t.TempDir(), 3)
	if err != nil {
		t.Fatal(err)
	}
	d := &deployment{servers: servers, assets: jetstream.Assets{Replicas: 3, LockTTL: lockTTL}, tenant: "t1"}
	t.Cleanup(func() {
		for _, s := range d.servers {
			s.Stop()
		}
	})
	d.provision(t)
	return d
}

func (d *deployment) provision(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := d.conn(t).Provision(ctx, d.assets); err != nil {
		t.Fatal(err)
	}
}

func (d *deployment) url() string {
	urls := make([]string, len(d.servers))
	for i, s := range d.servers {
		urls[i] = s.ClientURL()
	}
	return strings.Join(urls, ",")
}

// conn returns a new connection over TCP that is closed at the end of the test.
func (d *deployment) conn(t testing.TB) *jetstream.Conn {
	t.Helper()
	return d.connTo(t, d.url())
}

func (d *deployment) connTo(t testing.TB, url string) *jetstream.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c, err := jetstream.Connect(ctx, jetstream.Config{URL: url, Logger: quiet, Options: func(o *nats.Options) {
		o.IgnoreDiscoveredServers = true // connections to discovered addresses would bypass a test's proxy
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// opened returns a connection that has read its deployment.
func (d *deployment) opened(t testing.TB) *jetstream.Conn {
	t.Helper()
	c := d.conn(t)
	if err := c.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

// raw returns a plain NATS connection, for operations that Boxfleet's own connection never does.
func (d *deployment) raw(t testing.TB) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(d.url(), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// restart stops the single server and starts it again with the same port and store. It returns the time at which the
// server was running again.
func (d *deployment) restart(t testing.TB) time.Time {
	t.Helper()
	d.servers[0].Stop()
	s, err := d.servers[0].Restart()
	if err != nil {
		t.Fatal(err)
	}
	d.servers[0] = s
	return time.Now()
}

// receive waits for a value from a channel.
func receive[T any](t testing.TB, within time.Duration, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(within):
		t.Fatalf("%s did not come within %s", what, within)
		panic("unreachable")
	}
}

// background runs f until the test ends, and waits for it to return.
func background(t testing.TB, f func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) &&
			protocol.CodeOf(err) != protocol.Cancelled {
			t.Errorf("a background function failed: %v", err)
		}
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantError checks the code and reason of an error; reason "" accepts any reason.
func wantError(t testing.TB, err error, code protocol.Code, reason string) {
	t.Helper()
	var typed *protocol.Error
	if !errors.As(err, &typed) {
		t.Fatalf("want %s %s, got %v of type %T", code, reason, err, err)
	}
	if typed.Code != code || reason != "" && typed.Reason != reason {
		t.Fatalf("want %s %s, got %s %s: %v", code, reason, typed.Code, typed.Reason, err)
	}
}

// journal returns a writer's journal of a sandbox.
func journal(c *jetstream.Conn, tenant, sandbox, writer string) *jetstream.Journal {
	return c.Journal(jetstream.JournalConfig{Tenant: tenant, Sandbox: sandbox, Writer: writer, KeepEnded: 1 << 20})
}

func becomeReady(s *protocol.State, _ time.Time) ([]protocol.Event, error) {
	if s.Exists() {
		return nil, nil
	}
	return []protocol.Event{
		{
			Kind:    protocol.SandboxAccepted,
			Request: "r1",
			Details: &protocol.SandboxDetails{Spec: &protocol.SandboxSpec{Image: "x"}},
		},
		{Kind: protocol.SandboxAssigned, Details: &protocol.SandboxDetails{Worker: "w1", HostID: "h1", Generation: 1}},
		{Kind: protocol.SandboxReady, Details: &protocol.SandboxDetails{Boot: "b1"}},
	}, nil
}

// acceptExec accepts an exec, unless it was accepted already.
func acceptExec(id string) jetstream.Decide {
	return func(s *protocol.State, _ time.Time) ([]protocol.Event, error) {
		if s.Execs[id] != nil {
			return nil, nil
		}
		return []protocol.Event{{Kind: protocol.ExecAccepted, Exec: &protocol.ExecDetails{
			ID: id, Spec: &protocol.ExecSpec{Command: []string{"true"}},
		}}}, nil
	}
}

// readySandbox makes a sandbox that accepts execs. Its history then has three events.
func readySandbox(t testing.TB, c *jetstream.Conn, tenant, sandbox string) {
	t.Helper()
	_, err := journal(c, tenant, sandbox, "k1").Do(t.Context(), becomeReady)
	must(t, err)
}

// readHistory reads a sandbox's entire log from the leader and checks that it is one ordered history: numbers from 1
// without gap or repeat, each event legal, each exec accepted once.
func readHistory(t testing.TB, c *jetstream.Conn, tenant, sandbox string) (*protocol.State, []*protocol.Batch) {
	t.Helper()
	batches, err := c.HistoryTail(t.Context(), tenant, sandbox, 0)
	must(t, err)
	s, accepted := &protocol.State{}, map[string]int{}
	for _, b := range batches {
		for i := range b.Events {
			e := &b.Events[i]
			if e.Sequence != s.Sandbox.Sequence+1 {
				t.Fatalf("record %d by %s: event %d follows event %d",
					b.Record, b.Writer, e.Sequence, s.Sandbox.Sequence)
			}
			if err := s.Apply(e); err != nil {
				t.Fatalf("record %d by %s: %v", b.Record, b.Writer, err)
			}
			if e.Kind == protocol.ExecAccepted {
				if accepted[e.Exec.ID]++; accepted[e.Exec.ID] > 1 {
					t.Fatalf("exec %s is accepted twice", e.Exec.ID)
				}
			}
		}
	}
	return s, batches
}

// same fails the test if the two values differ in JSON.
func same(t testing.TB, what string, got, want any) {
	t.Helper()
	g, err := json.Marshal(got)
	must(t, err)
	w, err := json.Marshal(want)
	must(t, err)
	if string(g) != string(w) {
		t.Fatalf("%s differ:\n got %.2000s\nwant %.2000s", what, g, w)
	}
}
