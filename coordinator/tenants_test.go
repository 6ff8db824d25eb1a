package coordinator

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// allTenants reads all pages of the list of tenants. Any coordinator may answer.
func (d *deployment) allTenants(limit int) (all []*protocol.Tenant, pages int) {
	d.t.Helper()
	for q := (protocol.Query{Limit: limit}); ; pages++ {
		reply, err := d.conn.Query(d.t.Context(), "default", protocol.EndpointTenants, &q)
		if err != nil {
			d.t.Fatal(err)
		}
		if all = append(all, reply.Tenants...); reply.Next == "" {
			return all, pages + 1
		}
		q = protocol.Query{Limit: limit, Page: reply.Next}
	}
}

// Thousands of tenants, some with many sandboxes that wait, are listed in pages, each of which fits into a message.
func TestThousandsOfTenantsAreListedInPages(t *testing.T) {
	t.Parallel()
	const tenants, busy = 5000, 60 // the busy tenants have more sandboxes that wait than an answer names
	d := newDeployment(t)
	f := quotasOf("")
	c1, stop := d.inMemory(f.config("c1"))
	defer stop()
	d.leads(c1)
	c2, stop := d.inMemory(f.config("c2"))
	defer stop()
	waits := small()
	waits.Resolve()
	var group errgroup.Group
	group.SetLimit(32)
	for i := range tenants {
		for n := range held(i < busy) {
			group.Go(func() error {
				j := d.conn.Journal(jetstream.JournalConfig{Tenant: fmt.Sprintf("t%d", i), Sandbox: fmt.Sprint("s", n),
					Writer: "c0"})
				_, err := j.Do(t.Context(), func(*protocol.State, time.Time) ([]protocol.Event, error) {
					return []protocol.Event{{Kind: protocol.SandboxAccepted, Details: &protocol.SandboxDetails{Spec: waits}}}, nil
				})
				return err
			})
		}
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	f.write("'*': {cpu: 0.001}")
	const all = tenants + busy*protocol.MaxHeld
	d.eventually("both coordinators know the sandboxes and the quota", func() bool {
		return c1.living() == all && c2.living() == all && c1.quota("t1").CPU > 0 && c2.quota("t1").CPU > 0
	})
	for _, limit := range []int{0, 50} {
		listed, pages := d.allTenants(limit)
		t.Logf("limit %d: %d pages", limit, pages)
		for i, tenant := range listed {
			if i > 0 && listed[i-1].Tenant >= tenant.Tenant {
				t.Errorf("%s is listed after %s", tenant.Tenant, listed[i-1].Tenant)
			}
			var n int
			if _, err := fmt.Sscanf(tenant.Tenant, "t%d", &n); err != nil {
				t.Fatal(err)
			}
			waiting := held(n < busy)
			if tenant.Used.Waiting != waiting || len(tenant.Held) != min(waiting, protocol.MaxHeld) {
				t.Errorf("%s: %d sandboxes wait, and %d are named", tenant.Tenant, tenant.Used.Waiting, len(tenant.Held))
			}
		}
		if len(listed) != tenants {
			t.Errorf("%d tenants are listed, want %d", len(listed), tenants)
		}
	}
	if _, err := d.conn.Query(t.Context(), "default", protocol.EndpointTenants, &protocol.Query{Page: "x"}); protocol.
		CodeOf(err) != protocol.InvalidArgument {
		t.Errorf("a wrong page is answered with %v", err)
	}
}

func held(busy bool) int {
	if busy {
		return protocol.MaxHeld + 1
	}
	return 1
}

// living returns how many living sandboxes a coordinator knows.
func (c *coordinator) living() int {
	_, living, _ := c.counts()
	return living
}

// A coordinator that does not lead asks the leader about the use of a tenant. A tenant that asks very often gets a few
// of the leader's answers at a time, and other tenants are answered meanwhile.
func TestAFloodOfOneTenantsQueriesAsksTheLeaderFewTimesAtOnce(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	if err := d.conn.Provision(t.Context(), jetstream.Assets{}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.conn.AcquireScheduler(t.Context(), jetstream.Holder{Name: "other", Instance: "other"}); err != nil {
		t.Fatal(err)
	}
	defer d.coordinator("c1", Timing{})()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	serving, proceed, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	var asked atomic.Int64
	go func() {
		ended <- d.conn.ServeLeader(ctx, func(q *protocol.LeaderQuery) *protocol.LeaderReply {
			if q.Tenant == "hostile" {
				asked.Add(1)
				<-proceed
			}
			return &protocol.LeaderReply{Tenants: []*protocol.Tenant{{Tenant: q.Tenant}}}
		}, func() { close(serving) })
	}()
	defer func() { close(proceed); stop(); <-ended }()
	<-serving
	nc := d.wire().nc
	for range 500 {
		for _, endpoint := range []string{protocol.EndpointTenant, protocol.EndpointCheckup} {
			if err := nc.Publish(protocol.APISubject("hostile", endpoint), []byte(`{"v":1}`)); err != nil {
				t.Fatal(err)
			}
		}
	}
	d.eventually("the leader is asked", func() bool { return asked.Load() > 0 })
	if got := d.tenant("polite"); got.Tenant != "polite" {
		t.Errorf("the other tenant gets %+v", got)
	}
	if n := asked.Load(); n > reportsAtOnce+checkupsAtOnce {
		t.Errorf("the leader was asked %d times at once, want at most %d", n, reportsAtOnce+checkupsAtOnce)
	}
}
