package jetstream_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
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

func TestConcurrentProvisioningAgreesOnTheDeployment(t *testing.T) {
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

// A server that still sets up its account can fail to make a stream, because it removes the directory that it made to
// test its disk. Here, a file takes the place of the directory. The server removes the file when it has failed.
func TestProvisioningOutlivesAServerThatCannotMakeStreamsYet(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := embedded.Start(embedded.Config{Dir: dir})
	must(t, err)
	t.Cleanup(s.Stop)
	d := &deployment{servers: []*embedded.Server{s}}
	// The account is set up.
	wantError(t, d.conn(t).Open(t.Context()), protocol.FailedPrecondition, protocol.ReasonNotProvisioned)
	account := filepath.Join(dir, "jetstream", "$G")
	must(t, os.MkdirAll(account, 0o700))
	streams := filepath.Join(account, "streams")
	must(t, os.RemoveAll(streams))
	must(t, os.WriteFile(streams, nil, 0o600))
	must(t, d.conn(t).Provision(t.Context(), jetstream.Assets{}))
}

// A cluster that has just started drops some requests and loses answers. The client alone would wait 10 s for such an
// answer.
func TestAFreshClusterIsProvisionedWithoutWaitingForALostAnswer(t *testing.T) {
	t.Parallel()
	servers, err := embedded.StartCluster(t.TempDir(), 3)
	must(t, err)
	d := &deployment{servers: servers}
	t.Cleanup(func() {
		for _, s := range servers {
			s.Stop()
		}
	})
	const n = 3
	errs, began := make(chan error, n), time.Now()
	for range n {
		c := d.conn(t)
		go func() { errs <- c.Provision(context.WithoutCancel(t.Context()), jetstream.Assets{Replicas: 3}) }()
	}
	for range n {
		must(t, receive(t, 60*time.Second, "the end of provisioning", errs))
	}
	if took := time.Since(began); took > 9*time.Second {
		t.Errorf("provisioning took %s, want at most 9 s", took)
	}
}

// someStreams has a stream or bucket of each kind. limited has the streams and buckets that get a size limit.
var (
	someStreams = []string{
		protocol.StreamRequests, protocol.StreamEvents, protocol.StreamLogs,
		"KV_" + protocol.BucketIDs, "OBJ_" + protocol.BucketBlobs,
	}
	limited = []string{protocol.StreamEvents, "KV_" + protocol.BucketIDs, "OBJ_" + protocol.BucketImageFiles}
)

// configOf reads the configuration of a stream.
func configOf(t *testing.T, d *deployment, name string) natsjs.StreamConfig {
	t.Helper()
	js, err := natsjs.New(d.raw(t))
	must(t, err)
	stream, err := js.Stream(t.Context(), name)
	must(t, err)
	return stream.CachedInfo().Config
}

func TestProvisioningAgainOnlyAdds(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{LogMaxAge: 7 * time.Hour})
	before := d.opened(t).Deployment()
	c := d.conn(t)
	must(t, c.Provision(t.Context(), jetstream.Assets{}))
	if c.Deployment() != before {
		t.Fatalf("the deployment was %s and is %s", before, c.Deployment())
	}
	if age := configOf(t, d, protocol.StreamLogs).MaxAge; age != 7*time.Hour {
		t.Fatalf("the output's max age is %s although the setting did not change, want 7h", age)
	}
	must(t, c.Provision(t.Context(), jetstream.Assets{LogMaxAge: 8 * time.Hour}))
	if age := configOf(t, d, protocol.StreamLogs).MaxAge; age != 8*time.Hour {
		t.Fatalf("the output's max age is %s, want 8h", age)
	}
}

func TestProvisioningRefusesToWeakenBeforeItChangesAnything(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c := d.opened(t)
	events := configOf(t, d, protocol.StreamEvents).MaxBytes
	for field, a := range map[string]jetstream.Assets{
		"log_max_age":     {LogMaxAge: time.Hour},
		"log_max_bytes":   {LogMaxBytes: 1 << 20},
		"event_max_bytes": {EventMaxBytes: 1 << 20},
		"requests":        {Requests: 10},
		"blob_max_age":    {BlobMaxAge: time.Hour},
		"lock_ttl":        {LockTTL: time.Second},
		"image_max_bytes": {ImageMaxBytes: 1 << 20},
		"replicas":        {Replicas: 3},
	} {
		if a.EventMaxBytes == 0 {
			a.EventMaxBytes = 2 * events // alone, this change would be accepted
		}
		err := c.Provision(t.Context(), a)
		wantError(t, err, protocol.FailedPrecondition, "")
		if got := protocol.AsError(err).Field; got != field || !strings.Contains(err.Error(), "boxfleet storage") {
			t.Errorf("%s: the error names field %q: %v", field, got, err)
		}
		if got := configOf(t, d, protocol.StreamEvents).MaxBytes; got != events {
			t.Fatalf("%s was refused, after the event log's limit was changed to %d", field, got)
		}
	}
	must(t, c.Change(t.Context(), jetstream.Assets{LogMaxAge: time.Hour, Requests: 10}))
	if got := configOf(t, d, protocol.StreamRequests).MaxMsgs; got != 10 {
		t.Fatalf("after the operator's change, the limit is %d requests, want 10", got)
	}
}

