package coordinator

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// work does what a sandbox's worker does: it calls decide with the sandbox's state, and appends the returned events to
// the sandbox's history.
func (d *deployment) work(sandbox string, decide func(s *protocol.State) []protocol.Event) {
	d.t.Helper()
	j := d.conn.Journal(jetstream.JournalConfig{Tenant: "default", Sandbox: sandbox, Writer: "w1"})
	ctx, cancel := context.WithTimeout(d.t.Context(), 10*time.Second)
	defer cancel()
	if _, err := j.Do(ctx, func(s *protocol.State, _ time.Time) ([]protocol.Event, error) {
		return decide(s), nil
	}); err != nil {
		d.t.Fatal(err)
	}
}

// storedExecs returns how many execs the stored index of a sandbox has.
func (d *deployment) storedExecs(sandbox string) int {
	d.t.Helper()
	h, err := d.conn.ExecHead(d.t.Context(), "default", sandbox)
	if err == jetstream.ErrNoIndex {
		return 0
	}
	if err != nil {
		d.t.Fatal(err)
	}
	pages, err := d.conn.ExecPages(d.t.Context(), "default", sandbox, h)
	if err != nil {
		d.t.Fatal(err)
	}
	var all []jetstream.ExecEntry
	for _, p := range pages {
		all = append(all, p.Entries()...)
	}
	return len(jetstream.Merge(all, h.Entries))
}

func TestP3_AnExecIDIsNeverUsedAgain(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	stop := d.coordinator("c1", Timing{Snapshot: 50 * time.Millisecond})
	if r := d.request(protocol.VerbCreate, "a", "create",
		protocol.Request{Sandbox: &protocol.SandboxSpec{Image: "i"}}); r.Error != nil {
		t.Fatal(r.Error)
	}
	d.work("a", func(*protocol.State) []protocol.Event {
		return []protocol.Event{
			{Kind: protocol.SandboxAssigned,
				Details: &protocol.SandboxDetails{Worker: "w1", HostID: "h1", Generation: 1}},
			{Kind: protocol.SandboxReady, Details: &protocol.SandboxDetails{Boot: "b"}},
		}
	})
	exec := func(request, id string, command ...string) *protocol.Reply {
		t.Helper()
		return d.request(protocol.VerbExec, "a", request,
			protocol.Request{ExecID: id, Exec: &protocol.ExecSpec{Command: command}})
	}
	zero := 0
	const execs = keptExecs + 40 // so many that the first execs are not kept in memory
	for i := range execs {
		id := fmt.Sprint("x", i)
		if r := exec(fmt.Sprint("r", i), id, "true"); r.Error != nil || r.Exec == nil || r.Exec.ID != id {
			t.Fatalf("exec %d: %+v", i, r)
		}
		d.work("a", func(s *protocol.State) (events []protocol.Event) {
			for _, x := range s.Active() {
				events = append(events,
					protocol.Event{Kind: protocol.ExecStarted, Exec: &protocol.ExecDetails{ID: x.ID, Boot: "b"}},
					protocol.Event{Kind: protocol.ExecFinished,
						Exec: &protocol.ExecDetails{ID: x.ID, ExitCode: &zero, Inline: true}})
			}
			return events
		})
	}
	check := func(when string) {
		t.Helper()
		for _, i := range []int{0, 1, execs - 1} {
			id := fmt.Sprint("x", i)
			if r := exec(fmt.Sprint("other", i, when), id, "true"); !refused(r) {
				t.Errorf("%s: another request for exec id %s is answered with %+v", when, id, r)
			}
		}
		for _, i := range []int{0, 1} {
			id := fmt.Sprint("x", i)
			if r := exec(fmt.Sprint("r", i), id, "true"); r.Error != nil || r.Changed ||
				r.Exec.State != protocol.ExecStateFinished {
				t.Errorf("%s: a repeat of the request for exec id %s is answered with %+v", when, id, r)
			}
		}
		if r := exec("r2", "x2", "false"+when); !refused(r) {
			t.Errorf("%s: a repeat of a request with another command is answered with %+v", when, r)
		}
	}
	check("at-once")
	d.eventually("the ids are stored", func() bool {
		from, err := d.conn.ReadSnapshots(t.Context(), func(string, string, *jetstream.Snapshot) {})
		return err == nil && d.storedExecs("a") == execs && from > execs
	})
	stop()
	stop = d.coordinator("c2", Timing{Snapshot: time.Hour})
	defer stop()
	check("after-a-restart")
	reply, err := d.conn.Query(t.Context(), "default", protocol.EndpointExecs,
		&protocol.Query{Sandbox: "a", Limit: 1000})
	if err != nil || len(reply.Execs) != execs {
		t.Errorf("%d execs are listed, %v", len(reply.Execs), err)
	}
}

