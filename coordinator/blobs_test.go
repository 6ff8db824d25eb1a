package coordinator

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

func digestOf(content string) string {
	sum := sha256.Sum256([]byte(content))
	return "sha256-" + hex.EncodeToString(sum[:])
}

// A coordinator that takes over late still renews an upload that expires soon.
func TestANewLeaderRenewsUploadsAtOnce(t *testing.T) {
	t.Parallel()
	const life = 8 * time.Second
	d := newDeployment(t)
	// The scan period is long: only a renewal at the start of the new leader can come in time.
	cfg := Config{Name: "c1", Assets: jetstream.Assets{BlobMaxAge: life}, Timing: Timing{Scan: time.Hour}}
	stop := d.run(cfg)
	digest := digestOf("tree")
	if err := d.conn.PutBlob(t.Context(), "default", digest, strings.NewReader("tree")); err != nil {
		t.Fatal(err)
	}
	d.create("waits", protocol.SandboxSpec{Image: "x", Copies: []protocol.Copy{{Digest: digest, Target: "/x"}}})
	stop()
	fresh := func() bool {
		fresh, err := d.conn.FreshBlob(t.Context(), "default", digest)
		if err != nil {
			t.Fatal(err)
		}
		return fresh
	}
	d.eventually("half of the upload's life has passed", func() bool { return !fresh() })
	cfg.Name = "c2"
	defer d.run(cfg)()
	d.eventually("the upload is renewed", fresh)
}

func TestTheFileOfAnUnwantedImageIsRemoved(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	const age = time.Second
	defer d.coordinator("c1", Timing{Scan: 20 * time.Millisecond, Unwanted: age})()
	put := func(content, ref string) (digest string) {
		t.Helper()
		digest = digestOf(content)
		if ref != "" { // store the wish for the image before its file, so that the file is never unwanted
			if err := d.conn.WantImage(t.Context(),
				&protocol.WantedImage{Ref: ref, Digest: digest, Format: protocol.ImageRootFS}); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.conn.PutImageFile(t.Context(), digest, strings.NewReader(content)); err != nil {
			t.Fatal(err)
		}
		return digest
	}
	there := func(digest string) bool {
		r, err := d.conn.ImageFile(t.Context(), digest)
		if err == nil {
			r.Close()
		}
		return err == nil
	}
	const ref = "docker.io/library/tools:1"
	began := time.Now()
	replaced, kept, lost := put("first", ref), put("second", ref), put("never named", "")
	d.eventually("replaced and unreferenced files are removed",
		func() bool { return !there(replaced) && !there(lost) })
	if took := time.Since(began); took < age {
		t.Errorf("the unwanted files were removed after %s, want at least %s", took, age)
	}
	if !there(kept) {
		t.Error("the file of a wanted image was removed too")
	}
}

// The trees of a sandbox are kept while it may still be created, or created again on another host.
func TestTheTreesOfReplaceableSandboxesAreKept(t *testing.T) {
	of := func(state protocol.SandboxState, policy string) *protocol.Sandbox {
		return &protocol.Sandbox{State: state,
			Spec: protocol.SandboxSpec{OnHostLoss: policy, Copies: []protocol.Copy{{Digest: string(state) + policy}}}}
	}
	needed := neededBlobs([]*protocol.Sandbox{
		of(protocol.StatePending, protocol.OnHostLossWait), of(protocol.StateReady, protocol.OnHostLossWait),
		of(protocol.StateReady, protocol.OnHostLossReplace), of(protocol.StateStopped, protocol.OnHostLossReplace),
	})
	if len(needed) != 2 || !needed[uploadKey{"", "pendingwait"}] || !needed[uploadKey{"", "readyreplace"}] {
		t.Errorf("needed are %v", needed)
	}
}

// A coordinator that dies while it receives an upload leaves chunks. The leader removes them once they are old, and
// touches nothing else.
func TestTheLeaderRemovesWhatInterruptedUploadsLeft(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	const age = time.Second
	defer d.coordinator("c1", Timing{Parts: age})()
	content := "a tree"
	if err := d.conn.PutBlob(t.Context(), "default", digestOf(content), strings.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	const bucket = protocol.BucketBlobs
	began := time.Now()
	d.raw(func(js natsjs.JetStream) error {
		m := nats.NewMsg("$O." + bucket + ".C.interrupted")
		m.Header.Set("Boxfleet-Object", "default/"+digestOf("another tree"))
		m.Data = []byte("another")
		_, err := js.PublishMsg(t.Context(), m)
		return err
	})
	d.eventually("the chunk of the interrupted upload is removed", func() bool { return d.messages("OBJ_"+bucket) == 2 })
	if took := time.Since(began); took < age {
		t.Errorf("the chunk was removed after %s, want at least %s", took, age)
	}
	r, err := d.conn.Blob(t.Context(), "default", digestOf(content))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got, err := io.ReadAll(r); err != nil || string(got) != content {
		t.Errorf("the upload has %q, %v", got, err)
	}
}
