package coordinator

import (
	"encoding/binary"
	"log/slog"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// purgeBucket takes keys out of a bucket behind everybody's back.
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

// storeAsBefore stores ids of a sandbox's execs as an older version did.
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
		_, err := js.Publish(d.t.Context(), "$KV."+protocol.BucketExecIDs+".default."+sandbox+".0", protocol.Encode(&page))
		return err
	})
}

// startedLate is a coordinator that starts when the sandbox is there, and folds its whole history.
func (d *deployment) startedLate() *indexed {
	d.t.Helper()
	x := newExecIndex(d.conn, slog.New(slog.DiscardHandler))
	j := d.conn.Journal(jetstream.JournalConfig{Tenant: theOne.tenant, Sandbox: theOne.id, Writer: "c", KeepEnded: 8,
		OnApply: func(s *protocol.State, b *protocol.Batch) { x.applied(theOne, s, b) }})
	i := &indexed{x, j}
	i.refresh(d)
	return i
}
