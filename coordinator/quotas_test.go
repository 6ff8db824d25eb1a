package coordinator

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// Two coordinators decide a thousand execs of one tenant at once. Exactly as many are accepted as the quota allows.
func TestTwoCoordinatorsAcceptExactlyAsManyExecsAsAQuotaAllows(t *testing.T) {
	t.Parallel()
	const limit, sandboxes, requests = 100, 10, 1000
	d := newDeployment(t)
	f := quotasOf(fmt.Sprintf("default: {execs: %d}", limit))
	var decided [2]atomic.Int64
	for i := range decided {
		cfg := f.config(fmt.Sprint("c", i))
		cfg.Probe = func(point string) {
			if point == "exec-before-append" {
				decided[i].Add(1)
			}
		}
		_, stop := d.inMemory(cfg)
		defer stop()
	}
	for i := range sandboxes {
		d.ready(fmt.Sprint("s", i))
	}
	answers := d.answers()
	run := func(round string, others func(int) bool) (accepted int) {
		var all []submitted
		for i := range requests {
			id := fmt.Sprint(round, i)
			all = append(all, d.submit(answers, "default", protocol.VerbExec, fmt.Sprint("s", i%sandboxes), id,
				execRequest(id)))
		}
		for _, a := range all {
			switch r := a.outcome(t); {
			case r.Error == nil:
				accepted++
			case r.Error.Reason != protocol.ReasonQuotaExecs || r.Error.Code != protocol.ResourceExhausted:
				t.Fatalf("an exec is answered with %v", r.Error)
			case !strings.Contains(r.Error.Message, "the quota of tenant default allows execs 100; 100 in use"):
				t.Fatalf("the refusal is %q", r.Error.Message)
			}
		}
		return accepted
	}
	if n := run("a", nil); n != limit {
		t.Errorf("%d execs are accepted, want %d", n, limit)
	}
	if u := d.tenant("default").Used; u.Execs != limit {
		t.Errorf("%d execs are in use, want %d", u.Execs, limit)
	}
	ended := 0
	for i := range sandboxes {
		id := fmt.Sprint("s", i)
		n := min(4, d.list()[id].ActiveExecs)
		d.finish(id, n)
		ended += n
	}
	d.eventually("the coordinators know the ended execs", func() bool {
		return d.tenant("default").Used.Execs == limit-ended
	})
	if n := run("b", nil); n != ended {
		t.Errorf("%d execs are accepted after %d have ended", n, ended)
	}
	for i := range decided {
		if decided[i].Load() == 0 {
			t.Errorf("coordinator %d decided none of the execs, so the test does not show a race", i)
		}
	}
}

// A sandbox waits for a host while its tenant's quota has no room. The tenant learns which limit is reached. Sandboxes
// of other tenants do not wait. Once there is room, the sandbox gets a host.
func TestASandboxWaitsForRoomInItsTenantsQuota(t *testing.T) {
	t.Parallel()
	for limit, c := range map[string]struct {
		quota, reason, text string
		spec                protocol.SandboxSpec
	}{
		"sandboxes": {"sandboxes: 2", protocol.ReasonQuotaSandboxes,
			"allows sandboxes 2; 2 in use, and this needs 1 more: delete a sandbox", protocol.SandboxSpec{}},
		"cpu": {"cpu: 1.5", protocol.ReasonQuotaCPU, "allows cpu 1.5; 1.5 in use, and this needs 0.75 more",
			protocol.SandboxSpec{CPU: 0.75}},
		"memory": {"memory: 2GiB", protocol.ReasonQuotaMemory, "allows memory 2GiB; 2GiB in use, and this needs 1GiB more",
			protocol.SandboxSpec{Memory: 1 << 30}},
		"disk": {"disk: 2GiB", protocol.ReasonQuotaDisk, "allows disk 2GiB; 2GiB in use, and this needs 1GiB more",
			protocol.SandboxSpec{Disk: 1 << 30}},
	} {
		t.Run(limit, func(t *testing.T) {
			t.Parallel()
			d := newDeployment(t)
			c1, stop := d.inMemory(quotasOf("acme: {" + c.quota + "}").config("c1"))
			defer stop()
			d.leads(c1)
			d.roomy()
			s := c.spec
			s.Image = "i"
			for i := range 3 {
				d.mustCreateAs("acme", fmt.Sprint("a", i), &s)
			}
			d.mustCreateAs("other", "b", &s)
			d.eventually("two sandboxes of acme and one of the other tenant have a host", func() bool {
				return d.assignedOf("acme") == 2 && d.assignedOf("other") == 1
			})
			d.schedulerPassed(c1)
			if n := d.assignedOf("acme"); n != 2 {
				t.Fatalf("%d sandboxes have a host", n)
			}
			waits := ""
			for _, b := range c1.projection.work.waitingForHost(nil, true) {
				waits = b.ID
			}
			got := d.tenant("acme")
			if len(got.Held) != 1 || got.Held[0].Sandbox != waits || got.Held[0].Why.Reason != c.reason ||
				!strings.Contains(got.Held[0].Why.Message, "the quota of tenant acme "+c.text) {
				t.Errorf("what waits is %+v", got.Held)
			}
			explained, err := d.conn.Query(t.Context(), "acme", protocol.EndpointExplain, &protocol.Query{Sandbox: waits})
			if err != nil || !strings.Contains(explained.Explain.Waiting, "the quota of tenant acme "+c.text) {
				t.Errorf("the explanation is %+v, %v", explained, err)
			}
			for _, id := range []string{"a0", "a1", "a2"} {
				if id != waits {
					d.removeAs("acme", id)
					break
				}
			}
			d.eventually("the sandbox that waited has a host", func() bool {
				got := d.tenant("acme")
				return len(got.Held) == 0 && got.Used.Sandboxes == 2 && got.Used.Waiting == 0
			})
		})
	}
}

