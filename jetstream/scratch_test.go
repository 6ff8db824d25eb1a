package jetstream_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// busySandbox makes a sandbox with many active execs.
func busySandbox(t testing.TB, c *jetstream.Conn, tenant, sandbox string, execs int) {
	t.Helper()
	readySandbox(t, c, tenant, sandbox)
	decide := func(s *protocol.State, _ time.Time) (events []protocol.Event, _ error) {
		for i := range execs { // only the missing execs: Do calls decide again if the events take several messages
			if s.Execs[fmt.Sprint("active", i)] != nil {
				continue
			}
			events = append(events, protocol.Event{Kind: protocol.ExecAccepted, Exec: &protocol.ExecDetails{
				ID: fmt.Sprint("active", i), Spec: &protocol.ExecSpec{Command: []string{"true"}}}})
		}
		return events, nil
	}
	_, err := journal(c, tenant, sandbox, "k1").Do(t.Context(), decide)
	must(t, err)
}

// Decisions of a busy sandbox are tried on the same scratch state repeatedly. The scratch state always equals the fold,
// regardless of which writer appended. Refused or lost decisions leave no changes in the scratch state.
func TestDecisionsOfABusySandboxSeeTheFold(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		c := d.opened(t)
		busySandbox(t, c, d.tenant, "s1", 400)
		mine := c.Journal(jetstream.JournalConfig{Tenant: d.tenant, Sandbox: "s1", Writer: "k1", KeepEnded: 3})
		other := c.Journal(jetstream.JournalConfig{Tenant: d.tenant, Sandbox: "s1", Writer: "k2", KeepEnded: 3})
		end := func(id string) protocol.Event {
			return protocol.Event{Kind: protocol.ExecCancelled, Exec: &protocol.ExecDetails{ID: id, Inline: true}}
		}
		for i := range 30 {
			if i%3 == 0 { // another writer appends first
				_, err := other.Do(t.Context(), func(*protocol.State, time.Time) ([]protocol.Event, error) {
					return []protocol.Event{end(fmt.Sprint("active", i))}, nil
				})
				must(t, err)
			}
			if i%5 == 0 { // an illegal decision
				_, err := mine.Do(t.Context(), func(*protocol.State, time.Time) ([]protocol.Event, error) {
					return []protocol.Event{end(fmt.Sprint("active", 100+i)), end("nobody")}, nil
				})
				wantError(t, err, protocol.FailedPrecondition, "")
			}
			_, err := mine.Do(t.Context(), func(s *protocol.State, _ time.Time) ([]protocol.Event, error) {
				var is *protocol.State
				mine.View(func(state *protocol.State, _ uint64) { is = state.Clone() })
				same(t, "the state that a decision sees and the fold", s, is)
				events := []protocol.Event{end(fmt.Sprint("active", 200+i))}
				more, err := acceptExec(fmt.Sprint("x", i))(s, time.Time{})
				return append(events, more...), err
			})
			must(t, err)
		}
		want, _ := readHistory(t, c, d.tenant, "s1")
		want.Trim(3)
		got, _ := mine.State()
		same(t, "the journal's fold and the log's", got, want)
	})
}

// BenchmarkAppendWithActiveExecs measures one append, most of whose time is spent in the store.
func BenchmarkAppendWithActiveExecs(b *testing.B) {
	for _, execs := range []int{0, 100, 1000, 8000} {
		b.Run(fmt.Sprintf("active=%d", execs), func(b *testing.B) {
			c := startServer(b, jetstream.Assets{}).opened(b)
			busySandbox(b, c, "t1", "s1", execs)
			j := c.Journal(jetstream.JournalConfig{Tenant: "t1", Sandbox: "s1", Writer: "k1", KeepEnded: 128})
			must(b, j.Refresh(b.Context()))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				_, err := j.Do(b.Context(), runExec(fmt.Sprint("x", i)))
				must(b, err)
			}
		})
	}
}
