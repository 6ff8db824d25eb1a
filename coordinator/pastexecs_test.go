package coordinator

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/seed"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// past appends n ended execs to the history of a sandbox. Each exec has 1 KiB of output.
func (d *deployment) past(sandbox string, n int) {
	d.t.Helper()
	if err := seed.Execs(d.t.Context(), d.conn, "default", sandbox,
		seed.Past{N: n, PerMessage: 20, Output: make([]byte, 1<<10)}); err != nil {
		d.t.Fatal(err)
	}
}

func (d *deployment) getExec(sandbox, id string) (*protocol.Exec, error) {
	reply, err := d.conn.Query(d.t.Context(), "default", protocol.EndpointExec,
		&protocol.Query{Sandbox: sandbox, Exec: id})
	if err != nil {
		return nil, err
	}
	return reply.Exec, nil
}

// The history has 3 MB. The reads are made before the index is stored, after it is stored, and after a restart.
func TestReadsOfPastExecsReadNoHistory(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	const execs = 2000
	conn := d.connect("c1")
	stop := d.run(Config{Name: "c1", Conn: conn, Timing: Timing{Snapshot: time.Hour}})
	d.ready("a")
	d.past("a", execs)
	d.eventually("the coordinator has folded all execs", func() bool { return d.list()["a"].TotalExecs == execs })
	check := func(when string, conn *jetstream.Conn) {
		t.Helper()
		before := conn.Received()
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				if _, err := d.getExec("a", fmt.Sprint("never-", i)); protocol.CodeOf(err) != protocol.NotFound {
					t.Errorf("%s: a read of an exec that does not exist returns %v", when, err)
				}
				x, err := d.getExec("a", seed.ID(i))
				if err != nil || x.ID != seed.ID(i) || x.State != protocol.ExecStateFinished || x.StdoutBytes != 1<<10 {
					t.Errorf("%s: a read of an exec that ended long ago returns %+v, %v", when, x, err)
				}
			})
		}
		wg.Wait()
		if n := conn.Received() - before; n > 3<<20 {
			t.Errorf("%s: 16 reads took %d bytes", when, n)
		}
	}
	check("not stored", conn)
	stop()
	conn = d.connect("c2")
	stop = d.run(Config{Name: "c2", Conn: conn, Timing: Timing{Snapshot: 50 * time.Millisecond}})
	d.eventually("the index and the snapshot are stored", func() bool {
		from, _ := d.covered()
		return d.storedExecs("a") == execs && from > d.last("a")
	})
	check("stored", conn)
	stop()
	conn = d.connect("c3")
	stop = d.run(Config{Name: "c3", Conn: conn, Timing: Timing{Snapshot: time.Hour}})
	defer func() { stop() }()
	check("after a restart", conn)
}

// While pages are read, execs end and new execs are accepted.
func TestAListOfPastExecsIsCompleteWithoutRepeats(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{Snapshot: 100 * time.Millisecond})()
	d.ready("a")
	const execs = 1500
	d.past("a", execs)
	if r := d.exec("a", "active"); r.Error != nil {
		t.Fatal(r.Error)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		for i := execs; ctx.Err() == nil; i += 20 {
			if err := seed.Execs(ctx, d.conn, "default", "a", seed.Past{N: 20, First: i}); err != nil &&
				ctx.Err() == nil {
				t.Error(err)
			}
		}
	})
	read := func(states ...string) (ids map[string]bool, last uint64) {
		ids, last = map[string]bool{}, 1<<62
		q := &protocol.Query{Sandbox: "a", Limit: 400, States: states}
		for {
			reply, err := d.conn.Query(t.Context(), "default", protocol.EndpointExecs, q)
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range reply.Execs {
				if x.AcceptSequence >= last {
					t.Fatalf("exec %s, accepted by event %d, is listed after the exec of event %d", x.ID, x.AcceptSequence, last)
				}
				ids[x.ID], last = true, x.AcceptSequence
			}
			if q.Page = reply.Next; q.Page == "" {
				return ids, last
			}
		}
	}
	for range 3 {
		ids, _ := read()
		for i := range execs {
			if !ids[seed.ID(i)] {
				t.Fatalf("%s is not in the list", seed.ID(i))
			}
		}
		if !ids["active"] {
			t.Error("the active exec is not in the list")
		}
	}
	if ids, _ := read(string(protocol.ExecStateAccepted)); len(ids) != 1 || !ids["active"] {
		t.Errorf("the accepted execs are %v, want only the active one", ids)
	}
	for _, page := range []string{"x", "x.", "x.-1", "00000000000000000001.a"} {
		_, err := d.conn.Query(t.Context(), "default", protocol.EndpointExecs,
			&protocol.Query{Sandbox: "a", Page: page})
		if e := protocol.AsError(err); e == nil || e.Field != "page" {
			t.Errorf("a query with the page token %q returns %v", page, err)
		}
	}
}