// Two coordinators decide creates of one tenant, and no host takes the sandboxes. The quota limits how many sandboxes
// may wait. Exactly that many creates are accepted.
func TestTwoCoordinatorsLetExactlyAsManySandboxesWaitAsAQuotaAllows(t *testing.T) {
	t.Parallel()
	const limit, requests = 50, 1000
	d := newDeployment(t)
	f := quotasOf(fmt.Sprintf("'*': {waiting: %d}", limit))
	for i := range 2 {
		defer d.run(f.config(fmt.Sprint("c", i)))()
	}
	answers := d.answers()
	var all []submitted
	for i := range requests {
		id := fmt.Sprint("s", i)
		r := protocol.Request{Sandbox: small()}
		if i%2 == 0 {
			r.Name = fmt.Sprint("name", i)
		}
		all = append(all, d.submit(answers, "acme", protocol.VerbCreate, id, "create-"+id, r))
	}
	accepted := 0
	for _, a := range all {
		switch r := a.outcome(t); {
		case r.Error == nil:
			accepted++
		case r.Error.Reason != protocol.ReasonQuotaWaiting:
			t.Fatalf("a create is answered with %v", r.Error)
		}
	}
	if accepted != limit || d.tenant("acme").Used.Waiting != limit {
		t.Errorf("%d creates are accepted and %d wait, want %d", accepted, d.tenant("acme").Used.Waiting, limit)
	}
	d.mustCreateAs("other", "b", small())
}

// A sandbox that needs more than the whole quota of its tenant is refused at once. Its id and name stay free.
func TestASandboxThatNeverFitsAQuotaIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	c1, stop := d.inMemory(quotasOf("'*': {cpu: 2, memory: 1GiB, disk: 1GiB}").config("c1"))
	defer stop()
	d.leads(c1)
	d.roomy()
	for reason, s := range map[string]*protocol.SandboxSpec{
		protocol.ReasonQuotaCPU:    {Image: "i", CPU: 2.5, Memory: 1 << 20 * 64},
		protocol.ReasonQuotaMemory: {Image: "i", CPU: 1, Memory: 2 << 30},
		protocol.ReasonQuotaDisk:   {Image: "i", CPU: 1, Memory: 1 << 20 * 64, Disk: 2 << 30},
	} {
		var r *protocol.Reply
		d.eventually("the coordinator knows the host", func() bool {
			r = d.createAs("acme", "big", s)
			return r.Error != nil && strings.HasPrefix(r.Error.Reason, "quota")
		})
		if r.Error.Code != protocol.ResourceExhausted || r.Error.Reason != reason ||
			!strings.Contains(r.Error.Message, "waiting would not help") {
			t.Errorf("a create is answered with %v, want %s", r.Error, reason)
		}
	}
	d.mustCreateAs("acme", "big", &protocol.SandboxSpec{Image: "i", CPU: 2, Memory: 1 << 30, Disk: 1 << 30})
	d.eventually("a sandbox of exactly the quota has a host", func() bool { return d.assignedOf("acme") == 1 })
}

