package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/protocol"
)

// hold stops a coordinator's fold of the log at the next batch of a sandbox, until release is called.
func (d *deployment) hold(c *coordinator, sandbox string) (release func()) {
	d.t.Helper()
	held, end := make(chan struct{}), make(chan struct{})
	go c.projection.journal(key{Tenant: "default", ID: sandbox}).View(func(*protocol.State, uint64) {
		close(held)
		<-end
	})
	<-held
	return sync.OnceFunc(func() { close(end) })
}

// behind runs two coordinators. While the first coordinator leads, behind calls the function accept, which makes this
// coordinator accept requests. Then the first coordinator stops, and the second coordinator leads. Until release is
// called, the second coordinator folds none of the events that were appended since the call of accept.
func (d *deployment) behind(f *file, accept func(first *coordinator)) (second *coordinator, release, stop func()) {
	d.t.Helper()
	first, stopFirst := d.inMemory(f.config("c1"))
	d.leads(first)
	d.ready("slow")
	second, end := d.inMemory(f.config("c2"))
	d.eventually("the second coordinator knows the sandbox", func() bool {
		return second.projection.read.get(key{Tenant: "default", ID: "slow"}) != nil
	})
	release = d.hold(second, "slow")
	d.acceptedBefore("slow", 1) // here the fold stops
	accept(first)
	stopFirst()
	d.eventually("the second coordinator leads", second.elected.Load)
	return second, release, func() { release(); end() }
}

// A coordinator may begin to lead before it has folded the end of the log. It then grants no room in a quota before it
// has folded all requests that were accepted earlier.
func TestANewLeaderGrantsNoRoomBeforeItHasFoldedTheLog(t *testing.T) {
	t.Parallel()
	const limit = 20
	d := newDeployment(t)
	second, release, stop := d.behind(quotasOf(fmt.Sprintf("acme: {waiting: %d}", limit)), func(*coordinator) {
		for i := range limit {
			d.mustCreateAs("acme", fmt.Sprint("a", i), small())
		}
	})
	defer stop()
	late := d.submit(d.answers(), "acme", protocol.VerbCreate, "late", "create-late",
		protocol.Request{Sandbox: small()})
	if r := late.hears(t); r.Waiting == nil || r.Waiting.Reason != protocol.ReasonNoLeader {
		t.Errorf("before the new leader has folded the log, a create is answered with %+v", r)
	}
	select {
	case r := <-late.answer:
		if r.Waiting == nil {
			t.Errorf("before the new leader has folded the log, a create is answered with %+v", r)
		}
	case <-time.After(stalled):
	}
	release()
	d.leads(second)
	if u := d.tenant("acme").Used; u.Waiting != limit {
		t.Errorf("%d sandboxes wait, the quota allows %d", u.Waiting, limit)
	}
	if r := late.outcome(t); r.Error == nil || r.Error.Reason != protocol.ReasonQuotaWaiting {
		t.Errorf("a create beyond the quota is answered with %+v", r)
	}
}

// stalled is how long a test waits before it concludes that something does not happen.
const stalled = 2 * time.Second

// A coordinator may begin to lead before it has folded the end of the log. It then chooses no host before it has folded
// all assignments of the previous leader.
func TestANewLeaderChoosesNoHostBeforeItHasFoldedTheLog(t *testing.T) {
	t.Parallel()
	const limit = 5
	d := newDeployment(t)
	second, release, stop := d.behind(quotasOf(fmt.Sprintf("acme: {sandboxes: %d}", limit)), func(first *coordinator) {
		d.roomy()
		for i := range limit {
			d.mustCreateAs("acme", fmt.Sprint("a", i), small())
		}
		d.eventually("all sandboxes have a host", func() bool {
			return first.projection.work.tenants.used("acme").Sandboxes == limit
		})
	})
	defer stop()
	d.mustCreateAs("acme", "late", small())
	assigned := func() bool {
		batches, err := d.conn.History(t.Context(), "acme", "late", 0)
		if err != nil {
			t.Fatal(err)
		}
		return len(batches) > 1
	}
	for over, look := time.After(stalled), time.NewTicker(20*time.Millisecond); over != nil; {
		select {
		case <-look.C:
			if assigned() {
				t.Fatal("the new leader has chosen a host before it has folded the log")
			}
		case <-over:
			over = nil
		}
	}
	release()
	d.leads(second)
	d.schedulerPassed(second)
	if u := second.projection.work.tenants.used("acme"); u.Sandboxes != limit || u.Waiting != 1 {
		t.Errorf("after the new leader has folded the log, the tenant uses %+v", u)
	}
}

// The newest messages of the log may have been purged, or may not be batches. A new leader does not wait for such
// messages.
func TestANewLeaderDoesNotWaitForMessagesThatNeverArrive(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	f := quotasOf("acme: {waiting: 2}")
	first, stop := d.inMemory(f.config("c1"))
	d.leads(first)
	d.mustCreateAs("acme", "a", small())
	stop()
	d.raw(func(js natsjs.JetStream) error {
		for _, tenant := range []string{"purged", "broken"} {
			m := nats.NewMsg(protocol.AppendSubject("w1", tenant, "s"))
			m.Data = []byte("no batch")
			if _, err := js.PublishMsg(t.Context(), m); err != nil {
				return err
			}
		}
		m := nats.NewMsg(protocol.AppendSubject("w1", "purged", "last"))
		m.Data = []byte("purged")
		if _, err := js.PublishMsg(t.Context(), m); err != nil {
			return err
		}
		s, err := js.Stream(t.Context(), protocol.StreamEvents)
		if err != nil {
			return err
		}
		return s.Purge(t.Context(), natsjs.WithPurgeSubject(protocol.EventSubject("purged", "*")))
	})
	second, stop := d.inMemory(f.config("c2"))
	defer stop()
	eventually.Holds(t, 10*time.Second, "the coordinator leads", func() bool { return second.admitter.Load() != nil })
	d.mustCreateAs("acme", "b", small())
	if r := d.createAs("acme", "c", small()); r.Error == nil || r.Error.Reason != protocol.ReasonQuotaWaiting {
		t.Errorf("a create beyond the quota is answered with %+v", r)
	}
}

// A leader whose log was rewound restores its memory. It grants no room before it has followed the log to its end.
func TestALeaderGrantsNoRoomWhileItsMemoryIsRestored(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	c1, stop := d.inMemory(quotasOf("acme: {waiting: 1}").config("c1"))
	defer stop()
	d.leads(c1)
	from, err := c1.projection.restore(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	create := d.submit(d.answers(), "acme", protocol.VerbCreate, "a", "create-a", protocol.Request{Sandbox: small()})
	if r := create.hears(t); r.Waiting == nil || r.Waiting.Reason != protocol.ReasonNoLeader {
		t.Errorf("before the log was followed, a create is answered with %+v", r)
	}
	ctx, cancel := context.WithCancel(t.Context())
	followed := make(chan error, 1)
	go func() { followed <- c1.projection.follow(ctx, &from, func() {}) }()
	defer func() {
		cancel()
		if err := <-followed; !errors.Is(err, context.Canceled) {
			t.Errorf("the log was followed until %v", err)
		}
	}()
	if r := create.outcome(t); r.Error != nil {
		t.Errorf("once the log was followed, the create is answered with %v", r.Error)
	}
}
