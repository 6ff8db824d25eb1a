// Package seed writes histories directly into the log, for tests and benchmarks that need past execs or sandboxes.
// Running so many execs would take hours; writing their events takes seconds.
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
// sandbox's worker follow the log and treat these execs like any other execs.
func Execs(ctx context.Context, conn *jetstream.Conn, tenant, sandbox string, p Past) error {
	if p.PerMessage < 1 {
		p.PerMessage = 100
	}
	j := conn.Journal(jetstream.JournalConfig{Tenant: tenant, Sandbox: sandbox, Writer: "seed", KeepEnded: 1})
	for i := 0; i < p.N; i += p.PerMessage {
		n := min(p.PerMessage, p.N-i)
		_, err := j.Do(ctx, func(*protocol.State, time.Time) ([]protocol.Event, error) {
			events := make([]protocol.Event, 0, 3*n)
			for k := range n {
				events = append(events, exec(ID(p.First+i+k), p.Output)...)
			}
			return events, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func exec(id string, output []byte) []protocol.Event {
	zero := 0
	return []protocol.Event{
		{Kind: protocol.ExecAccepted, Request: "r-" + id,
			Exec: &protocol.ExecDetails{ID: id, Spec: &protocol.ExecSpec{Command: []string{"true"}}}},
		{Kind: protocol.ExecStarted, Exec: &protocol.ExecDetails{ID: id, Boot: "seed"}},
		{Kind: protocol.ExecFinished, Exec: &protocol.ExecDetails{ID: id, ExitCode: &zero, Inline: true, Stdout: output,
			StdoutBytes: int64(len(output))}},
	}
}
