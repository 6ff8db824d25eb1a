package jetstream_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// randomBlob is content that nothing else has, and its digest.
func randomBlob(size int) (content []byte, digest string) {
	content = make([]byte, size)
	_, _ = rand.Read(content) // never fails
	sum := sha256.Sum256(content)
	return content, "sha256-" + hex.EncodeToString(sum[:])
}

// Whichever replica answers, what was just stored is there.
func TestABlobIsWholeAsSoonAsItIsStored(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		a, b, ctx := d.opened(t), d.opened(t), t.Context()
		for range 60 {
			content, digest := randomBlob(1 << 20)
			must(t, a.PutBlob(ctx, digest, bytes.NewReader(content)))
			r, err := b.Blob(ctx, digest)
			must(t, err)
			got, err := io.ReadAll(r)
			must(t, err)
			must(t, r.Close())
			if !bytes.Equal(got, content) {
				t.Fatalf("%d bytes came back of %d, or others", len(got), len(content))
			}
		}
	})
}

// While leaders change, an upload is stored whole and in order, or fails.
func TestABlobIsWholeOrRefusedWhileLeadersChange(t *testing.T) {
	t.Parallel()
	d := startCluster(t)
	c, ctx := d.opened(t), t.Context()
	nc := d.raw(t)
	changing, stop := context.WithCancel(ctx)
	changed := make(chan struct{})
	go func() {
		defer close(changed)
		for changing.Err() == nil {
			_, _ = nc.Request("$JS.API.STREAM.LEADER.STEPDOWN.OBJ_"+protocol.BucketBlobs, nil, time.Second) // refused while one is elected
			time.Sleep(700 * time.Millisecond)
		}
	}()
	defer func() { stop(); <-changed }()
	whole, refused := 0, 0
	for deadline := time.Now().Add(time.Minute); whole < 3; {
		if time.Now().After(deadline) {
			t.Fatalf("%d were stored, %d were refused", whole, refused)
		}
		content, digest := randomBlob(16 << 20)
		if err := c.PutBlob(ctx, digest, bytes.NewReader(content)); err != nil {
			if code := protocol.CodeOf(err); code != protocol.Unavailable && code != protocol.DeadlineExceeded {
				t.Errorf("refused with %v", err)
			}
			refused++
			continue
		}
		r, err := d.opened(t).Blob(ctx, digest)
		must(t, err)
		got, err := io.ReadAll(r)
		must(t, err)
		must(t, r.Close())
		if !bytes.Equal(got, content) {
			t.Fatalf("%d bytes came back of %d, or others", len(got), len(content))
		}
		whole++
	}
	t.Logf("%d were stored, %d were refused", whole, refused)
}
