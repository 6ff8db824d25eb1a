package coordinator

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

func TestWhatIsOwedToASandboxFollowsFromItsState(t *testing.T) {
	t.Parallel()
	at, later := time.Unix(100, 0), time.Unix(200, 0)
	spec := protocol.SandboxSpec{CreateTimeout: protocol.Duration(time.Minute), Grace: protocol.Duration(time.Second)}
	hooked := spec
	hooked.OnDelete = &protocol.Hook{Timeout: protocol.Duration(time.Hour)}
	for name, c := range map[string]struct {
		box  protocol.Sandbox
		want owing
	}{
		"a pending sandbox without a host": {
			protocol.Sandbox{State: protocol.StatePending, StateChangedAt: at}, owing{protocol.OwedPlacement, at, 0}},
		"one that its worker prepares": {
			protocol.Sandbox{State: protocol.StatePending, Assigned: true, AssignedAt: later, StateChangedAt: at},
			owing{protocol.OwedCreate, later, time.Minute}},
		"one whose host does not answer": {
			protocol.Sandbox{State: protocol.StatePending, Assigned: true, AssignedAt: later, Unreachable: true},
			owing{protocol.OwedCreate, later, 0}},
		"one that is ready": {protocol.Sandbox{State: protocol.StateReady, Desired: protocol.StateReady}, owing{}},
		"one that is stopped": {
			protocol.Sandbox{State: protocol.StateStopped, Desired: protocol.StateStopped}, owing{}},
		"one that should stop": {
			protocol.Sandbox{State: protocol.StateReady, Desired: protocol.StateStopped, StateChangedAt: at},
			owing{protocol.OwedStop, time.Time{}, time.Second}},
		"one that restarts": {
			protocol.Sandbox{State: protocol.StateReady, Desired: protocol.StateReady, Error: protocol.ErrInternal},
			owing{protocol.OwedRestart, time.Time{}, 0}},
		"one that is being removed": {
			protocol.Sandbox{State: protocol.StateDeleting, StateChangedAt: at}, owing{protocol.OwedDelete, at, time.Second}},
	} {
		c.box.Spec = spec
		if got := dueOf(&c.box); got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
	box := protocol.Sandbox{State: protocol.StateDeleting, Spec: hooked}
	if got := dueOf(&box).within; got != time.Hour+time.Second {
		t.Errorf("a delete with a hook may take %s", got)
	}
	timed := protocol.ExecSpec{Timeout: protocol.Duration(time.Minute), Grace: protocol.Duration(time.Second)}
	ready, pending := &protocol.Sandbox{State: protocol.StateReady}, &protocol.Sandbox{State: protocol.StatePending}
	for _, c := range []struct {
		box  *protocol.Sandbox
		exec protocol.Exec
		want owing
	}{
		{ready, protocol.Exec{State: protocol.ExecStateAccepted, AcceptedAt: at}, owing{protocol.OwedExecStart, at, 0}},
		{pending, protocol.Exec{State: protocol.ExecStateAccepted, AcceptedAt: at}, owing{}},
		{ready, protocol.Exec{State: protocol.ExecStateRunning, StartedAt: at}, owing{}},
		{ready, protocol.Exec{State: protocol.ExecStateRunning, StartedAt: at, Spec: timed},
			owing{protocol.OwedExecEnd, at.Add(time.Minute), time.Second}},
	} {
		if got := dueOfExec(c.box, &c.exec); got != c.want {
			t.Errorf("%s in a %s sandbox: got %+v, want %+v", c.exec.State, c.box.State, got, c.want)
		}
	}
}

// The worker of the sandboxes does nothing. The checkup lists all late work to the tenant's own user and to operators.
func TestACheckupListsWhatIsOwed(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{Overdue: 50 * time.Millisecond, Suspect: time.Hour})()
	h := host("w1", 0)
	h.HostID, h.Full = "h1", "it takes no more in this test"
	d.register(h)
	short := protocol.SandboxSpec{Image: "i", Grace: protocol.Duration(time.Millisecond)}
	assigned := protocol.Event{Kind: protocol.SandboxAssigned,
		Details: &protocol.SandboxDetails{Worker: "w1", HostID: "h1", Generation: 1}}
	for _, id := range []string{"waits", "deleted", "stopped", "exec", "well"} {
		d.create(id, short)
		if id != "waits" {
			d.append(d.conn, id, assigned, protocol.Event{Kind: protocol.SandboxReady,
				Details: &protocol.SandboxDetails{Boot: "b"}})
		}
	}
	if r := d.createAs("acme", "theirs", &short); r.Error != nil {
		t.Fatal(r.Error)
	}
	exec := protocol.ExecSpec{Command: []string{"true"}}
	for id, r := range map[string]*protocol.Reply{
		"deleted": d.request(protocol.VerbDelete, "deleted", "r-deleted", protocol.Request{}),
		"stopped": d.request(protocol.VerbStop, "stopped", "r-stopped", protocol.Request{}),
		"exec":    d.request(protocol.VerbExec, "exec", "x", protocol.Request{ExecID: "x", Exec: &exec}),
	} {
		if r.Error != nil {
			t.Fatalf("%s: %v", id, r.Error)
		}
	}
	own := []string{"delete deleted w1", "exec_start exec/x w1", "placement waits ", "stop stopped w1"}
	for user, want := range map[string][]string{
		"anna": own, "@ops": append([]string{"acme: placement theirs "}, own...),
	} {
		conn := d.connectAs(jetstream.Config{InProcess: d.server, Name: user, User: user, Tenant: "default"})
		var got []string
		d.eventually("everything that is owed to "+user+" is listed", func() bool {
			reply, err := conn.Query(t.Context(), "default", protocol.EndpointCheckup, &protocol.Query{})
			if err != nil {
				t.Fatal(err)
			}
			got = nil
			for _, o := range reply.Checkup.Owed {
				text := fmt.Sprintf("%s %s %s", o.Kind, o.Sandbox, o.Worker)
				if o.Exec != "" {
					text = fmt.Sprintf("%s %s/%s %s", o.Kind, o.Sandbox, o.Exec, o.Worker)
				}
				if o.Tenant != "default" {
					text = o.Tenant + ": " + text
				}
				if got = append(got, text); o.Since.IsZero() || time.Since(o.Since) > time.Minute {
					t.Errorf("%s has been owed since %s", text, o.Since)
				}
			}
			slices.Sort(got)
			return reply.Checkup.OwedCount == len(got) && len(got) >= len(want)
		})
		if slices.Sort(want); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", user, got, want)
		}
	}
}

