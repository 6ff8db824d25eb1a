package jetstream_test

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// randomBlob returns unique content and its digest.
func randomBlob(size int) (content []byte, digest string) {
	content = make([]byte, size)
	_, _ = rand.Read(content) // never fails
	sum := sha256.Sum256(content)
	return content, "sha256-" + hex.EncodeToString(sum[:])
}

// Any replica may answer a read, but content that was just stored must be readable.
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
	ctx, nc := t.Context(), d.raw(t)
	// An upload waits for a lost acknowledgement, and after that for chunks in flight, as long as the connection's
	// timeout.
	c, err := jetstream.Connect(ctx, jetstream.Config{URL: d.url(), Logger: quiet, Timeout: 2 * time.Second})
	must(t, err)
	t.Cleanup(c.Close)
	must(t, c.Open(ctx))
	whole, refused := 0, 0
	for range 5 {
		content, digest := randomBlob(8 << 20)
		change := func() { blobsStepDown(nc) }
		for deadline := time.Now().Add(time.Minute); ; {
			source := &halfway{Reader: bytes.NewReader(content), left: len(content) / 2, then: change}
			err := c.PutBlob(ctx, "default", digest, source)
			if err == nil {
				break
			}
			code := protocol.CodeOf(err)
			if code != protocol.Unavailable && code != protocol.DeadlineExceeded || time.Now().After(deadline) {
				t.Fatalf("the upload failed with %v", err)
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
	t.Logf("%d uploads were stored, %d attempts failed", whole, refused)
}

// A read from the leader waits until an election has ended.
func TestLeaderReadsWaitForAnElection(t *testing.T) {
	t.Parallel()
	d := startCluster(t)
	c, ctx, nc := d.opened(t), t.Context(), d.raw(t)
	content, digest := randomBlob(1)
	must(t, c.PutBlob(ctx, "default", digest, bytes.NewReader(content)))
	for range 20 {
		blobsStepDown(nc)
		for range 50 {
			there, err := c.HasBlob(ctx, "default", digest)
			must(t, err)
			if !there {
				t.Fatal("the stored message was not found")
			}
		}
	}
}

// blobsStepDown makes the leader of the stored blobs step down. The request fails during an election.
func blobsStepDown(nc *nats.Conn) {
	// Callers repeat it until the leader has changed.
	_, _ = nc.Request("$JS.API.STREAM.LEADER.STEPDOWN.OBJ_"+protocol.BucketBlobs, nil, time.Second)
}

// halfway is a reader that calls a function once, after a number of bytes were read.
type halfway struct {
	io.Reader
	left int
	then func()
}

func (h *halfway) Read(p []byte) (int, error) {
	n, err := h.Reader.Read(p)
	if h.left -= n; h.left <= 0 && h.then != nil {
		go h.then() // while chunks are in flight
		h.then = nil
	}
	return n, err
}
