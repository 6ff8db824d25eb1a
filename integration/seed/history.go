package seed

import (
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/spec"
)

// Coordinator is who the seeded decisions are from.
const Coordinator = "seeded"

// History is that of one sandbox, as far as it was written. It is numbered by the fold, so what is not legal
// does not get in.
type History struct {
	Tenant, ID string
	worker     string
	state      protocol.State
	write      func(*protocol.Batch) error
	err        error // the first; nothing is written after it
}

// Sandbox begins a history: the sandbox is accepted, assigned and ready on a host. at is when, container what
// the host's Engine calls it. Each message goes to write.
func Sandbox(
	id, worker, hostID, container string, asked protocol.SandboxSpec, at time.Time, write func(*protocol.Batch) error,
) *History {
	h := &History{Tenant: protocol.DefaultTenant, ID: id, worker: worker, write: write}
	whole, builtIn := spec.Resolve(asked)
	h.Message(Coordinator, protocol.Event{Kind: protocol.SandboxAccepted, Time: at, Request: id,
		Phase: &protocol.SandboxDetails{Spec: &whole, BuiltIn: builtIn}})
	h.Message(Coordinator, protocol.Event{Kind: protocol.SandboxAssigned, Time: at,
		Phase: &protocol.SandboxDetails{Worker: worker, HostID: hostID, Generation: 1}})
	h.Message(worker, protocol.Event{Kind: protocol.SandboxReady, Time: at,
		Phase: &protocol.SandboxDetails{Image: "sha256:" + strings.Repeat("0", 64), Isolation: "runc",
			Container: container, Boot: newID()}})
	return h
}

// Message writes one message of a writer's.
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

// Delete ends the history: the sandbox is deleted.
func (h *History) Delete(at time.Time) {
	h.Message(Coordinator, protocol.Event{Kind: protocol.SandboxDeleteRequested, Time: at, Request: newID()})
	h.Message(h.worker, protocol.Event{Kind: protocol.SandboxDeleted, Time: at})
}

// Err is why the history is not written as asked for.
func (h *History) Err() error { return h.err }

func newID() string { return strings.ToLower(ulid.Make().String()) }