func TestProvisioningWithoutReplicasLeavesThree(t *testing.T) {
	t.Parallel()
	d := sharedCluster(t)
	err := d.conn(t).Provision(t.Context(), jetstream.Assets{Replicas: 1, LockTTL: lockTTL})
	wantError(t, err, protocol.FailedPrecondition, protocol.ReasonWouldWeaken)
	must(t, d.conn(t).Provision(t.Context(), jetstream.Assets{}))
	for _, stream := range someStreams {
		if got := configOf(t, d, stream).Replicas; got != 3 {
			t.Errorf("%s has %d replicas, want 3", stream, got)
		}
	}
}

func TestStreamsWithoutLimitsGetThemAndLoseNothing(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c := d.opened(t)
	readySandbox(t, c, d.tenant, "s1")
	js, err := natsjs.New(d.raw(t))
	must(t, err)
	for _, name := range limited {
		cfg := configOf(t, d, name)
		cfg.MaxBytes = -1
		if name == protocol.StreamEvents {
			cfg.Discard = natsjs.DiscardOld
		}
		_, err = js.UpdateStream(t.Context(), cfg)
		must(t, err)
	}
	must(t, d.conn(t).Provision(t.Context(), jetstream.Assets{}))
	for _, name := range limited {
		if cfg := configOf(t, d, name); cfg.MaxBytes <= 0 || cfg.Discard != natsjs.DiscardNew {
			t.Errorf("%s has a limit of %d bytes and discards %v", name, cfg.MaxBytes, cfg.Discard)
		}
	}
	readHistory(t, c, d.tenant, "s1")
}

func TestNobodyCanRemoveAReservedID(t *testing.T) {
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
			"raw expected": func() error {
				return publish("X", "y", natsjs.WithExpectLastSequencePerSubject(entry.Revision()))
			},
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
				t.Errorf("the server accepts %s of a reserved id", name)
			}
			r, err := c.SandboxReservation(ctx, d.tenant, "s1")
			if err != nil || r.Request != "r1" {
				t.Fatalf("after %s the reservation is %+v, %v", name, r, err)
			}
		}
		before, err := c.ReserveSandbox(ctx, d.tenant, "s1", protocol.Reservation{Request: "r2"})
		if err != nil || before == nil {
			t.Fatalf("the id was reserved again: %+v, %v", before, err)
		}
	})
}

func TestAppendsAreStoredUnderTheSandboxAndPublishedLive(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		c := d.opened(t)
		nc := d.raw(t)
		live, err := nc.SubscribeSync(protocol.LiveSubject(d.tenant, "s1"))
		must(t, err)
		must(t, nc.Flush())
		heard := liveBatches(t, c, d.tenant, "s1")
		must(t, c.Flush(t.Context()))
		events, err := journal(c, d.tenant, "s1", "writer-7").Do(t.Context(), becomeReady)
		must(t, err)

		m, err := live.NextMsg(5 * time.Second)
		must(t, err)
		if m.Header.Get("Nats-Sequence") == "" ||
			m.Header.Get("Nats-Subject") != protocol.EventSubject(d.tenant, "s1") {
			t.Fatalf("the live message lacks the server's headers: %v", m.Header)
		}
		kinds, writer := m.Header.Get(protocol.HeaderKind), m.Header.Get(protocol.HeaderWriter)
		if !strings.HasPrefix(kinds, "sandbox.accepted,") || writer != "writer-7" {
			t.Fatalf("the live message lacks the headers with the kinds and the writer: %v", m.Header)
		}
		b := receive(t, 5*time.Second, "the batch", heard)
		if b.Record != events[0].Record || b.First() != 1 || b.Last() != 3 {
			t.Fatalf("received the live batch %+v, want events 1 to 3 at record %d", b, events[0].Record)
		}
		// Read the message from the leader: a replica may not have it yet.
		stored, err := nc.Request(
			"$JS.API.STREAM.MSG.GET."+protocol.StreamEvents,
			fmt.Appendf(nil, `{"seq":%d}`, b.Record),
			5*time.Second,
		)
		must(t, err)
		if !strings.Contains(string(stored.Data), `"subject":"`+protocol.EventSubject(d.tenant, "s1")+`"`) {
			t.Fatalf("the message is stored under another subject: %s", stored.Data)
		}
	})
}