// A changed file applies without a restart. If a tenant uses more than its new quota allows, nothing ends, and nothing
// new is accepted.
func TestAChangedQuotaAppliesWithoutARestart(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	f := quotasOf("default: {sandboxes: 2, execs: 3}")
	c1, stop := d.inMemory(f.config("c1"))
	defer stop()
	d.leads(c1)
	d.roomy()
	for i := range 3 {
		d.create(fmt.Sprint("s", i), *small())
	}
	d.eventually("two sandboxes have a host", func() bool { return d.assignedOf("default") == 2 })
	f.write("default: {sandboxes: 3, execs: 3}")
	d.eventually("the third has one too", func() bool { return d.assignedOf("default") == 3 })
	d.workAs("default", "s0", protocol.Event{Kind: protocol.SandboxReady, Details: &protocol.SandboxDetails{Boot: "b"}})
	d.eventually("a sandbox is ready", func() bool { return d.list()["s0"].State == protocol.StateReady })
	for i := range 3 {
		if r := d.exec("s0", fmt.Sprint("x", i)); r.Error != nil {
			t.Fatal(r.Error)
		}
	}
	f.write("default: {sandboxes: 1, execs: 1}")
	d.eventually("the lower quota is read", func() bool { return d.tenant("default").Quota.Sandboxes == 1 })
	if r := d.exec("s0", "y"); r.Error == nil || !strings.Contains(r.Error.Message, "allows execs 1; 3 in use") {
		t.Errorf("an exec beyond the lower quota is answered with %+v", r)
	}
	if r := d.exec("s0", "x1"); r.Error != nil { // a repeat of an accepted request
		t.Errorf("a repeat of an accepted exec is answered with %v", r.Error)
	}
	d.create("s3", *small())
	d.schedulerPassed(c1)
	got := d.tenant("default")
	if got.Used.Sandboxes != 3 || got.Used.Execs != 3 || got.Used.Waiting != 1 || len(got.Held) != 1 {
		t.Errorf("with the lower quota the tenant is %+v", got)
	}
	f.write("default: {sandboxes: -1}")
	d.schedulerPassed(c1)
	if q := d.tenant("default").Quota; q.Sandboxes != 1 {
		t.Errorf("after a wrong file the quota is %+v", q)
	}
	f.write("")
	d.eventually("without a quota the fourth has a host", func() bool { return d.assignedOf("default") == 4 })
}

// After a restart and after a failover, a coordinator decides nothing until its counts agree with the log.
func TestTheCountsOfAQuotaSurviveARestartAndAFailover(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	f := quotasOf("default: {execs: 2, waiting: 1}")
	first, stopFirst := d.inMemory(f.config("c1"))
	d.leads(first)
	d.ready("a")
	d.eventually("the sandbox no longer waits", func() bool { return d.tenant("default").Used.Waiting == 0 })
	d.create("waits", *small())
	for _, id := range []string{"x", "y"} {
		if r := d.exec("a", id); r.Error != nil {
			t.Fatal(r.Error)
		}
	}
	full := func(when string) {
		t.Helper()
		exec := d.submit(d.answers(), "default", protocol.VerbExec, "a", "z-"+when, execRequest("z-"+when))
		if r := exec.outcome(t); r.Error == nil || r.Error.Reason != protocol.ReasonQuotaExecs {
			t.Errorf("after %s, an exec is answered with %+v", when, r)
		}
		if r := d.createAs("default", "more-"+when, small()); r.Error == nil ||
			r.Error.Reason != protocol.ReasonQuotaWaiting {
			t.Errorf("after %s, a create is answered with %+v", when, r)
		}
	}
	full("start")
	stopFirst()
	second, stopSecond := d.inMemory(f.config("c2"))
	full("restart")
	d.leads(second)
	third, stopThird := d.inMemory(f.config("c3"))
	defer stopThird()
	stopSecond()
	full("failover")
	d.leads(third)
	d.finish("a", 1)
	d.eventually("an exec is accepted after one has ended", func() bool {
		return d.exec("a", fmt.Sprint("w", time.Now().UnixNano())).Error == nil
	})
	full("end")
}

