package jetstream_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// streamConfigs reads the configurations of all streams.
func streamConfigs(t *testing.T, d *deployment) map[string]natsjs.StreamConfig {
	t.Helper()
	js, err := natsjs.New(d.raw(t))
	must(t, err)
	all := map[string]natsjs.StreamConfig{}
	list := js.ListStreams(t.Context())
	for info := range list.Info() {
		all[info.Config.Name] = info.Config
	}
	must(t, list.Err())
	if len(all) < 17 {
		t.Fatalf("found only %d streams", len(all))
	}
	return all
}

// With a rollup header, a process that may write one subject of a stream could erase the whole stream: a worker, which
// may write the lock of its own host, could erase the locks of all hosts.
func TestEveryStreamRefusesRollups(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		js, err := natsjs.New(d.raw(t))
		must(t, err)
		wildcards := strings.NewReplacer("*", d.tenant, ">", d.tenant)
		for name, config := range streamConfigs(t, d) {
			for _, subject := range config.Subjects {
				for _, kind := range []string{"sub", "all"} {
					m := nats.NewMsg(wildcards.Replace(subject))
					m.Header.Set("Nats-Rollup", kind)
					_, err := js.PublishMsg(t.Context(), m)
					if err == nil || !strings.Contains(err.Error(), "rollup not permitted") {
						t.Errorf("%s: a rollup %q of %s: got %v, want a refusal", name, kind, m.Subject, err)
					}
				}
			}
		}
	})
}

// A message of a history or of a bucket cannot be removed by itself. A stream that is written once cannot be purged
// either.
func TestStreamsRefuseDeletesAndPurges(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	js, err := natsjs.New(d.raw(t))
	must(t, err)
	once := []string{protocol.StreamWriters, "KV_" + protocol.BucketIDs}
	for name := range streamConfigs(t, d) {
		stream, err := js.Stream(t.Context(), name)
		must(t, err)
		if name == protocol.StreamEvents || slices.Contains(once, name) || strings.HasPrefix(name, "KV_") {
			if err := stream.DeleteMsg(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "delete not permitted") {
				t.Errorf("%s: a delete returns %v, want a refusal", name, err)
			}
		}
		if slices.Contains(once, name) {
			if err := stream.Purge(t.Context()); err == nil || !strings.Contains(err.Error(), "purge not permitted") {
				t.Errorf("%s: a purge returns %v, want a refusal", name, err)
			}
		}
	}
}

// Buckets of earlier versions allowed rollups. A coordinator that starts forbids rollups in these buckets, and no
// message is lost.
func TestExistingBucketsRefuseRollupsAfterAStart(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c, ctx := d.opened(t), t.Context()
	js, err := natsjs.New(d.raw(t))
	must(t, err)
	must(t, c.PutImageFile(ctx, "x", strings.NewReader("content")))
	must(t, c.WantImage(ctx, &protocol.WantedImage{Ref: "x", Digest: "x", Format: protocol.ImageRootFS}))
	for name, config := range streamConfigs(t, d) {
		if !strings.HasPrefix(name, "BOXFLEET_") && !config.DenyPurge {
			config.AllowRollup = true
			_, err := js.UpdateStream(ctx, config)
			must(t, err)
		}
	}
	must(t, d.conn(t).Provision(ctx, jetstream.Assets{}))
	for name, config := range streamConfigs(t, d) {
		if config.AllowRollup {
			t.Errorf("%s allows rollups", name)
		}
	}
	wanted, _, err := c.Images(ctx)
	must(t, err)
	r, err := c.ImageFile(ctx, "x")
	must(t, err)
	must(t, r.Close())
	if len(wanted) != 1 {
		t.Errorf("%d wanted images are left of 1", len(wanted))
	}
}

// messages returns how many messages a stream has.
func messages(t *testing.T, d *deployment, stream string) uint64 {
	t.Helper()
	js, err := natsjs.New(d.raw(t))
	must(t, err)
	s, err := js.Stream(t.Context(), stream)
	must(t, err)
	return s.CachedInfo().State.Msgs
}

// alone runs a test against a single server and against a cluster of three servers. No other test uses these servers.
func alone(t *testing.T, test func(t *testing.T, d *deployment)) {
	t.Helper()
	t.Parallel()
	t.Run("server", func(t *testing.T) { test(t, startServer(t, jetstream.Assets{})) })
	t.Run("cluster", func(t *testing.T) { test(t, startCluster(t)) })
}

// Keys and objects are written, replaced and removed often. Afterwards, the streams have only the messages of the last
// writes.
func TestReplacedKeysAndObjectsDoNotAccumulate(t *testing.T) {
	alone(t, func(t *testing.T, d *deployment) {
		c, ctx := d.opened(t), t.Context()
		for i := range replacements {
			must(t, c.PutImageFile(ctx, "kept", strings.NewReader("content")))
			removed := fmt.Sprint("removed", i)
			must(t, c.PutImageFile(ctx, removed, strings.NewReader("content")))
			must(t, c.WantImage(ctx, &protocol.WantedImage{Ref: "r", Digest: removed, Format: protocol.ImageRootFS}))
			must(t, c.UnwantImage(ctx, "r"))
			_, err := c.ImageFile(ctx, removed)
			wantError(t, err, protocol.NotFound, "")
		}
		must(t, c.WantImage(ctx, &protocol.WantedImage{Ref: "kept", Digest: "kept", Format: protocol.ImageRootFS}))
		must(t, c.RemoveUnwantedFiles(ctx, 0))
		if n := messages(t, d, "OBJ_"+protocol.BucketImageFiles); n != 2 {
			t.Errorf("%d messages store a file of one chunk, want 2", n)
		}
		if n := messages(t, d, "KV_"+protocol.BucketImages); n != 2 {
			t.Errorf("%d messages store a wanted image and the mark of a removed one, want 2", n)
		}
		content, digest := randomBlob(300 << 10)
		must(t, c.PutBlob(ctx, d.tenant, digest, bytes.NewReader(content)))
		for range 3 {
			must(t, c.StoreBlobAgain(ctx, d.tenant, digest, bytes.NewReader(content)))
		}
		if n := messages(t, d, "OBJ_"+protocol.BucketBlobs); n != 4 {
			t.Errorf("%d messages store an upload of three chunks, want 4", n)
		}
	})
}

// replacements is how often the test replaces each key and object.
const replacements = 40
