package jetstream_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// each calls bench twice: with a single server that syncs each write, and with a cluster.
func each(b *testing.B, bench func(b *testing.B, d *deployment)) {
	b.Run("server", func(b *testing.B) { bench(b, startServer(b, jetstream.Assets{})) })
	b.Run("cluster", func(b *testing.B) { bench(b, sharedCluster(b)) })
}

// timed calls round repeatedly and reports the median duration of these calls.
func timed(b *testing.B, round func(i int)) {
	took := make([]time.Duration, 0, b.N)
	for i := 0; b.Loop(); i++ {
		start := time.Now()
		round(i)
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(len(took))/b.Elapsed().Seconds(), "/s")
}

var unique int // makes ids unique: the framework calls a benchmark several times

func BenchmarkAppend(b *testing.B) {
	each(b, func(b *testing.B, d *deployment) {
		c := d.opened(b)
		unique++
		sandbox, record := fmt.Sprintf("b%d", unique), uint64(0)
		batch := accepted(d.tenant, sandbox, "k1")
		timed(b, func(i int) {
			var err error
			batch.Events[0].Sequence = uint64(i + 1)
			record, err = c.Append(b.Context(), batch, record)
			must(b, err)
		})
	})
}

func BenchmarkJournal(b *testing.B) {
	for _, parallel := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("parallel=%d", parallel), func(b *testing.B) {
			each(b, func(b *testing.B, d *deployment) {
				c := d.opened(b)
				unique++
				sandbox := fmt.Sprintf("b%d", unique)
				readySandbox(b, c, d.tenant, sandbox)
				j := c.Journal(jetstream.JournalConfig{Tenant: d.tenant, Sandbox: sandbox, Writer: "k1"})
				var wg sync.WaitGroup
				work := make(chan string)
				for range parallel {
					wg.Go(func() {
						for id := range work {
							if _, err := j.Do(context.WithoutCancel(b.Context()), runExec(id)); err != nil {
								b.Error(err)
							}
						}
					})
				}
				for i := 0; b.Loop(); i++ {
					work <- fmt.Sprintf("x%d", i)
				}
				close(work)
				wg.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "/s")
			})
		})
	}
}

// runExec accepts and ends an exec, so that the state stays small.
func runExec(id string) jetstream.Decide {
	return func(s *protocol.State, now time.Time) ([]protocol.Event, error) {
		events, err := acceptExec(id)(s, now)
		return append(events, protocol.Event{Kind: protocol.ExecCancelled, Exec: &protocol.ExecDetails{ID: id}}), err
	}
}

func BenchmarkReplayOf10000Events(b *testing.B) {
	each(b, func(b *testing.B, d *deployment) {
		c := d.opened(b)
		readySandbox(b, c, d.tenant, "replay")
		j := journal(c, d.tenant, "replay", "k1")
		for i := range 5000 {
			_, err := j.Do(b.Context(), runExec(fmt.Sprintf("x%d", i)))
			must(b, err)
		}
		events := 0
		for b.Loop() {
			fresh := c.Journal(jetstream.JournalConfig{Tenant: d.tenant, Sandbox: "replay", Writer: "k2"})
			must(b, fresh.Refresh(b.Context()))
			fresh.View(func(s *protocol.State, _ uint64) { events += int(s.Sandbox.Sequence) })
		}
		b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
	})
}

func BenchmarkReserve(b *testing.B) {
	each(b, func(b *testing.B, d *deployment) {
		c := d.opened(b)
		unique++
		prefix := fmt.Sprintf("r%d", unique)
		timed(b, func(i int) {
			_, err := c.ReserveSandbox(
				b.Context(),
				d.tenant,
				fmt.Sprintf("%s-%d", prefix, i),
				protocol.Reservation{Request: "r"},
			)
			must(b, err)
		})
	})
}

func BenchmarkLeaseTakenAndReleased(b *testing.B) {
	each(b, func(b *testing.B, d *deployment) {
		c := d.opened(b)
		timed(b, func(int) {
			l, err := c.AcquireHost(b.Context(), d.tenant, holder("w1"), 0)
			must(b, err)
			must(b, l.Release(b.Context()))
		})
	})
}