// Two coordinators have different files. The quotas of the leader apply at both coordinators.
func TestTheQuotasOfTheLeaderApplyEverywhere(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	leader, stop := d.inMemory(quotasOf("default: {execs: 1}").config("c1"))
	d.leads(leader)
	standby, stopStandby := d.inMemory(quotasOf("default: {execs: 2}").config("c2"))
	defer stopStandby()
	d.eventually("the standby knows the leader's quotas", func() bool { return standby.quota("default").Execs == 1 })
	d.ready("a")
	for i := range 20 {
		if r := d.exec("a", fmt.Sprint("x", i)); (r.Error == nil) != (i == 0) {
			t.Errorf("exec %d is answered with %+v", i, r)
		}
	}
	stop()
	d.leads(standby)
	if r := d.exec("a", "y"); r.Error != nil {
		t.Errorf("with the quotas of the new leader, a second exec is answered with %v", r.Error)
	}
	if r := d.exec("a", "z"); r.Error == nil {
		t.Error("a third exec is accepted")
	}
}

// A request that a quota limits waits while no coordinator leads. Requests of other tenants do not.
func TestWithoutALeaderOnlyTenantsWithAQuotaWait(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	if err := d.conn.Provision(t.Context(), jetstream.Assets{}); err != nil {
		t.Fatal(err)
	}
	lease, err := d.conn.AcquireScheduler(t.Context(), jetstream.Holder{Name: "other", Instance: "other"})
	if err != nil {
		t.Fatal(err)
	}
	defer d.run(quotasOf("acme: {waiting: 2}").config("c1"))()
	answers, reason := d.answers(), d.waitReason()
	var limited []submitted // for two sandboxes: a failure that concerns only one sandbox never closes the gate
	for _, id := range []string{"a0", "a1"} {
		a := d.submit(answers, "acme", protocol.VerbCreate, id, "create-"+id, protocol.Request{Sandbox: small()})
		if r := a.hears(t); r.Waiting == nil || r.Waiting.Reason != protocol.ReasonNoLeader {
			t.Errorf("a create that needs a leader is answered with %+v", r)
		}
		limited = append(limited, a)
	}
	for i := range 3 {
		d.mustCreateAs("other", fmt.Sprint("b", i), small())
	}
	if why := reason(); why != "" {
		t.Errorf("all requests wait because of %s", why)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, a := range limited {
		if r := a.outcome(t); r.Error != nil {
			t.Errorf("once a coordinator leads, the create is answered with %v", r.Error)
		}
	}
}

func (d *deployment) upload(tenant string, size int, fill byte) error {
	content := strings.Repeat(string(fill), size)
	return d.conn.TenantReads(tenant).Upload(d.t.Context(), digestOf(content), strings.NewReader(content))
}

// Uploads of a tenant are refused beyond its quota, even if two coordinators receive them at once. An upload of a tree
// that is already stored needs no room.
func TestUploadsBeyondAQuotaAreRefused(t *testing.T) {
	t.Parallel()
	const size, limit, uploads = 300 << 10, 1 << 20, 12
	d := newDeployment(t)
	defer d.ledByTheFirst(quotasOf(fmt.Sprintf("acme: {uploads: %d}", limit)))()
	stored, group := atomic.Int64{}, sync.WaitGroup{}
	for i := range uploads {
		group.Go(func() {
			switch err := d.upload("acme", size, byte('a'+i)); {
			case err == nil:
				stored.Add(1)
			case protocol.AsError(err).Reason != protocol.ReasonQuotaUploads:
				t.Errorf("an upload fails with %v", err)
			}
		})
	}
	group.Wait()
	// While uploads grow at the same time, each may be refused because of the room that the others have claimed. So try
	// again, one after another.
	for i := range uploads {
		if d.upload("acme", size, byte('a'+i)) == nil {
			stored.Add(1)
		}
	}
	kept := 0
	for i := range uploads {
		there, err := d.conn.HasBlob(t.Context(), "acme", digestOf(strings.Repeat(string(rune('a'+i)), size)))
		if err != nil {
			t.Fatal(err)
		}
		if there {
			kept++
		}
	}
	if kept != limit/size {
		t.Errorf("%d uploads are stored, want %d", kept, limit/size)
	}
	d.eventually("the use is counted", func() bool {
		u := d.tenant("acme").Used.Uploads
		return u != nil && *u == protocol.Bytes(kept*size)
	})
	err := d.upload("acme", limit-kept*size+1, 'z')
	if e := protocol.AsError(err); e == nil || e.Reason != protocol.ReasonQuotaUploads ||
		!strings.Contains(e.Message, "the quota of tenant acme allows uploads 1MiB") {
		t.Errorf("an upload of one byte too many fails with %v", err)
	}
	if err := d.upload("acme", limit-kept*size, 'z'); err != nil {
		t.Errorf("an upload of exactly the free room fails with %v", err)
	}
	if err := d.upload("acme", limit-kept*size, 'z'); err != nil {
		t.Errorf("an upload of a stored tree fails with %v", err)
	}
	if err := d.upload("other", 2*limit, 'y'); err != nil {
		t.Errorf("an upload of another tenant fails with %v", err)
	}
}

// A claim counts until the log shows the request, or until the claim is dropped. A repeated claim counts once.
func TestAClaimCountsUntilItsEventIsFolded(t *testing.T) {
	t.Parallel()
	p := newProjection(nil, nil, "c1", 0)
	quota := protocol.Quota{Execs: 2, Waiting: 1}
	exec := func(id string) *protocol.QuotaClaim {
		return &protocol.QuotaClaim{Tenant: "t", Sandbox: "s", Exec: id}
	}
	take := func(c *protocol.QuotaClaim, want string) {
		t.Helper()
		over := p.work.tenants.take(c, quota, 0, time.Minute)
		if over == nil && want != "" || over != nil && over.Reason != want {
			t.Errorf("claim %+v: %v, want %q", c, over, want)
		}
	}
	take(exec("x"), "")
	take(exec("x"), "")
	take(exec("y"), "")
	take(exec("z"), protocol.ReasonQuotaExecs)
	p.work.tenants.drop(nameOfClaim(exec("y")))
	take(exec("z"), "")
	folded := handle("s", protocol.StateReady)
	folded.ActiveExecs = 1
	p.mu.Lock()
	p.work.tenants.landClaimsLocked(key{Tenant: "t", ID: "s"}, []protocol.Event{{Kind: protocol.ExecAccepted,
		Exec: &protocol.ExecDetails{ID: "x"}}})
	p.mu.Unlock()
	p.put(folded, 1)
	take(exec("v"), protocol.ReasonQuotaExecs) // x is in the log, and z is claimed
	if names := p.work.tenants.expired(time.Hour); len(names) != 1 || names[0].exec != "z" {
		t.Errorf("the expired claims are %v", names)
	}
	take(&protocol.QuotaClaim{Tenant: "t", Sandbox: "a"}, "")
	take(&protocol.QuotaClaim{Tenant: "t", Sandbox: "b"}, protocol.ReasonQuotaWaiting)
	p.work.tenants.forgetClaims()
	take(&protocol.QuotaClaim{Tenant: "t", Sandbox: "b"}, "")
	if n := len(p.work.tenants.claimed); n != 1 {
		t.Errorf("claims of %d tenants are counted", n)
	}
}

// The output of a tenant stays within its quota, and the output of another tenant is kept.
func TestATenantsOldestOutputIsRemovedBeyondItsQuota(t *testing.T) {
	t.Parallel()
	const chunk = 64 << 10
	quota := func(tenant string) int64 { return map[string]int64{"a": 50 * chunk, "c": 500 * chunk}[tenant] }
	u, record := newOutputUsage(0), uint64(0)
	for _, tenant := range []string{"a", "b", "c"} {
		printed(u, &record, key{Tenant: tenant, ID: "s"}, 100)
	}
	cut := func(l outputLimits) map[string]int64 {
		bytes := map[string]int64{}
		for _, c := range u.cuts(l, 300*chunk) {
			bytes[c.Tenant] += c.bytes / chunk
		}
		return bytes
	}
	if got := cut(outputLimits{quota: quota}); len(got) != 1 || got["a"] != 57 {
		t.Errorf("%v chunks are removed, want 57 of tenant a", got)
	}
	if got := cut(outputLimits{Tenant: 80 * chunk, quota: quota}); got["a"] != 57 || got["b"] != 30 || got["c"] != 30 {
		t.Errorf("%v chunks are removed, want 57 of tenant a and 30 of the others, which have the lower limit", got)
	}
}
