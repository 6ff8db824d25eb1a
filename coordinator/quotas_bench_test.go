package coordinator

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

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

// BenchmarkManyUploads measures what 100,000 tiny uploads of one tenant cost: the count for one piece of an upload, and
// the reading of all uploads by a new leader. Run it with go test ./coordinator -run - -bench ManyUploads.
func BenchmarkManyUploads(b *testing.B) {
	const uploads = 100_000
	b.Run("piece", func(b *testing.B) {
		u, began := newUploadUsage(), time.Now()
		u.reset(time.Hour)
		for i := range uploads {
			u.set(jetstream.StoredUpload{Tenant: "t", Digest: fmt.Sprint(i), ID: fmt.Sprint(i), Bytes: 1, At: began})
		}
		for b.Loop() {
			if n := u.of("t", "", began); n != uploads {
				b.Fatal(n)
			}
		}
	})
	b.Run("start", func(b *testing.B) {
		server, err := embedded.Start(embedded.Config{Dir: b.TempDir(), SyncLazily: true})
		if err != nil {
			b.Fatal(err)
		}
		defer server.Stop()
		d := &benched{deployment{server: server}, b}
		d.conn = d.connectBench("test")
		if err := d.conn.Provision(b.Context(), jetstream.Assets{}); err != nil {
			b.Fatal(err)
		}
		storeUploads(b, server, uploads)
		for b.Loop() {
			cfg := Config{Name: "c1", Conn: d.connectBench("c1")}
			made := make(chan *coordinator, 1)
			cfg.made = func(c *coordinator) { made <- c }
			stop := runUntilReady(b, cfg)
			c := <-made
			for a := c.admitter.Load(); a == nil || !a.uploads.known(); a = c.admitter.Load() {
				time.Sleep(time.Millisecond)
			}
			if n := c.admitter.Load().uploads.of("t", "", c.conn.Now()); n != uploads {
				b.Fatal(n)
			}
			stop()
		}
	})
}

// storeUploads stores uploads of one byte as the object store does.
func storeUploads(b *testing.B, server *embedded.Server, uploads int) {
	b.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(server))
	if err != nil {
		b.Fatal(err)
	}
	defer nc.Close()
	js, err := natsjs.New(nc, natsjs.WithPublishAsyncMaxPending(1024))
	if err != nil {
		b.Fatal(err)
	}
	for i := range uploads {
		name, id := fmt.Sprintf("t/sha256-%064x", i), fmt.Sprintf("id%020d", i)
		entry, err := json.Marshal(natsjs.ObjectInfo{ObjectMeta: natsjs.ObjectMeta{Name: name},
			Bucket: protocol.BucketBlobs, NUID: id, Size: 1, Chunks: 1})
		if err != nil {
			b.Fatal(err)
		}
		chunk := nats.NewMsg("$O." + protocol.BucketBlobs + ".C." + id)
		chunk.Header.Set("Boxfleet-Object", name)
		chunk.Data = []byte("x")
		meta := nats.NewMsg("$O." + protocol.BucketBlobs + ".M." + base64.URLEncoding.EncodeToString([]byte(name)))
		meta.Data = entry
		for _, m := range []*nats.Msg{chunk, meta} {
			if _, err := js.PublishMsgAsync(m); err != nil {
				b.Fatal(err)
			}
		}
	}
	<-js.PublishAsyncComplete()
}

// BenchmarkManyTenants lists 100,000 tenants, page by page. Run it with go test ./coordinator -run - -bench
// ManyTenants.
func BenchmarkManyTenants(b *testing.B) {
	const tenants = 100_000
	server, err := embedded.Start(embedded.Config{Dir: b.TempDir(), SyncLazily: true})
	if err != nil {
		b.Fatal(err)
	}
	defer server.Stop()
	d := &benched{deployment{server: server}, b}
	cfg := Config{Name: "c1", Conn: d.connectBench("c1")}
	if err := cfg.setDefaults(); err != nil {
		b.Fatal(err)
	}
	c := newCoordinator(cfg)
	for i := range tenants {
		h := handle("s", protocol.StatePending)
		h.Tenant, h.Spec = fmt.Sprint("t", i), *small()
		c.projection.put(h, uint64(i))
	}
	c.projection.read.deletedRead.give()
	c.quotas.own.Store(&map[string]protocol.Quota{"*": {Sandboxes: 1}})
	pages := 0
	for b.Loop() {
		listed := 0
		for q := (protocol.Query{Limit: maxLimit}); ; pages++ {
			page, next, err := c.tenants(&q)
			if err != nil {
				b.Fatal(err)
			}
			if listed += len(page); next == "" {
				break
			}
			q.Page = next
		}
		if listed != tenants {
			b.Fatalf("%d tenants are listed", listed)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(pages), "ms/page")
}
