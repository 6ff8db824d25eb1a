package coordinator

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/protocol"
)

// taken takes n slots for a tenant.
func taken(t *testing.T, s *readSlots, tenant string, n int) (release []func()) {
	t.Helper()
	for range n {
		r, err := s.take(t.Context(), tenant)
		if err != nil {
			t.Fatalf("tenant %s gets no slot: %v", tenant, err)
		}
		release = append(release, r)
	}
	return release
}

// waits starts to wait for a slot, and returns once the wait has begun.
func waits(t *testing.T, s *readSlots, tenant string) (got chan error) {
	t.Helper()
	s.mu.Lock()
	before := len(s.waiting)
	s.mu.Unlock()
	got = make(chan error, 1)
	go func() {
		_, err := s.take(t.Context(), tenant)
		got <- err
	}()
	eventually.Holds(t, 5*time.Second, "the read waits for a slot", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.waiting) > before
	})
	return got
}

func TestOneTenantLeavesReadSlotsToOthers(t *testing.T) {
	t.Parallel()
	s := newReadSlots(8)
	taken(t, s, "many", 6)
	more := waits(t, s, "many")
	taken(t, s, "few", 2)
	wantCode(t, <-more, protocol.ResourceExhausted, protocol.ReasonTooManyReads, "")
	if s.total != 8 || len(s.waiting) != 0 {
		t.Errorf("%d slots are taken and %d reads wait, want 8 and none", s.total, len(s.waiting))
	}
}

func TestAFreeReadSlotGoesToTheTenantWithTheFewest(t *testing.T) {
	t.Parallel()
	s := newReadSlots(4)
	release := taken(t, s, "many", 3)
	taken(t, s, "some", 1)
	first, second := waits(t, s, "many"), waits(t, s, "new")
	release[0]()
	if err := <-second; err != nil {
		t.Errorf("the tenant without a slot gets %v", err)
	}
	release[1]()
	if err := <-first; err != nil {
		t.Errorf("the tenant with many slots gets %v once it is its turn", err)
	}
	for _, r := range release[2:] {
		r()
	}
	if s.total != 3 || s.running["many"] != 1 {
		t.Errorf("%d slots are taken, %d by the tenant with many, want 3 and 1", s.total, s.running["many"])
	}
}

// One tenant already has as many slots as a tenant may have, and floods a coordinator with reads. Another tenant's read
// is answered.
func TestAFloodOfReadsOfOneTenantDelaysNobodyElse(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	var c *coordinator
	defer d.run(Config{Name: "c1", made: func(made *coordinator) { c = made }})()
	d.ready("a")
	following := c.reads.following
	taken(t, following, "hostile", following.share())
	query := protocol.Encode(&protocol.Query{Version: protocol.Version, Sandbox: "a"})
	nc := d.wire().nc
	for range 1000 {
		m := nats.NewMsg(protocol.APISubject("hostile", protocol.EndpointBatches))
		m.Header.Set(protocol.HeaderContentType, protocol.ContentMsgpack)
		m.Data = query
		if err := nc.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if r := d.mustQuery(protocol.EndpointBatches, protocol.Query{Sandbox: "a"}); len(r.Batches.Batches) == 0 {
		t.Error("the page of the other tenant is empty")
	}
	if took := time.Since(began); took >= readWithin {
		t.Errorf("the read of the other tenant took %s", took)
	}
}

// Each read of a sandbox that memory does not have asks NATS. A tenant can name any number of such sandboxes.
func TestReadsOfUnknownSandboxesAreLimited(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	var c *coordinator
	defer d.run(Config{Name: "c1", made: func(made *coordinator) { c = made }})()
	d.ready("a")
	unknown := c.reads.unknown
	taken(t, unknown, "hostile", unknown.share())
	endpoints := []string{protocol.EndpointGet, protocol.EndpointExecs, protocol.EndpointEvents}
	for _, endpoint := range endpoints {
		for _, sandbox := range []string{"name", "01jx2g3h4j5k6m7n8p9qrstvwx"} {
			_, err := d.conn.Query(t.Context(), "hostile", endpoint, &protocol.Query{Sandbox: sandbox})
			wantCode(t, err, protocol.ResourceExhausted, protocol.ReasonTooManyReads, "")
			_, err = d.conn.Query(t.Context(), "other", endpoint, &protocol.Query{Sandbox: sandbox})
			if code := protocol.CodeOf(err); err != nil && code != protocol.NotFound {
				t.Errorf("%s: the read of another tenant is answered with %v", endpoint, err)
			}
		}
	}
	taken(t, unknown, "default", unknown.most-unknown.share())
	for _, endpoint := range endpoints {
		d.mustQuery(endpoint, protocol.Query{Sandbox: "a"})
	}
}

// A read that takes too long ends and frees its slot.
func TestASlowReadIsRefused(t *testing.T) {
	t.Parallel()
	rd := &reader{following: newReadSlots(1)}
	slow := rd.inTurn(func(ctx context.Context, _ string, _ *protocol.Query) (*protocol.Reply, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	_, err := slow(t.Context(), "a", &protocol.Query{})
	wantCode(t, err, protocol.ResourceExhausted, protocol.ReasonTooManyReads, "")
	taken(t, rd.following, "a", 1)
}
