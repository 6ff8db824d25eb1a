package coordinator

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// Sandboxes that run execs without pause end when they expire, and not only at the next scan.
func TestABusySandboxEndsAtItsTTL(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	// A sandbox that is not ended when it expires would wait an hour for the next scan.
	defer d.run(Config{Name: "c1", Timing: Timing{Scan: time.Hour}})()
	const n = 20
	zero := 0
	began := time.Now()
	for i := range n {
		id := fmt.Sprint("s", i)
		spec := &protocol.SandboxSpec{Image: "i", TTL: protocol.Duration(3 * time.Second)}
		spec.Resolve()
		d.work(id, func(*protocol.State) []protocol.Event {
			return []protocol.Event{
				{Kind: protocol.SandboxAccepted, Request: "create-" + id, Details: &protocol.SandboxDetails{Spec: spec}},
				{Kind: protocol.SandboxAssigned,
					Details: &protocol.SandboxDetails{Worker: "w1", HostID: "h1", Generation: 1}},
				{Kind: protocol.SandboxReady, Details: &protocol.SandboxDetails{Boot: "b"}},
			}
		})
	}
	var busy sync.WaitGroup
	late := make(chan time.Duration, n)
	for i := range n {
		busy.Go(func() {
			j := d.conn.Journal(jetstream.JournalConfig{Tenant: "default", Sandbox: fmt.Sprint("s", i), Writer: "w1"})
			for x := 0; ; x++ {
				id, over, after := fmt.Sprint("x", x), false, time.Duration(0)
				_, err := j.Do(t.Context(), func(s *protocol.State, _ time.Time) ([]protocol.Event, error) {
					if over = s.Sandbox.Desired == protocol.StateDeleted; over {
						after = s.Sandbox.StateChangedAt.Sub(s.Sandbox.ExpiresAt)
						return nil, nil
					}
					return []protocol.Event{
						{Kind: protocol.ExecAccepted, Request: id,
							Exec: &protocol.ExecDetails{ID: id, Spec: &protocol.ExecSpec{Command: []string{"true"}}}},
						{Kind: protocol.ExecStarted, Exec: &protocol.ExecDetails{ID: id, Boot: "b"}},
						{Kind: protocol.ExecFinished,
							Exec: &protocol.ExecDetails{ID: id, ExitCode: &zero, Inline: true}},
					}, nil
				})
				if over {
					late <- after
				}
				if err != nil || over || time.Since(began) > 30*time.Second {
					return
				}
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	busy.Wait()
	if len(late) != n {
		t.Fatalf("%d of %d sandboxes ended", len(late), n)
	}
	close(late)
	worst := time.Duration(0)
	for l := range late {
		worst = max(worst, l)
	}
	t.Logf("the latest sandbox ended %s after it expired", worst)
}
