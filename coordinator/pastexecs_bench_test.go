package coordinator

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/coordinator/execindex"
	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/integration/seed"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
)

// BenchmarkPastExecs measures reads of one of many ended execs, one read at a time and 200 at once. It also measures
// the time until a new exec is accepted, in this sandbox and in a sandbox without past execs, and the memory of the
// index. Run it with go test ./coordinator -run - -bench PastExecs -benchtime 1x.
func BenchmarkPastExecs(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { benchmarkPast(b, n) })
	}
}

func benchmarkPast(b *testing.B, n int) {
	server, err := embedded.Start(embedded.Config{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer server.Stop()
	d := &benched{deployment{server: server}, b}
	d.conn = d.connectBench("test")
	stop := d.runBench("c1")
	for _, sandbox := range []string{"fresh", "past"} {
		d.append(sandbox,
			protocol.Event{Kind: protocol.SandboxAccepted,
				Details: &protocol.SandboxDetails{Spec: &protocol.SandboxSpec{Image: "i"}}},
			protocol.Event{Kind: protocol.SandboxAssigned,
				Details: &protocol.SandboxDetails{Worker: "w1", HostID: "h1", Generation: 1}},
			protocol.Event{Kind: protocol.SandboxReady, Details: &protocol.SandboxDetails{Boot: "b"}})
	}
	if err := seed.Execs(b.Context(), d.conn, "default", "past", seed.Past{N: n, PerMessage: 10}); err != nil {
		b.Fatal(err)
	}
	eventually.Holds(b, 10*time.Minute, "the index has the seeded execs", func() bool {
		h, err := d.conn.ExecHead(b.Context(), "default", "past")
		return err == nil && h.Count+h.Entries.Len() >= n
	})
	stop()
	defer d.runBench("c2")()
	get := func() time.Duration {
		began := time.Now()
		_, err := d.conn.Query(b.Context(), "default", protocol.EndpointExec,
			&protocol.Query{Sandbox: "past", Exec: seed.ID(rand.IntN(n))})
		if err != nil {
			b.Error(err)
		}
		return time.Since(began)
	}
	get()
	report := func(what string, took []time.Duration) {
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2].Microseconds()), what+"-p50-µs")
		b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), what+"-p99-µs")
	}
	b.ResetTimer()
	for range b.N {
		var took []time.Duration
		for range 500 {
			took = append(took, get())
		}
		report("get", took)
		var mu sync.Mutex
		var wg sync.WaitGroup
		took = took[:0]
		for range 200 {
			wg.Go(func() {
				for range 10 {
					one := get()
					mu.Lock()
					took = append(took, one)
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		report("get-200-at-once", took)
		both := map[string][]time.Duration{}
		for i := range 300 {
			for _, sandbox := range []string{"fresh", "past"} {
				both[sandbox] = append(both[sandbox], d.exec(sandbox, fmt.Sprint("new-", i)))
			}
		}
		report("exec-fresh", both["fresh"])
		report("exec-past", both["past"])
	}
	b.StopTimer()
	b.ReportMetric(d.memoryOfIDs(n), "bytes-of-filter/id")
}

// benched is a deployment for a benchmark.
type benched struct {
	deployment
	b *testing.B
}

func (d *benched) connectBench(name string) *jetstream.Conn {
	conn, err := jetstream.Connect(d.b.Context(),
		jetstream.Config{InProcess: d.server, Name: name, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		d.b.Fatal(err)
	}
	d.b.Cleanup(conn.Close)
	return conn
}

func (d *benched) runBench(name string) (stop func()) {
	return runUntilReady(d.b, Config{Name: name, Conn: d.connectBench(name), MaxActiveExecs: protocol.MaxActiveExecs,
		Timing: Timing{Snapshot: time.Second}, Logger: slog.New(slog.DiscardHandler)})
}

func (d *benched) append(sandbox string, events ...protocol.Event) {
	j := d.conn.Journal(jetstream.JournalConfig{Tenant: "default", Sandbox: sandbox, Writer: "w1"})
	if _, err := j.Do(d.b.Context(), func(*protocol.State, time.Time) ([]protocol.Event, error) {
		return events, nil
	}); err != nil {
		d.b.Fatal(err)
	}
}

// exec returns how long it takes until an exec is accepted.
func (d *benched) exec(sandbox, id string) time.Duration {
	answers, err := d.conn.Answers()
	if err != nil {
		d.b.Fatal(err)
	}
	defer answers.Close()
	inbox, answer, stop := answers.Expect(sandbox + id)
	defer stop()
	r := protocol.Request{Version: protocol.Version, ExecID: id, Exec: &protocol.ExecSpec{Command: []string{"true"}}}
	began := time.Now()
	if err := d.conn.Submit(d.b.Context(), "default", protocol.VerbExec, sandbox, sandbox+id, inbox,
		protocol.Encode(&r)); err != nil {
		d.b.Fatal(err)
	}
	if reply := <-answer; reply.Error != nil {
		d.b.Fatal(reply.Error)
	}
	return time.Since(began)
}

// memoryOfIDs returns how many bytes the filters of the sandbox's exec ids take per id.
func (d *benched) memoryOfIDs(n int) float64 {
	h, err := d.conn.ExecHead(d.b.Context(), "default", "past")
	if err != nil {
		d.b.Fatal(err)
	}
	pages, err := d.conn.ExecPages(d.b.Context(), "default", "past", h)
	if err != nil {
		d.b.Fatal(err)
	}
	bytes := execindex.FilterBytes(h.Entries)
	for _, p := range pages {
		bytes += execindex.FilterBytes(p)
	}
	return float64(bytes) / float64(n)
}
