// Package seed writes what tests and benchmarks need of the past straight into the log: a sandbox with
// many execs that are over takes seconds so, and hours by running them.
package seed

import (
	"context"
	"fmt"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// Past says which execs are written.
type Past struct {
	N      int    // execs; required
	First  int    // number of the first one; their ids are [ID](First), [ID](First+1) and so on
	Output []byte // that each has printed, at most 16 KiB

	// PerMessage is how many execs share a message of the log; default 100. Real ones that run one after
	// another have three messages each.
	PerMessage int
}

// ID is the id of the exec of a number.
func ID(i int) string { return fmt.Sprintf("past-%07d", i) }

// Execs appends execs that were accepted, started and finished to the history of a sandbox, which must be
// ready. Coordinators and the sandbox's worker follow the log, and know them like any other.
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
