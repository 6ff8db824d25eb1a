package execindex

import (
	"context"
	"encoding/binary"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
)

// deployment is an embedded server with the streams of a deployment and one ready sandbox, "a".
type deployment struct {
	t      *testing.T
	server *embedded.Server
	conn   *jetstream.Conn
}

func provisioned(t *testing.T) *deployment {
	t.Helper()
	server, err := embedded.Start(embedded.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	conn, err := jetstream.Connect(t.Context(), jetstream.Config{
		InProcess: server, Name: "test", Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if err := conn.Provision(t.Context(), jetstream.Assets{}); err != nil {
		t.Fatal(err)
	}
	d := &deployment{t: t, server: server, conn: conn}
	d.appendEvents(
		protocol.Event{Kind: protocol.SandboxAccepted,
			Details: &protocol.SandboxDetails{Spec: &protocol.SandboxSpec{Image: "i"}}},
		protocol.Event{Kind: protocol.SandboxAssigned,
			Details: &protocol.SandboxDetails{Worker: "w1", HostID: "h1", Generation: 1}},
		protocol.Event{Kind: protocol.SandboxReady, Details: &protocol.SandboxDetails{Boot: "b"}})
	return d
}

// appendEvents appends to the history of the sandbox.
func (d *deployment) appendEvents(events ...protocol.Event) {
	d.t.Helper()
	j := d.conn.Journal(jetstream.JournalConfig{Tenant: theOne.Tenant, Sandbox: theOne.ID, Writer: "w1"})
	ctx, cancel := context.WithTimeout(d.t.Context(), 10*time.Second)
	defer cancel()
	if _, err := j.Do(ctx, func(*protocol.State, time.Time) ([]protocol.Event, error) {
		return events, nil
	}); err != nil {
		d.t.Fatal(err)
	}
}

// raw calls f with a plain connection to NATS, for operations that Boxfleet never does.
func (d *deployment) raw(f func(js natsjs.JetStream) error) {
	d.t.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(d.server))
	if err != nil {
		d.t.Fatal(err)
	}
	defer nc.Close()
	js, err := natsjs.New(nc)
	if err == nil {
		err = f(js)
	}
	if err != nil {
		d.t.Fatal(err)
	}
}

// storedExecs returns how many execs the stored index of a sandbox has.
func (d *deployment) storedExecs(sandbox string) int {
	d.t.Helper()
	h, err := d.conn.ExecHead(d.t.Context(), "default", sandbox)
	if err == jetstream.ErrNoIndex {
		return 0
	}
	if err != nil {
		d.t.Fatal(err)
	}
	pages, err := d.conn.ExecPages(d.t.Context(), "default", sandbox, h)
	if err != nil {
		d.t.Fatal(err)
	}
	var all []jetstream.ExecEntry
	for _, p := range pages {
		all = append(all, p.Entries()...)
	}
	return len(jetstream.Merge(all, h.Entries))
}

// purgeBucket removes keys from a bucket, as if they had never been there.
func (d *deployment) purgeBucket(bucket, keys string) {
	d.t.Helper()
	d.raw(func(js natsjs.JetStream) error {
		stream, err := js.Stream(d.t.Context(), "KV_"+bucket)
		if err != nil {
			return err
		}
		return stream.Purge(d.t.Context(), natsjs.WithPurgeSubject("$KV."+bucket+"."+keys))
	})
}

// storeAsBefore stores exec ids in the format of an older version.
func (d *deployment) storeAsBefore(sandbox string, ids ...string) {
	d.t.Helper()
	var page struct {
		Version int    `json:"v"`
		Hashes  []byte `json:"hashes"`
	}
	page.Version = protocol.Version
	for _, id := range ids {
		page.Hashes = binary.BigEndian.AppendUint64(page.Hashes, jetstream.HashExec(id).Prefix())
	}
	d.raw(func(js natsjs.JetStream) error {
		_, err := js.Publish(d.t.Context(), "$KV."+protocol.BucketExecIDs+".default."+sandbox+".0",
			protocol.Encode(&page))
		return err
	})
}

// startedLate returns the view of a coordinator that starts after the sandbox exists, and folds its whole history.
func (d *deployment) startedLate() *indexed {
	d.t.Helper()
	x := New(d.conn, slog.New(slog.DiscardHandler))
	j := d.conn.Journal(jetstream.JournalConfig{Tenant: theOne.Tenant, Sandbox: theOne.ID, Writer: "c", KeepEnded: 8,
		OnApply: func(s *protocol.State, b *protocol.Batch) { x.Applied(theOne, s, b) }})
	i := &indexed{x, j}
	i.refresh(d)
	return i
}
