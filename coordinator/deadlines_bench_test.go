package coordinator

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
)

// BenchmarkDeadlines measures how late sandboxes are ended after their time to live. 100 of 10,000 sandboxes expire per
// second, while the other sandboxes together run 500 execs per second. Each exec is three messages in the log, written
// as a worker writes them. The benchmark also reports the achieved rate of execs. Run it with go test ./coordinator
// -run - -bench Deadlines -benchtime 1x.
func BenchmarkDeadlines(b *testing.B) {
	const sandboxes, ending, each, rate = 10_000, 1_000, 10 * time.Millisecond, 500
	server, err := embedded.Start(embedded.Config{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer server.Stop()
	d := &benched{deployment{server: server}, b}
	d.conn = d.connectBench("test")
	defer d.runBench("c1")()
	for range b.N {
		first := time.Now().Add(20 * time.Second) // all sandboxes exist by then
		journals := d.living(sandboxes, func(i int) time.Duration {
			if i < ending {
				return time.Until(first) + time.Duration(i)*each
			}
			return time.Hour
		})
		if late := time.Since(first); late > 0 {
			b.Fatalf("creating %d sandboxes took %s too long", sandboxes, late)
		}
		time.Sleep(time.Until(first))
		ctx, stop := context.WithTimeout(b.Context(), ending*each)
		execs := d.keepBusy(ctx, journals[ending:], rate)
		stop()
		time.Sleep(3 * time.Second)
		late := make([]time.Duration, ending)
		for i, j := range journals[:ending] {
			if err := j.Refresh(b.Context()); err != nil {
				b.Fatal(err)
			}
			s, _ := j.State()
			if s.Sandbox.Desired != protocol.StateDeleted {
				b.Fatalf("a sandbox still runs %s after it expired", time.Since(s.Sandbox.ExpiresAt))
			}
			late[i] = s.Sandbox.StateChangedAt.Sub(s.Sandbox.ExpiresAt)
		}
		slices.Sort(late)
		b.ReportMetric(float64(late[ending/2].Milliseconds()), "late-p50-ms")
		b.ReportMetric(float64(late[ending-1].Milliseconds()), "late-max-ms")
		b.ReportMetric(float64(execs)/(ending*each).Seconds(), "execs/s")
	}
}

// living creates n sandboxes that are ready. ttl returns the time to live of each.
func (d *benched) living(n int, ttl func(i int) time.Duration) []*jetstream.Journal {
	journals := make([]*jetstream.Journal, n)
	group, ctx := errgroup.WithContext(d.b.Context())
	group.SetLimit(64)
	for i := range n {
		group.Go(func() error {
			spec := &protocol.SandboxSpec{Image: "i", TTL: protocol.Duration(ttl(i))}
			spec.Resolve()
			j := d.conn.Journal(jetstream.JournalConfig{Tenant: "default", Sandbox: fmt.Sprint("s", i), Writer: "w1",
				KeepEnded: 10})
			journals[i] = j
			_, err := j.Do(ctx, func(*protocol.State, time.Time) ([]protocol.Event, error) {
				return []protocol.Event{
					{Kind: protocol.SandboxAccepted, Details: &protocol.SandboxDetails{Spec: spec}},
					{Kind: protocol.SandboxAssigned,
						Details: &protocol.SandboxDetails{Worker: "w1", HostID: "h1", Generation: 1}},
					{Kind: protocol.SandboxReady, Details: &protocol.SandboxDetails{Boot: "b"}},
				}, nil
			})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		d.b.Fatal(err)
	}
	return journals
}

// keepBusy runs execs in randomly chosen sandboxes until ctx ends, and returns how many have ended.
func (d *benched) keepBusy(ctx context.Context, journals []*jetstream.Journal, rate int) (done int) {
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(256)
	began := time.Now()
	for n := 0; ctx.Err() == nil; n++ {
		time.Sleep(time.Until(began.Add(time.Duration(n) * time.Second / time.Duration(rate))))
		j, id := journals[rand.IntN(len(journals))], fmt.Sprint("x", n)
		group.Go(func() error {
			zero := 0
			for _, e := range []protocol.Event{
				{Kind: protocol.ExecAccepted, Request: id,
					Exec: &protocol.ExecDetails{ID: id, Spec: &protocol.ExecSpec{Command: []string{"true"}}}},
				{Kind: protocol.ExecStarted, Exec: &protocol.ExecDetails{ID: id, Boot: "b"}},
				{Kind: protocol.ExecFinished, Exec: &protocol.ExecDetails{ID: id, ExitCode: &zero, Inline: true}},
			} {
				if _, err := j.Do(d.b.Context(),
					func(*protocol.State, time.Time) ([]protocol.Event, error) {
						return []protocol.Event{e}, nil
					}); err != nil {
					d.b.Error(err)
					return err
				}
			}
			if ctx.Err() == nil {
				mu.Lock()
				done++
				mu.Unlock()
			}
			return nil
		})
	}
	_ = group.Wait() // the errors were reported to d.b
	return done
}
