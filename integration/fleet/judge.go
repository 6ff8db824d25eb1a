package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// History is the whole history of one sandbox.
type History struct {
	Tenant, Sandbox string
	Events          []protocol.Event
	State           *protocol.State // the fold of the events, or the tombstone if older events were purged
}

// Kinds lists the kinds of the events in order.
func (h *History) Kinds() []protocol.Kind {
	kinds := make([]protocol.Kind, len(h.Events))
	for i, e := range h.Events {
		kinds[i] = e.Kind
	}
	return kinds
}

// History reads the history of a sandbox of the default tenant.
func (f *Fleet) History(id string) *History {
	f.TB.Helper()
	for _, h := range (judge{f}).histories() {
		if h.Sandbox == id && h.Tenant == protocol.DefaultTenant {
			return h
		}
	}
	return &History{Tenant: protocol.DefaultTenant, Sandbox: id, State: &protocol.State{}}
}

// Judge reads the whole log and fails the test if the log breaks one of these rules:
//   - the events of each sandbox are numbered 1, 2, 3 … without gap or repeat;
//   - each event is legal at its place and carries the state that the fold computes;
//   - an exec was accepted once, started at most once and ended at most once;
//   - no exec is running in a sandbox that can no longer end its execs;
//   - no request created two sandboxes or two execs;
//   - the running coordinators report the same sandboxes as the fold.
func (f *Fleet) Judge() {
	f.TB.Helper()
	judge{f}.log()
}

// judge checks the log of a fleet.
type judge struct{ *Fleet }

func (f judge) log() {
	f.TB.Helper()
	requests := map[string]string{}
	for _, h := range f.histories() {
		name := h.Tenant + "/" + h.Sandbox
		f.judgeExecs(name, h)
		for _, e := range h.Events {
			if e.Kind != protocol.SandboxAccepted || e.Request == "" {
				continue
			}
			if other := requests[e.Request]; other != "" {
				f.TB.Errorf("request %s created two sandboxes: %s and %s", e.Request, other, name)
			}
			requests[e.Request] = name
		}
		f.judgeRead(name, h)
	}
}

// histories reads the whole log and folds it.
func (f judge) histories() []*History {
	f.TB.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var all []*History
	found := map[string]*History{}
	caughtUp := false
	err := f.Conn.FollowEvents(ctx, 1, func(b *protocol.Batch) {
		name := b.Tenant + "/" + b.Sandbox
		h := found[name]
		if h == nil {
			h = &History{Tenant: b.Tenant, Sandbox: b.Sandbox, State: &protocol.State{}}
			found[name] = h
			all = append(all, h)
		}
		if b.First() > h.State.Sandbox.Sequence+1 { // segments hold the missing part, or the history has a tombstone
			f.foldMoved(ctx, name, h, b.Record)
		}
		f.fold(name, h, b)
	}, func() { caughtUp = true; cancel() })
	if !caughtUp {
		f.TB.Fatalf("read the whole log: %v", err)
	}
	return all
}

// foldMoved folds the older part of a history, which compaction has moved into segments. before is the record of the
// first message in the log.
func (f judge) foldMoved(ctx context.Context, name string, h *History, before uint64) {
	f.TB.Helper()
	if err := f.Conn.ReadHistory(ctx, h.Tenant, h.Sandbox, 0, func(b *protocol.Batch) bool {
		if b.Record < before && b.First() == h.State.Sandbox.Sequence+1 {
			f.fold(name, h, b)
		}
		return b.Record < before
	}); err != nil {
		f.TB.Errorf("%s: read the segments: %v", name, err)
	}
}

func (f judge) fold(name string, h *History, b *protocol.Batch) {
	f.TB.Helper()
	for i := range b.Events {
		e := &b.Events[i]
		if len(h.Events) == 0 && e.Sequence > 1 && e.Kind == protocol.SandboxDeleted {
			if err := h.State.ApplyTombstone(e); err != nil {
				f.TB.Errorf("%s: %v", name, err)
			}
			h.Events = append(h.Events, *e)
			continue
		}
		if e.State == protocol.StateNone {
			f.TB.Errorf("%s: event %d %s carries no state", name, e.Sequence, e.Kind)
		}
		// Apply checks the number, the legality and the state of the event
		if err := h.State.Apply(e); err != nil {
			f.TB.Errorf("%s: event %d %s by %s (record %d): %v; before it: %v", name, e.Sequence, e.Kind, e.Writer,
				e.Record, err, h.Kinds())
		}
		h.Events = append(h.Events, *e)
	}
}

func (f judge) judgeExecs(name string, h *History) {
	f.TB.Helper()
	count := map[string]map[protocol.Kind]int{}
	requests := map[string]string{}
	for _, e := range h.Events {
		if e.Exec == nil {
			continue
		}
		if count[e.Exec.ID] == nil {
			count[e.Exec.ID] = map[protocol.Kind]int{}
		}
		count[e.Exec.ID][e.Kind]++
		if e.Kind == protocol.ExecAccepted && e.Request != "" {
			if other, twice := requests[e.Request]; twice {
				f.TB.Errorf("%s: request %s created two execs: %s and %s", name, e.Request, other, e.Exec.ID)
			}
			requests[e.Request] = e.Exec.ID
		}
	}
	for id, n := range count {
		ends := n[protocol.ExecFinished] + n[protocol.ExecFailed] + n[protocol.ExecCancelled] + n[protocol.ExecTimedOut]
		if n[protocol.ExecAccepted] != 1 || n[protocol.ExecStarted] > 1 || ends > 1 {
			f.TB.Errorf("%s: exec %s was accepted, started and ended %d, %d and %d times", name, id,
				n[protocol.ExecAccepted], n[protocol.ExecStarted], ends)
		}
	}
	switch h.State.Sandbox.State {
	case protocol.StateStopped, protocol.StateFailed, protocol.StateDeleted:
		if left := h.State.Active(); len(left) > 0 {
			f.TB.Errorf("%s is %s, and %d execs have not ended", name, h.State.Sandbox.State, len(left))
		}
	}
}

// judgeRead compares a coordinator's answer about a sandbox with the fold of the log.
func (f judge) judgeRead(name string, h *History) {
	f.TB.Helper()
	if len(f.Processes("coordinator")) == 0 || h.State.Sandbox.HistoryPurged {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	want := h.State.Sandbox
	q := &protocol.Query{Sandbox: h.Sandbox, MinSequence: want.Sequence}
	reply, err := f.Conn.Query(ctx, h.Tenant, protocol.EndpointGet, q)
	// The test may have waited for the log only, so a coordinator may not have connected to NATS again yet.
	for protocol.CodeOf(err) == protocol.Unavailable && ctx.Err() == nil {
		time.Sleep(50 * time.Millisecond)
		reply, err = f.Conn.Query(ctx, h.Tenant, protocol.EndpointGet, q)
	}
	if err != nil || reply.Sandbox == nil {
		f.TB.Errorf("%s: read it from a coordinator: %v", name, err)
		return
	}
	got := *reply.Sandbox
	got.Unreachable = false // coordinators derive this from heartbeats, not from the log
	if got.Sequence > want.Sequence {
		return // the sandbox changed between the two reads
	}
	if g, w := asJSON(got), asJSON(want); !bytes.Equal(g, w) {
		f.TB.Errorf("%s: a coordinator returned\n%s\nbut the fold of the log is\n%s", name, g, w)
	}
}

func asJSON(v any) []byte {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Append(nil, err)
	}
	return data
}
