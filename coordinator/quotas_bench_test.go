package coordinator

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
)

// BenchmarkFoldWithQuotas folds changes of execs into the indexes of 1,000 sandboxes. It measures all indexes, and then
// only the sums for quotas.
func BenchmarkFoldWithQuotas(b *testing.B) {
	const sandboxes = 1000
	for _, part := range []string{"all", "sums"} {
		b.Run(part, func(b *testing.B) {
			p := newProjection(nil, nil, "c1", 0)
			handles := make([][2]*protocol.Sandbox, sandboxes)
			for i := range handles {
				for execs := range 2 {
					h := handle(fmt.Sprint("s", i), protocol.StateReady)
					h.Tenant, h.Worker, h.HostID, h.Assigned = fmt.Sprint("t", i%10), "w1", "h1", true
					h.Spec, h.ActiveExecs = *small(), execs
					handles[i][execs] = h
				}
				p.put(handles[i][1], 1)
			}
			for n := 0; b.Loop(); n++ {
				h := handles[n%sandboxes][n/sandboxes%2]
				if part == "all" {
					p.put(h, uint64(n))
				} else {
					p.work.countLocked(key{Tenant: h.Tenant, ID: h.ID}, h)
				}
			}
		})
	}
}

// BenchmarkExecsWithQuota accepts execs of 64 sandboxes, for a tenant with and without a limit of execs, by one
// coordinator and by two. With two coordinators, about half of the claims go to the other coordinator. Run it with go
// test ./coordinator -run - -bench ExecsWithQuota -benchtime 20000x.
func BenchmarkExecsWithQuota(b *testing.B) {
	const sandboxes = 64
	for _, coordinators := range []int{1, 2} {
		for _, quota := range []string{"", "default: {execs: 1000000}"} {
			b.Run(fmt.Sprintf("coordinators=%d/limited=%t", coordinators, quota != ""), func(b *testing.B) {
				server, err := embedded.Start(embedded.Config{Dir: b.TempDir()})
				if err != nil {
					b.Fatal(err)
				}
				defer server.Stop()
				d := &benched{deployment{server: server}, b}
				d.conn = d.connectBench("test")
				for i := range coordinators {
					name := fmt.Sprint("c", i)
					cfg := Config{Name: name, Conn: d.connectBench(name), ReadQuotas: quotasOf(quota).read, MaxActiveExecs: 8192}
					defer runUntilReady(b, cfg)()
				}
				d.living(sandboxes, func(int) time.Duration { return time.Hour })
				answers, err := d.conn.Answers()
				if err != nil {
					b.Fatal(err)
				}
				defer answers.Close()
				var next atomic.Int64
				var group sync.WaitGroup
				b.ResetTimer()
				cpu := cpuTime()
				for s := range sandboxes {
					group.Go(func() {
						for n := next.Add(1); n <= int64(b.N); n = next.Add(1) {
							d.acceptExec(answers, s, fmt.Sprint("x", n))
						}
					})
				}
				group.Wait()
				b.ReportMetric(float64((cpuTime()-cpu).Microseconds())/float64(b.N), "cpu-µs/op") // includes the server's time
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "execs/s")
			})
		}
	}
}

// acceptExec requests an exec and waits until it is accepted.
func (d *benched) acceptExec(answers *jetstream.Answers, sandbox int, id string) {
	inbox, answer, stop := answers.Expect(id)
	defer stop()
	r := execRequest(id)
	r.Version = protocol.Version
	if err := d.conn.Submit(d.b.Context(), "default", protocol.VerbExec, fmt.Sprint("s", sandbox), id, inbox,
		protocol.Encode(&r)); err != nil {
		d.b.Error(err)
		return
	}
	for reply := range answer {
		if reply.Waiting != nil {
			continue
		}
		if reply.Error != nil {
			d.b.Error(reply.Error)
		}
		return
	}
}
