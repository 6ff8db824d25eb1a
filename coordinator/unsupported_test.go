package coordinator

import (
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestAnOpenStdinNeedsAWorkerThatPassesInput(t *testing.T) {
	t.Parallel()
	for _, takes := range []bool{false, true} {
		d := newDeployment(t)
		defer d.coordinator("c1", Timing{})()
		h := host("w1", 0)
		h.TakesInput = takes
		d.register(h)
		d.readyOn("a", protocol.SandboxSpec{Image: "i"})
		r := d.request(protocol.VerbExec, "a", "x", protocol.Request{ExecID: "x",
			Exec: &protocol.ExecSpec{Command: []string{"cat"}, OpenStdin: true}})
		switch e := r.Error; {
		case takes && e != nil:
			t.Errorf("a worker that takes input: %v", e)
		case !takes && (e == nil || e.Reason != protocol.ReasonUnsupported || e.Field != "exec.open_stdin"):
			t.Errorf("an earlier worker: %v", e)
		}
	}
}

func TestAWorkerOfAnUnsupportedVersionGetsNoExecAndNoResume(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{Scan: 20 * time.Millisecond})()
	h := host("w1", 0)
	d.register(h)
	for _, id := range []string{"a", "b"} {
		d.readyOn(id, protocol.SandboxSpec{Image: "i"})
	}
	if r := d.request(protocol.VerbStop, "b", "stop", protocol.Request{}); r.Error != nil {
		t.Fatal(r.Error)
	}
	d.work("b", func(*protocol.State) []protocol.Event {
		return []protocol.Event{{Kind: protocol.SandboxStopped, Reason: protocol.ReasonStopRequested}}
	})
	d.eventually("the sandbox is stopped", func() bool { return d.list()["b"].State == protocol.StateStopped })
	h.Oldest, h.Speaks = protocol.Version+1, protocol.Version+1
	d.register(h)
	d.eventually("the worker is unsupported", func() bool { return d.host("w1").Unsupported != "" })

	exec := protocol.Request{ExecID: "x", Exec: &protocol.ExecSpec{Command: []string{"true"}}}
	for name, r := range map[string]*protocol.Reply{
		"exec":   d.request(protocol.VerbExec, "a", "x", exec),
		"resume": d.request(protocol.VerbResume, "b", "resume", protocol.Request{}),
	} {
		if e := r.Error; e == nil || e.Reason != protocol.ReasonUnsupported ||
			!strings.Contains(e.Message, "upgrade the coordinators") {
			t.Errorf("%s: %v", name, e)
		}
	}
	for _, id := range []string{"a", "b"} {
		if r := d.request(protocol.VerbDelete, id, "delete-"+id, protocol.Request{}); r.Error != nil {
			t.Errorf("delete: %v", r.Error)
		}
	}
	h.Oldest, h.Speaks = 0, 0
	d.register(h)
	d.eventually("the worker is supported", func() bool { return d.host("w1").Unsupported == "" })
	d.readyOn("c", protocol.SandboxSpec{Image: "i"})
	if r := d.request(protocol.VerbExec, "c", "y", protocol.Request{ExecID: "y", Exec: exec.Exec}); r.Error != nil {
		t.Errorf("an exec at a supported worker: %v", r.Error)
	}
}