// Sandboxes that may take long to stop do not hide one that hangs. Only a sandbox's
// history says when it should have stopped, and a checkup reads few histories.
func TestACheckupFindsTheSandboxThatHangsAmongManyThatStop(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{Overdue: 50 * time.Millisecond, Suspect: time.Hour})()
	h := host("w1", 0)
	h.HostID, h.Full = "h1", "it takes no more in this test"
	d.register(h)
	assigned := protocol.Event{Kind: protocol.SandboxAssigned,
		Details: &protocol.SandboxDetails{Worker: "w1", HostID: "h1", Generation: 1}}
	stop := func(id string, grace time.Duration) {
		d.create(id, protocol.SandboxSpec{Image: "i", Grace: protocol.Duration(grace)})
		d.append(d.conn, id, assigned, protocol.Event{Kind: protocol.SandboxReady,
			Details: &protocol.SandboxDetails{Boot: "b"}})
		d.eventually(id+" is ready", func() bool {
			return d.request(protocol.VerbStop, id, "stop-"+id, protocol.Request{}).Error == nil
		})
	}
	for i := range 2 * protocol.MaxOwed {
		stop(fmt.Sprintf("slow-%d", i), 10*time.Minute)
	}
	stop("hangs", time.Millisecond)
	owes := func() []protocol.Owed {
		reply, err := d.conn.Query(t.Context(), "default", protocol.EndpointCheckup, &protocol.Query{})
		if err != nil {
			t.Fatal(err)
		}
		return reply.Checkup.Owed
	}
	d.eventually("the sandbox is late", func() bool { return len(owes()) > 0 })
	for range 20 {
		if owed := owes(); len(owed) != 1 || owed[0].Sandbox != "hangs" {
			t.Fatalf("got %+v", owed)
		}
	}
}

// A tenant that floods the coordinator with checkups delays only its own checkups, not those of other tenants.
func TestAFloodOfCheckupsLeavesRoomForOtherTenants(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	var c *coordinator
	defer d.run(Config{Name: "c1", made: func(made *coordinator) { c = made }})()
	for _, release := range taken(t, c.reads.checking, "acme", c.reads.checking.share()) {
		defer release()
	}
	for tenant, want := range map[string]protocol.Code{"acme": protocol.ResourceExhausted, "default": ""} {
		if _, err := d.conn.Query(t.Context(), tenant, protocol.EndpointCheckup,
			&protocol.Query{}); protocol.CodeOf(err) != want {
			t.Errorf("the checkup of %s: %v", tenant, err)
		}
	}
}
