package coordinator

import (
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
)

// BenchmarkStart starts a coordinator with 10,000 living sandboxes with 20 ended execs each, and 100,000 deleted
// sandboxes. It measures the coordinator's memory once it has read everything. The server runs in the same process; its
// memory is not counted.
func BenchmarkStart(b *testing.B) {
	for _, n := range []struct{ living, over int }{{10_000, 100_000}} {
		b.Run(fmt.Sprintf("living=%d/over=%d", n.living, n.over), func(b *testing.B) {
			server, err := embedded.Start(embedded.Config{Dir: b.TempDir()})
			if err != nil {
				b.Fatal(err)
			}
			defer server.Stop()
			conn, err := jetstream.Connect(b.Context(), jetstream.Config{InProcess: server, Name: "test"})
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close()
			if err := conn.Provision(b.Context(), jetstream.Assets{}); err != nil {
				b.Fatal(err)
			}
			if err := fill(b, conn, server, n.living, n.over); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				before, began, cpu := heapInUse(), time.Now(), cpuTime()
				p := newProjection(conn, nil, "c1", time.Second)
				if _, err := p.restore(b.Context()); err != nil {
					b.Fatal(err)
				}
				ready, used := time.Since(began), cpuTime()-cpu
				if err := p.readDeleted(b.Context()); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(ready.Seconds(), "s-to-ready")
				b.ReportMetric(used.Seconds(), "cpu-s-to-ready")
				b.ReportMetric(time.Since(began).Seconds(), "s-to-all")
				b.ReportMetric((float64(heapInUse())-float64(before))/1e6, "MB")
				runtime.KeepAlive(p)
				if len(p.read.sandboxes) != n.living || len(p.read.deleted) != n.over {
					b.Fatalf("%d sandboxes are living and %d are deleted", len(p.read.sandboxes), len(p.read.deleted))
				}
			}
		})
	}
}

// cpuTime returns the CPU time of this process, which includes the server.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // Getrusage cannot fail with these arguments
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// fill stores snapshots and a checkpoint that covers them.
func fill(b *testing.B, conn *jetstream.Conn, server *embedded.Server, living, over int) error {
	j := conn.Journal(jetstream.JournalConfig{Tenant: "default", Sandbox: "one", Writer: "w"})
	spec := protocol.SandboxSpec{Image: "i"}
	spec.Resolve()
	if _, err := j.Do(b.Context(), func(*protocol.State, time.Time) ([]protocol.Event, error) {
		return []protocol.Event{{Kind: protocol.SandboxAccepted, Request: "r",
			Details: &protocol.SandboxDetails{Spec: &spec}}}, nil
	}); err != nil {
		return err
	}
	at := j.Position()
	nc, err := nats.Connect("", nats.InProcessServer(server))
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := natsjs.New(nc, natsjs.WithPublishAsyncMaxPending(256))
	if err != nil {
		return err
	}
	put := func(key string, data []byte) error {
		_, err := js.PublishAsync("$KV."+protocol.BucketSandboxes+"."+key, data, natsjs.WithStallWait(time.Minute))
		return err
	}
	snapshot := func(id string, state protocol.SandboxState, execs int) *jetstream.Snapshot {
		s := &protocol.State{Sandbox: *handle(id, state), Execs: map[string]*protocol.Exec{}}
		s.Sandbox.Tenant, s.Sandbox.Spec, s.Sandbox.Assigned = "default", spec, true
		s.Sandbox.Worker, s.Sandbox.HostID = "w", "h"
		zero := 0
		for i := range execs {
			x := &protocol.Exec{Tenant: "default", Sandbox: id, ID: fmt.Sprintf("01k%023d", i),
				Request: fmt.Sprintf("01k%023d", i), State: protocol.ExecStateFinished,
				Spec: protocol.ExecSpec{Command: []string{"sh", "-c", "true"}}, ExitCode: &zero, Inline: true,
				AcceptedAt: time.Unix(1, 0), StartedAt: time.Unix(1, 0), EndedAt: time.Unix(1, 0)}
			s.Execs[x.ID], s.Ended = x, append(s.Ended, x.ID)
		}
		s.Sandbox.TotalExecs = execs
		return &jetstream.Snapshot{Version: protocol.Version, Record: at.Record, Fold: protocol.FoldVersion, State: s}
	}
	for i := range living {
		id := fmt.Sprintf("01l%023d", i)
		if err := put("default."+id, protocol.Encode(snapshot(id, protocol.StateReady, 20))); err != nil {
			return err
		}
	}
	<-js.PublishAsyncComplete()
	if over > 0 { // one snapshot, copied for all deleted sandboxes
		if err := conn.WriteEndedRecord(b.Context(), "default", "model",
			snapshot("model", protocol.StateDeleted, 0)); err != nil {
			return err
		}
		stream, err := js.Stream(b.Context(), "KV_"+protocol.BucketSandboxes)
		if err != nil {
			return err
		}
		model, err := stream.GetLastMsgForSubject(b.Context(), "$KV."+protocol.BucketSandboxes+".default.model.over")
		if err != nil {
			return err
		}
		for i := range over - 1 {
			if err := put(fmt.Sprintf("default.01o%023d.over", i), model.Data); err != nil {
				return err
			}
		}
	}
	<-js.PublishAsyncComplete()
	return conn.WriteCheckpoint(b.Context(), jetstream.Position{Record: at.Record, Batch: at.Batch}, 0)
}
