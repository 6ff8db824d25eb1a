package jetstream_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
)

func TestOpenBeforeProvisioningSaysNotProvisioned(t *testing.T) {
	t.Parallel()
	s, err := embedded.Start(embedded.Config{Dir: t.TempDir()})
	must(t, err)
	t.Cleanup(s.Stop)
	d := &deployment{servers: []*embedded.Server{s}}
	wantError(t, d.conn(t).Open(t.Context()), protocol.FailedPrecondition, protocol.ReasonNotProvisioned)
}

func TestTwoThatProvisionAtOnceAgreeOnTheDeployment(t *testing.T) {
	t.Parallel()
	s, err := embedded.Start(embedded.Config{Dir: t.TempDir()})
	must(t, err)
	t.Cleanup(s.Stop)
	d := &deployment{servers: []*embedded.Server{s}}
	const n = 4
	conns, errs := make([]*jetstream.Conn, n), make(chan error, n)
	for i := range conns {
		conns[i] = d.conn(t)
		go func() { errs <- conns[i].Provision(context.WithoutCancel(t.Context()), jetstream.Assets{}) }()
	}
	for range conns {
		must(t, receive(t, 10*time.Second, "the end of provisioning", errs))
	}
	for _, c := range conns {
		if c.Deployment() == "" || c.Deployment() != conns[0].Deployment() {
			t.Fatalf("deployments %q and %q", conns[0].Deployment(), c.Deployment())
		}
	}
}

func TestProvisionAgainKeepsTheDeploymentAndUpdatesWhatChanged(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		before := d.opened(t).Deployment()
		changed := d.assets
		changed.LogMaxAge = 7 * time.Hour
		c := d.conn(t)
		must(t, c.Provision(t.Context(), changed))
		if c.Deployment() != before {
			t.Fatalf("the deployment was %s and is %s", before, c.Deployment())
		}
		js, err := natsjs.New(d.raw(t))
		must(t, err)
		logs, err := js.Stream(t.Context(), protocol.StreamLogs)
		must(t, err)
		if age := logs.CachedInfo().Config.MaxAge; age != 7*time.Hour {
			t.Fatalf("max age of the output is %s", age)
		}
		must(t, c.Provision(t.Context(), d.assets))
	})
}

func TestReservedIDsCanBeTakenAwayByNobody(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		c := d.opened(t)
		ctx := t.Context()
		_, err := c.ReserveSandbox(ctx, d.tenant, "s1", protocol.Reservation{Request: "r1"})
		must(t, err)
		nc := d.raw(t)
		js, err := natsjs.New(nc)
		must(t, err)
		ids, err := js.KeyValue(ctx, protocol.BucketIDs)
		must(t, err)
		key := d.tenant + "." + "s1"
		stream, err := js.Stream(ctx, "KV_"+protocol.BucketIDs)
		must(t, err)
		publish := func(header, value string, opts ...natsjs.PublishOpt) error {
			m := nats.NewMsg("$KV." + protocol.BucketIDs + "." + key)
			m.Header.Set(header, value)
			_, err := js.PublishMsg(ctx, m, opts...)
			return err
		}
		entry, err := ids.Get(ctx, key)
		must(t, err)
		attacks := map[string]func() error{
			"create":         func() error { _, err := ids.Create(ctx, key, []byte("x")); return err },
			"put":            func() error { _, err := ids.Put(ctx, key, []byte("x")); return err },
			"update":         func() error { _, err := ids.Update(ctx, key, []byte("x"), entry.Revision()); return err },
			"delete":         func() error { return ids.Delete(ctx, key) },
			"purge":          func() error { return ids.Purge(ctx, key) },
			"raw rollup":     func() error { return publish("Nats-Rollup", "sub") },
			"raw rollup all": func() error { return publish("Nats-Rollup", "all") },
			"raw marker":     func() error { return publish("KV-Operation", "DEL") },
			"raw expected":   func() error { return publish("X", "y", natsjs.WithExpectLastSequencePerSubject(entry.Revision())) },
			"message delete": func() error { return stream.DeleteMsg(ctx, entry.Revision()) },
			"secure delete":  func() error { return stream.SecureDeleteMsg(ctx, entry.Revision()) },
			"stream purge":   func() error { return stream.Purge(ctx) },
			"undeny": func() error {
				cfg := stream.CachedInfo().Config
				cfg.DenyDelete, cfg.DenyPurge = false, false
				_, err := js.UpdateStream(ctx, cfg)
				return err
			},
		}
		for name, attack := range attacks {
			if err := attack(); err == nil {
				t.Errorf("%s works", name)
			}
			r, err := c.SandboxReservation(ctx, d.tenant, "s1")
			if err != nil || r.Request != "r1" {
				t.Fatalf("after %s the reservation is %+v, %v", name, r, err)
			}
		}
		if before, err := c.ReserveSandbox(ctx, d.tenant, "s1", protocol.Reservation{Request: "r2"}); err != nil || before == nil {
			t.Fatalf("taken again: %+v, %v", before, err)
		}
	})
}

func TestAppendsAreStoredUnderTheSandboxAndHeardLive(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		c := d.opened(t)
		nc := d.raw(t)
		live, err := nc.SubscribeSync(protocol.LiveSubject(d.tenant, "s1"))
		must(t, err)
		must(t, nc.Flush())
		heard := make(chan *protocol.Batch, 10)
		stop, err := c.Live(d.tenant, "s1", func(b *protocol.Batch) { heard <- b })
		must(t, err)
		defer stop()
		must(t, c.Flush(t.Context()))
		events, err := journal(c, d.tenant, "s1", "writer-7").Do(t.Context(), becomeReady)
		must(t, err)

		m, err := live.NextMsg(5 * time.Second)
		must(t, err)
		if m.Header.Get("Nats-Sequence") == "" || m.Header.Get("Nats-Subject") != protocol.EventSubject(d.tenant, "s1") {
			t.Fatalf("headers of the live message: %v", m.Header)
		}
		if k := m.Header.Get(protocol.HeaderKind); !strings.HasPrefix(k, "sandbox.accepted,") || m.Header.Get(protocol.HeaderWriter) != "writer-7" {
			t.Fatalf("headers for people: %v", m.Header)
		}
		b := receive(t, 5*time.Second, "the batch", heard)
		if b.Record != events[0].Record || b.First() != 1 || b.Last() != 3 {
			t.Fatalf("heard %+v, appended at %d", b, events[0].Record)
		}
		// From the leader: a replica may not have it yet.
		stored, err := nc.Request("$JS.API.STREAM.MSG.GET."+protocol.StreamEvents, fmt.Appendf(nil, `{"seq":%d}`, b.Record), 5*time.Second)
		must(t, err)
		if !strings.Contains(string(stored.Data), `"subject":"`+protocol.EventSubject(d.tenant, "s1")+`"`) {
			t.Fatalf("stored as %s", stored.Data)
		}
	})
}
