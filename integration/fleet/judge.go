package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// History is everything that the log says of one sandbox.
type History struct {
	Tenant, Sandbox string
	Events          []protocol.Event
	State           *protocol.State // their fold; of a history whose beginning was purged, its tombstone
}

// Kinds lists the kinds of the events, in order.
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
	for _, h := range f.histories() {
		if h.Sandbox == id && h.Tenant == protocol.DefaultTenant {
			return h
		}
	}
	return &History{Tenant: protocol.DefaultTenant, Sandbox: id, State: &protocol.State{}}
}

// Judge reads the whole log and fails the test where it breaks a promise:
//   - the events of each sandbox are numbered 1, 2, 3 … without gap or repeat;
//   - each is legal where it stands, and carries the state that the fold gives;
//   - an exec was accepted once, started at most once, and ended at most once, and is not left
//     without an end by a sandbox that has none to give any more;
//   - no request made two sandboxes, or two execs;
//   - the coordinators, where one answers, say of each sandbox what the fold says.
func (f *Fleet) Judge() {
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
				f.TB.Errorf("request %s made two sandboxes: %s and %s", e.Request, other, name)
			}
			requests[e.Request] = name
		}
		f.judgeRead(name, h)
	}
}

// histories folds the whole log.
func (f *Fleet) histories() []*History {
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
		if b.First() > h.State.Sandbox.Sequence+1 { // what lies between is in segments, or this is a tombstone
			f.foldMoved(ctx, name, h, b.Record)
		}
		f.fold(name, h, b)
	}, func() { caughtUp = true; cancel() })
	if !caughtUp {
		f.TB.Fatalf("read the whole log: %v", err)
	}
	return all
}

// foldMoved folds what a history has before a record that is no longer in the log.
func (f *Fleet) foldMoved(ctx context.Context, name string, h *History, before uint64) {
	f.TB.Helper()
	if err := f.Conn.ReadHistory(ctx, h.Tenant, h.Sandbox, 0, func(b *protocol.Batch) bool {
		if b.Record < before && b.First() == h.State.Sandbox.Sequence+1 {
			f.fold(name, h, b)
		}
		return b.Record < before
	}); err != nil {
		f.TB.Errorf("%s: what was moved out of the log: %v", name, err)
	}
}

func (f *Fleet) fold(name string, h *History, b *protocol.Batch) {
	f.TB.Helper()
	for i := range b.Events {
		e := &b.Events[i]
		if len(h.Events) == 0 && e.Sequence > 1 && e.Kind == protocol.SandboxDeleted {
			if err := h.State.Bury(e); err != nil {
				f.TB.Errorf("%s: %v", name, err)
			}
			h.Events = append(h.Events, *e)
			continue
		}
		if e.State == protocol.StateNone {
			f.TB.Errorf("%s: event %d %s says no state", name, e.Sequence, e.Kind)
		}
		// checks the number, the legality, and the states that the event claims
		if err := h.State.Apply(e); err != nil {
			f.TB.Errorf("%s: event %d %s by %s (record %d): %v; before it: %v", name, e.Sequence, e.Kind, e.Writer,
				e.Record, err, h.Kinds())
		}
		h.Events = append(h.Events, *e)
	}
}

func (f *Fleet) judgeExecs(name string, h *History) {
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
				f.TB.Errorf("%s: request %s made two execs: %s and %s", name, e.Request, other, e.Exec.ID)
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
			f.TB.Errorf("%s is %s, and %d execs have no end", name, h.State.Sandbox.State, len(left))
		}
	}
}

// judgeRead compares what a coordinator says of a sandbox with the fold.
func (f *Fleet) judgeRead(name string, h *History) {
	f.TB.Helper()
	if len(f.Processes("coordinator")) == 0 || h.State.Sandbox.HistoryPurged {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	want := h.State.Sandbox
	q := &protocol.Query{Sandbox: h.Sandbox, MinSequence: want.Sequence}
	reply, err := f.Conn.Query(ctx, h.Tenant, protocol.EndpointGet, q)
	// Who waits for an exec reads the log, and may be done before a coordinator is connected again.
	for protocol.CodeOf(err) == protocol.Unavailable && ctx.Err() == nil {
		time.Sleep(50 * time.Millisecond)
		reply, err = f.Conn.Query(ctx, h.Tenant, protocol.EndpointGet, q)
	}
	if err != nil || reply.Sandbox == nil {
		f.TB.Errorf("%s: read it from a coordinator: %v", name, err)
		return
	}
	got := *reply.Sandbox
	got.Unreachable = false // a condition beside the fold
	if got.Sequence > want.Sequence {
		return // it moved on while we read
	}
	if g, w := asJSON(got), asJSON(want); !bytes.Equal(g, w) {
		f.TB.Errorf("%s: a coordinator says\n%s\nand the fold of the log is\n%s", name, g, w)
	}
}

func asJSON(v any) []byte {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Append(nil, err)
	}
	return data
}
