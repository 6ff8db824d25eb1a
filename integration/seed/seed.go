// Package seed writes histories directly into the log, for tests and benchmarks that need past execs or sandboxes.
// Running this many execs would take hours; writing their events takes seconds.
package seed

import (
	"context"
	"fmt"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// Past says which past execs to write.
type Past struct {
	N      int    // number of execs; must be set
	First  int    // number of the first exec; their ids are [ID](First), [ID](First+1) and so on
	Output []byte // output of each exec, at most 16 KiB

	// PerMessage is how many execs share a message of the log; default 100. Real execs that run one after another take
	// three messages each.
	PerMessage int
}

// ID returns the id of the i-th past exec.
func ID(i int) string { return fmt.Sprintf("past-%07d", i) }

// Execs appends execs to the history of a ready sandbox. Each was accepted, started and finished. Coordinators and the
// sandbox's worker follow the log and treat these execs like any other execs. One writer appends all these events, so
// the deployment must not require signatures; see [SignedExecs].
func Execs(ctx context.Context, conn *jetstream.Conn, tenant, sandbox string, p Past) error {
	j := conn.Journal(jetstream.JournalConfig{Tenant: tenant, Sandbox: sandbox, Writer: "seed", KeepEnded: 1})
	return p.each(func(ids []string) error { return do(ctx, j, ids, p.Output, accepted, started, finished) })
}

// Appender appends to histories as a coordinator or worker.
type Appender struct {
	Conn *jetstream.Conn // has registered its key
	Name string          // the name that the key is registered for
}

// SignedExecs is like [Execs] for a deployment that requires signatures: the coordinator appends that the execs were
// accepted, and the sandbox's worker appends the rest.
func SignedExecs(ctx context.Context, coordinator, worker Appender, tenant, sandbox string, p Past) error {
	journal := func(a Appender) *jetstream.Journal {
		return a.Conn.Journal(jetstream.JournalConfig{Tenant: tenant, Sandbox: sandbox, Writer: a.Name})
	}
	accepts, runs := journal(coordinator), journal(worker)
	return p.each(func(ids []string) error {
		if err := do(ctx, accepts, ids, p.Output, accepted); err != nil {
			return err
		}
		return do(ctx, runs, ids, p.Output, started, finished)
	})
}

// each calls f once for each message, with the ids of the message's execs.
func (p Past) each(f func(ids []string) error) error {
	if p.PerMessage < 1 {
		p.PerMessage = 100
	}
	for i := 0; i < p.N; i += p.PerMessage {
		var ids []string
		for k := i; k < min(i+p.PerMessage, p.N); k++ {
			ids = append(ids, ID(p.First+k))
		}
		if err := f(ids); err != nil {
			return err
		}
	}
	return nil
}

// do appends one message with an event of each kind for each exec.
func do(ctx context.Context, j *jetstream.Journal, ids []string, output []byte,
	kinds ...func(id string, output []byte) protocol.Event) error {
	_, err := j.Do(ctx, func(*protocol.State, time.Time) ([]protocol.Event, error) {
		events := make([]protocol.Event, 0, len(kinds)*len(ids))
		for _, id := range ids {
			for _, kind := range kinds {
				events = append(events, kind(id, output))
			}
		}
		return events, nil
	})
	return err
}

func accepted(id string, _ []byte) protocol.Event {
	return protocol.Event{Kind: protocol.ExecAccepted, Request: "r-" + id,
		Exec: &protocol.ExecDetails{ID: id, Spec: &protocol.ExecSpec{Command: []string{"true"}}}}
}

func started(id string, _ []byte) protocol.Event {
	return protocol.Event{Kind: protocol.ExecStarted, Exec: &protocol.ExecDetails{ID: id, Boot: "seed"}}
}

func finished(id string, output []byte) protocol.Event {
	zero := 0
	return protocol.Event{Kind: protocol.ExecFinished, Exec: &protocol.ExecDetails{ID: id, ExitCode: &zero, Inline: true,
		Stdout: output, StdoutBytes: int64(len(output))}}
}
