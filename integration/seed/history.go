package seed

import (
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/spec"
)

// Coordinator is the writer's name in seeded decisions.
const Coordinator = "seeded"

// History writes the history of one sandbox. It folds the events that it writes. The fold numbers the events and
// refuses illegal events.
type History struct {
	Tenant, ID string
	worker     string
	state      protocol.State
	write      func(*protocol.Batch) error
	err        error // the first error; after an error nothing is written
}

// Sandbox begins a history: the sandbox is accepted, assigned to a host, and becomes ready on that host. at is the time
// of the first event. container is the id of the container on the host's Engine. Sandbox passes each message to the
// function write.
func Sandbox(
	id, worker, hostID, container string, asked protocol.SandboxSpec, at time.Time, write func(*protocol.Batch) error,
) *History {
	h := &History{Tenant: protocol.DefaultTenant, ID: id, worker: worker, write: write}
	resolved, defaulted := spec.Resolve(asked)
	h.Message(Coordinator, protocol.Event{Kind: protocol.SandboxAccepted, Time: at, Request: id,
		Details: &protocol.SandboxDetails{Spec: &resolved, Defaulted: defaulted}})
	h.Message(Coordinator, protocol.Event{Kind: protocol.SandboxAssigned, Time: at,
		Details: &protocol.SandboxDetails{Worker: worker, HostID: hostID, Generation: 1}})
	h.Message(worker, protocol.Event{Kind: protocol.SandboxReady, Time: at,
		Details: &protocol.SandboxDetails{Image: "sha256:" + strings.Repeat("0", 64), Isolation: "runc",
			Container: container, Boot: newID()}})
	return h
}

// Message writes the events as one message from this writer.
func (h *History) Message(writer string, events ...protocol.Event) {
	if h.err != nil {
		return
	}
	for i := range events {
		events[i].Tenant, events[i].Sandbox = h.Tenant, h.ID
	}
	if h.err = h.state.Number(events); h.err != nil {
		return
	}
	h.state.Trim(1)
	h.err = h.write(&protocol.Batch{Version: protocol.Version, Tenant: h.Tenant, Sandbox: h.ID, ID: newID(),
		Writer: writer, Events: events})
}

// Delete ends the history with the deletion of the sandbox.
func (h *History) Delete(at time.Time) {
	h.Message(Coordinator, protocol.Event{Kind: protocol.SandboxDeleteRequested, Time: at, Request: newID()})
	h.Message(h.worker, protocol.Event{Kind: protocol.SandboxDeleted, Time: at})
}

// Err returns the first error. It returns nil if the resolved history was written.
func (h *History) Err() error { return h.err }

func newID() string { return strings.ToLower(ulid.Make().String()) }