// In a sandbox with many past execs, no coordinator reads the history to decide about an exec.
func TestP3_AnExecIDOfLongAgoIsRefusedAtEveryCoordinator(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	const execs = 2000
	stop := d.coordinator("c1", Timing{Snapshot: 50 * time.Millisecond})
	d.ready("a")
	conn := d.connect("c2")
	defer d.run(Config{Name: "c2", Conn: conn, Timing: Timing{Snapshot: 50 * time.Millisecond}})()
	d.past("a", execs)
	d.eventually("the index is stored", func() bool { return d.storedExecs("a") == execs })
	stop() // now c2 decides all requests
	before := conn.Received()
	for _, i := range []int{0, 1, execs / 2, execs - 1} {
		r := d.request(protocol.VerbExec, "a", fmt.Sprint("other-", i),
			protocol.Request{ExecID: seed.ID(i), Exec: &protocol.ExecSpec{Command: []string{"true"}}})
		if !refused(r) {
			t.Errorf("another request for exec id %s is answered with %+v", seed.ID(i), r)
		}
		r = d.request(protocol.VerbExec, "a", "r-"+seed.ID(i),
			protocol.Request{ExecID: seed.ID(i), Exec: &protocol.ExecSpec{Command: []string{"true"}}})
		if r.Error != nil && !refused(r) {
			t.Errorf("a repeat of the request for exec id %s is answered with %+v", seed.ID(i), r)
		}
	}
	if r := d.exec("a", "new"); r.Error != nil {
		t.Error(r.Error)
	}
	if n := conn.Received() - before; n > 8<<20 {
		t.Errorf("9 decisions took %d bytes", n)
	}
}

func TestReadsOfPastExecsAreLimited(t *testing.T) {
	t.Parallel()
	slots := newReadSlots(1)
	release, err := slots.take(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		second, err := slots.take(t.Context(), "a")
		if err == nil {
			second()
		}
		got <- err
	}()
	release()
	if err := <-got; err != nil {
		t.Errorf("a read that waited for a slot gets %v", err)
	}
	if _, err := slots.take(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := slots.take(ctx, "a"); err == nil {
		t.Error("a read gets a slot although none is free")
	}
	_, err = slots.take(t.Context(), "a")
	if e := protocol.AsError(err); e == nil || e.Code != protocol.ResourceExhausted ||
		e.Reason != protocol.ReasonTooManyReads {
		t.Errorf("a read that waited for too long gets %v", err)
	}
}

// Many concurrent callers share few refreshes, and each caller gets everything that was in the log before its call.
func TestRefreshesOfOneSandboxAreShared(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	d.coordinator("c0", Timing{})() // makes the streams
	d.work("a", func(*protocol.State) []protocol.Event {
		return []protocol.Event{{
			Kind: protocol.SandboxAccepted, Details: &protocol.SandboxDetails{Spec: &protocol.SandboxSpec{Image: "i"}},
		}}
	})
	d.begin("a")
	conn := d.connect("reader")
	j := conn.Journal(jetstream.JournalConfig{Tenant: "default", Sandbox: "a", Writer: "c"})
	if err := j.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	var shared refreshes
	for i := range 20 {
		d.work("a", func(*protocol.State) []protocol.Event {
			return []protocol.Event{{Kind: protocol.ExecAccepted, Request: fmt.Sprint("r", i),
				Exec: &protocol.ExecDetails{ID: fmt.Sprint("x", i),
					Spec: &protocol.ExecSpec{Command: []string{"true"}}}}}
		})
		at := d.last("a")
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if err := shared.refresh(t.Context(), key{Tenant: "default", ID: "a"}, j, 10*time.Second); err != nil {
					t.Error(err)
				}
				if got := j.Position().Record; got < at {
					t.Errorf("after a refresh the journal is at record %d, and the log already had record %d", got, at)
				}
			})
		}
		wg.Wait()
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if len(shared.pending) > 1 {
		t.Errorf("refreshes of %d sandboxes are pending, want at most 1", len(shared.pending))
	}
}
