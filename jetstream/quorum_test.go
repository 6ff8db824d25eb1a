package jetstream_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

func TestWithoutAMajorityCallsEndWithinFiveSecondsAndNameNATS(t *testing.T) {
	t.Parallel()
	d := startCluster(t)
	c, k := d.opened(t), d.opened(t)
	serving := make(chan struct{})
	background(t, func(ctx context.Context) error {
		return k.ServeReads(ctx, "0.0.1", map[string]jetstream.Endpoint{
			protocol.EndpointGet: func(ctx context.Context, _ string, _ *protocol.Query) (*protocol.Reply, error) {
				select { // waits like a coordinator that waits for the log
				case <-ctx.Done():
				case <-time.After(20 * time.Second):
				}
				return nil, ctx.Err()
			}}, func() { close(serving) })
	})
	receive(t, 20*time.Second, "the service", serving)
	must(t, c.Submit(t.Context(), d.tenant, protocol.VerbStop, "s1", "r0", "", nil))
	d.servers[1].Stop()
	d.servers[2].Stop()
	for what, f := range map[string]func() error{
		"a request": func() error { return c.Submit(t.Context(), d.tenant, protocol.VerbStop, "s1", "r1", "", nil) },
		"a read": func() error {
			_, err := c.Query(t.Context(), d.tenant, protocol.EndpointGet, &protocol.Query{Sandbox: "s1"})
			return err
		},
	} {
		eventually.Holds(t, 10*time.Second, "the client is connected again", c.Connected)
		began := time.Now()
		var err error
		eventually.Holds(t, 20*time.Second, what+" reports the missing majority", func() bool {
			err = f() // repeats the call, as a client does
			return err == nil || protocol.AsError(err).Reason == protocol.ReasonNoQuorum
		})
		took := time.Since(began)
		if protocol.CodeOf(err) != protocol.Unavailable || !strings.Contains(err.Error(), "NATS") ||
			took > 5*time.Second {
			t.Errorf("%s ended after %s with %v", what, took, err)
		}
		t.Logf("%s ended after %s: %v", what, took, err)
	}
}

func TestAFailoverDoesNotCountAsAMissingMajority(t *testing.T) {
	t.Parallel()
	d, kill := startProcesses(t)
	c := d.conn(t)
	must(t, c.Provision(t.Context(), jetstream.Assets{Replicas: 3, LockTTL: lockTTL}))
	must(t, c.Submit(t.Context(), d.tenant, protocol.VerbStop, "s1", "before", "", nil))
	kill(configLeader(t, d, protocol.StreamRequests))
	began := time.Now()
	for i := 0; ; i++ {
		err := c.Submit(t.Context(), d.tenant, protocol.VerbStop, "s1", fmt.Sprint("r", i), "", nil)
		if err == nil {
			break
		}
		if protocol.AsError(err).Reason == protocol.ReasonNoQuorum {
			t.Fatalf("a failover was reported as a missing majority after %s: %v", time.Since(began), err)
		}
		if time.Since(began) > 25*time.Second {
			t.Fatalf("no request is accepted after %s: %v", time.Since(began), err)
		}
	}
	t.Logf("requests are accepted again after %s", time.Since(began))
}

// configLeader returns the name of the server that leads a stream.
func configLeader(t *testing.T, d interface {
	conn(testing.TB) *jetstream.Conn
}, stream string) string {
	t.Helper()
	for _, s := range d.conn(t).Storage(t.Context()).Streams {
		if s.Name == stream {
			return s.Leader
		}
	}
	t.Fatalf("%s does not exist", stream)
	return ""
}

func TestStorageReportsWhereJetStreamIsDisabled(t *testing.T) {
	t.Parallel()
	d := startCluster(t)
	c := d.opened(t)
	s := c.Storage(t.Context())
	eventually.Holds(t, 20*time.Second, "all streams are in sync", func() bool {
		s = c.Storage(t.Context())
		return len(s.Problems) == 0
	})
	promise := c.Durability(s, false)
	if !strings.Contains(promise, "3 replicas") || !strings.Contains(promise, "all in sync") {
		t.Errorf("the durability with all servers: %s", promise)
	}
	for n, server := range d.servers {
		must(t, server.DisableJetStream())
		eventually.Holds(t, 20*time.Second, fmt.Sprintf("a problem, with JetStream disabled on %d", n+1), func() bool {
			s = c.Storage(t.Context())
			return len(s.Problems) > 0
		})
		t.Logf("JetStream is disabled on %d servers: %q; durability: %s", n+1, s.Problems, c.Durability(s, false))
		if promise := c.Durability(s, false); strings.Contains(promise, "survives the loss of a minority") {
			t.Errorf("the durability with JetStream disabled on %d servers: %s", n+1, promise)
		}
	}
	promise = c.Durability(s, false)
	if !strings.Contains(s.Problems[0], "disabled on every server") || !strings.HasPrefix(promise, "none now") {
		t.Errorf("with JetStream disabled on all servers: %s; durability: %s", s.Problems[0], promise)
	}
}

// The server that a client connects to may list other servers by addresses of their own network, which the client
// cannot reach.
func TestUnreachableAdvertisedServersDoNotCountAsMissing(t *testing.T) {
	t.Parallel()
	p := throughProxy(t, startCluster(t))
	p.whenServerSays(t, func(said []byte) []byte {
		return bytes.ReplaceAll(said, []byte("127.0.0.1:"), []byte("192.0.2.1:"))
	})
	var c *jetstream.Conn
	eventually.Holds(t, 30*time.Second, "the cluster lists its servers", func() bool {
		conn, err := jetstream.Connect(t.Context(), jetstream.Config{URL: p.url(), Logger: quiet})
		must(t, err)
		t.Cleanup(conn.Close)
		c = conn
		return len(conn.Servers()) >= 3
	})
	if why := c.Missing(); why != "" {
		t.Errorf("the majority counts as missing: %s", why)
	}
}
