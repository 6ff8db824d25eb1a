package jetstream_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// accepted returns the first batch of a history: the batch that accepts the sandbox.
func accepted(tenant, sandbox, writer string) *protocol.Batch {
	return &protocol.Batch{
		Version: protocol.Version,
		Tenant:  tenant,
		Sandbox: sandbox,
		Writer:  writer,
		ID:      "b-" + writer,
		Events: []protocol.Event{{
			Sequence: 1, Kind: protocol.SandboxAccepted, State: protocol.StatePending, Time: time.Now().UTC(),
			Details: &protocol.SandboxDetails{Spec: &protocol.SandboxSpec{Image: "x"}},
		}},
	}
}

func TestAStaleExpectationIsAConflict(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		c := d.opened(t)
		first, err := c.Append(t.Context(), accepted(d.tenant, "s1", "k1"), 0)
		must(t, err)
		for _, expected := range []uint64{0, first - 1, first + 1} {
			_, err := c.Append(t.Context(), accepted(d.tenant, "s1", "k2"), expected)
			if err != jetstream.ErrConflict {
				t.Fatalf("an append that expects record %d, although the last one is %d: %v", expected, first, err)
			}
		}
		// Each sandbox has its own last record.
		if _, err := c.Append(t.Context(), accepted(d.tenant, "s2", "k2"), 0); err != nil {
			t.Fatal(err)
		}
	})
}

func TestExactlyOneOfEightRacingWritersWins(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		const rounds, writers = 200, 8
		conns := make([]*jetstream.Conn, writers)
		for i := range conns {
			conns[i] = d.opened(t)
		}
		for round := range rounds {
			sandbox := fmt.Sprintf("race%d", round)
			errs := make(chan error, writers)
			for i, c := range conns {
				go func() {
					_, err := c.Append(
						context.WithoutCancel(t.Context()),
						accepted(d.tenant, sandbox, fmt.Sprintf("k%d", i)),
						0,
					)
					errs <- err
				}()
			}
			won := 0
			for range conns {
				switch err := <-errs; err {
				case nil:
					won++
				case jetstream.ErrConflict:
				default:
					t.Fatal(err)
				}
			}
			if won != 1 {
				t.Fatalf("round %d: %d writers won", round, won)
			}
			readHistory(t, conns[0], d.tenant, sandbox)
		}
	})
}

func TestABatchThatNamesAnotherSandboxThanItsSubjectIsNotFolded(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		c, nc := d.opened(t), d.raw(t)
		readySandbox(t, c, d.tenant, "s1")
		heard := liveBatches(t, c, d.tenant, "s1")
		followed := make(chan *protocol.Batch, 1000)
		background(t, func(ctx context.Context) error {
			return c.FollowEvents(ctx, 0, func(b *protocol.Batch) {
				if b.Tenant == d.tenant {
					followed <- b
				}
			}, nil)
		})
		must(t, c.Flush(t.Context()))

		// The writer evil may publish to the subject of the forged batch. The batch itself claims to hold an event of
		// another tenant's sandbox.
		forged := accepted("victim", "s1", "evil")
		e := &forged.Events[0]
		e.Sequence, e.Kind, e.State = 4, protocol.SandboxFailed, protocol.StateFailed
		m := nats.NewMsg(protocol.AppendSubject("evil", d.tenant, "s1"))
		m.Data = forged.Encode()
		_, err := nc.RequestMsg(m, 5*time.Second)
		must(t, err)

		// Readers ignore the forged batch, and the history continues after it.
		j := journal(c, d.tenant, "s1", "k1")
		events, err := j.Do(t.Context(), acceptExec("x1"))
		must(t, err)
		if events[0].Sequence != 4 {
			t.Fatalf("the next event has number %d, want 4", events[0].Sequence)
		}
		if b := receive(t, 5*time.Second, "the next live batch", heard); b.Writer != "k1" {
			t.Fatalf("received a live batch of %s/%s by %s, want one by k1", b.Tenant, b.Sandbox, b.Writer)
		}
		for i := 0; i < 2; i++ {
			if b := receive(t, 5*time.Second, "a batch for the follower", followed); b.Writer != "k1" {
				t.Fatalf("the follower got a batch of %s/%s by %s, want one by k1", b.Tenant, b.Sandbox, b.Writer)
			}
		}
		state, batches := readHistory(t, c, d.tenant, "s1")
		if len(batches) != 2 || state.Sandbox.State != protocol.StateReady {
			t.Fatalf("the history has %d batches, want 2, and the sandbox is %s", len(batches), state.Sandbox.State)
		}
		if history, err := c.History(t.Context(), "victim", "s1", 0); err != nil || len(history) != 0 {
			t.Fatalf("the victim's history has %d batches, want none: %v", len(history), err)
		}
		_, err = c.Record(t.Context(), events[0].Record-1)
		if protocol.CodeOf(err) != protocol.NotFound && len(d.servers) == 1 {
			t.Fatalf("reading the record of the forged batch: %v, want not_found", err)
		}
	})
}