// One coordinator stores snapshots or the index of execs while another coordinator reads them.
func TestP3_ACoordinatorThatStartsDuringARoundOfSnapshotsKnowsUsedExecIDs(t *testing.T) {
	t.Parallel()
	for _, bucket := range []string{protocol.BucketSandboxes, protocol.BucketExecIDs} {
		t.Run(bucket, func(t *testing.T) {
			t.Parallel()
			d := newDeployment(t)
			stop := d.coordinator("c1", Timing{Snapshot: 20 * time.Millisecond})
			d.create("a", protocol.SandboxSpec{Image: "i"})
			last := uint64(0)
			run := func(from, to int) {
				t.Helper()
				d.work("a", func(s *protocol.State) []protocol.Event {
					var events []protocol.Event
					if !s.Sandbox.Assigned {
						events = []protocol.Event{
							{Kind: protocol.SandboxAssigned,
								Details: &protocol.SandboxDetails{Worker: "w1", HostID: "h1", Generation: 1}},
							{Kind: protocol.SandboxReady, Details: &protocol.SandboxDetails{Boot: "b"}},
						}
					}
					zero := 0
					for i := from; i < to; i++ {
						id := fmt.Sprint("x", i)
						events = append(events,
							protocol.Event{Kind: protocol.ExecAccepted, Request: "r-" + id,
								Exec: &protocol.ExecDetails{ID: id,
									Spec: &protocol.ExecSpec{Command: []string{"true"}}}},
							protocol.Event{Kind: protocol.ExecStarted, Exec: &protocol.ExecDetails{ID: id, Boot: "b"}},
							protocol.Event{Kind: protocol.ExecFinished,
								Exec: &protocol.ExecDetails{ID: id, ExitCode: &zero, Inline: true}})
					}
					last = s.Sandbox.Sequence + uint64(len(events))
					return events
				})
				d.eventually("all execs and the snapshot are stored", func() bool {
					stored := false
					from, err := d.conn.ReadSnapshots(t.Context(),
						func(_, _ string, s *jetstream.Snapshot) { stored = s.State.Sandbox.Sequence == last })
					return err == nil && d.storedExecs("a") == to && stored && from > 1
				})
			}
			run(0, 1)
			const execs = keptExecs + 10 // so many that the first execs are not kept in memory
			l := &line{server: d.server}
			held := make(chan struct{})
			l.hold("CONSUMER.CREATE.KV_"+bucket, func() { defer close(held); run(1, execs) })
			conn := d.connectAs(jetstream.Config{InProcess: l, Name: "c2"})
			defer d.run(Config{Name: "c2", Conn: conn, Timing: Timing{Snapshot: time.Hour}})()
			// c2 begins to read the bucket, perhaps after it has reported that it is ready. c1 has just stored execs.
			<-held
			stop()
			for _, id := range []string{"x0", "x1", "x2"} {
				r := d.request(protocol.VerbExec, "a", "other-"+id,
					protocol.Request{ExecID: id, Exec: &protocol.ExecSpec{Command: []string{"true"}}})
				if !refused(r) {
					t.Errorf("another request for exec id %s is answered with %+v", id, r)
				}
			}
		})
	}
}
