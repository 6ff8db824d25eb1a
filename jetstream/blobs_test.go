package jetstream_test

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// randomBlob returns unique content and its digest.
func randomBlob(size int) (content []byte, digest string) {
	content = make([]byte, size)
	_, _ = rand.Read(content) // never fails
	sum := sha256.Sum256(content)
	return content, "sha256-" + hex.EncodeToString(sum[:])
}

// Any replica may answer, but what was just stored must be readable.
func TestABlobIsCompleteAsSoonAsItIsStored(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		a, b, ctx := d.opened(t), d.opened(t), t.Context()
		for range 60 {
			content, digest := randomBlob(1 << 20)
			must(t, a.PutBlob(ctx, "default", digest, bytes.NewReader(content)))
			r, err := b.Blob(ctx, "default", digest)
			must(t, err)
			got, err := io.ReadAll(r)
			must(t, err)
			must(t, r.Close())
			if !bytes.Equal(got, content) {
				t.Fatalf("read %d bytes of %d, or different ones", len(got), len(content))
			}
		}
	})
}

// If the leader of the store changes during an upload, the content is stored completely and in order, or the upload
// fails and then succeeds when it is retried.
func TestABlobIsCompleteOrRefusedWhileLeadersChange(t *testing.T) {
	t.Parallel()
	d := startCluster(t)
	c, ctx, nc := d.opened(t), t.Context(), d.raw(t)
	whole, refused := 0, 0
	for range 5 {
		content, digest := randomBlob(8 << 20)
		change := func() { // refused while one is elected
			_, _ = nc.Request("$JS.API.STREAM.LEADER.STEPDOWN.OBJ_"+protocol.BucketBlobs, nil, time.Second)
		}
		for deadline := time.Now().Add(time.Minute); ; {
			err := c.PutBlob(
				ctx,
				"default",
				digest,
				&halfway{Reader: bytes.NewReader(content), left: len(content) / 2, then: change},
			)
			if err == nil {
				break
			}
			if code := protocol.CodeOf(
				err,
			); code != protocol.Unavailable && code != protocol.DeadlineExceeded ||
				time.Now().After(deadline) {
				t.Fatalf("refused with %v", err)
			}
			refused++
			change = func() {}
		}
		r, err := d.opened(t).Blob(ctx, "default", digest)
		must(t, err)
		got, err := io.ReadAll(r)
		must(t, err)
		must(t, r.Close())
		if !bytes.Equal(got, content) {
			t.Fatalf("read %d bytes of %d, or different ones", len(got), len(content))
		}
		whole++
	}
	t.Logf("%d were stored, %d were refused", whole, refused)
}

// A read from the leader waits for an election.
func TestLeaderReadsWaitForAnElection(t *testing.T) {
	t.Parallel()
	d := startCluster(t)
	c, ctx, nc := d.opened(t), t.Context(), d.raw(t)
	content, digest := randomBlob(1)
	must(t, c.PutBlob(ctx, "default", digest, bytes.NewReader(content)))
	for range 20 {
		_, _ = nc.Request(
			"$JS.API.STREAM.LEADER.STEPDOWN.OBJ_"+protocol.BucketBlobs,
			nil,
			time.Second,
		) // refused while one is elected
		for range 50 {
			there, err := c.HasBlob(ctx, "default", digest)
			must(t, err)
			if !there {
				t.Fatal("the stored message was not found")
			}
		}
	}
}

// halfway calls then after this much was read.
type halfway struct {
	io.Reader
	left int
	then func()
}

func (h *halfway) Read(p []byte) (int, error) {
	n, err := h.Reader.Read(p)
	if h.left -= n; h.left <= 0 && h.then != nil {
		go h.then() // chunks are on their way meanwhile
		h.then = nil
	}
	return n, err
}
