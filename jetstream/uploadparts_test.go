package jetstream_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

const uploadStream = "OBJ_" + protocol.BucketBlobs

// nothingStored waits until no message of an upload is stored.
func nothingStored(t *testing.T, d *deployment) {
	t.Helper()
	eventually.Holds(t, 20*time.Second, "nothing of the upload is stored", func() bool {
		return messages(t, d, uploadStream) == 0
	})
}

// begun begins an upload as a client without the SDK does, and sends the first pieces.
func begun(t *testing.T, d *deployment, digest string, pieces ...[]byte) {
	t.Helper()
	nc := d.raw(t)
	ask := func(upload, piece string, data []byte) *protocol.Upload {
		t.Helper()
		m := nats.NewMsg(protocol.BlobSubject("acme", protocol.NoUser, upload, piece))
		m.Data = data
		answer, err := nc.RequestMsg(m, 10*time.Second)
		must(t, err)
		reply := &protocol.Reply{}
		must(t, protocol.DecodeAs(answer.Header.Get(protocol.HeaderContentType), answer.Data, reply))
		if reply.Error != nil {
			t.Fatal(reply.Error)
		}
		return reply.Upload
	}
	id := ask(digest, "begin", nil).ID
	for i, data := range pieces {
		ask(id, fmt.Sprint(i), data)
	}
	eventually.Holds(t, 10*time.Second, "a part of the upload is stored", func() bool {
		return messages(t, d, uploadStream) > 0
	})
}

// Several coordinators store the same content at once: one of them wins, and the others remove their chunks.
func TestUploadsOfTheSameContentAtOnceLeaveOneObject(t *testing.T) {
	alone(t, func(t *testing.T, d *deployment) {
		content, digest := randomBlob(1 << 20)
		conns := []*jetstream.Conn{d.opened(t), d.opened(t)}
		for range 5 {
			var together sync.WaitGroup
			for i := range 6 {
				together.Go(func() {
					err := conns[i%2].StoreBlobAgain(t.Context(), "acme", digest, bytes.NewReader(content))
					if err != nil {
						t.Error(err)
					}
				})
			}
			together.Wait()
			if n := messages(t, d, uploadStream); n != 9 {
				t.Fatalf("%d messages store an upload of eight chunks, want 9", n)
			}
			if !bytes.Equal(reading(t, conns[0], digest), content) {
				t.Fatal("the stored content differs")
			}
		}
	})
}

func TestAnUploadThatIsTooLargeIsRefused(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	receivesUploads(t, d.opened(t))
	content, digest := randomBlob(int(uploadLimits.MaxBytes) + 1)
	reads := d.opened(t).TenantReads("acme")
	err := reads.Upload(t.Context(), digest, bytes.NewReader(content))
	wantError(t, err, protocol.InvalidArgument, protocol.ReasonTooLarge)
	nothingStored(t, d)
	content, digest = randomBlob(int(uploadLimits.MaxBytes))
	must(t, reads.Upload(t.Context(), digest, bytes.NewReader(content)))
}

// A store without room refuses an upload, and has the same room afterwards.
func TestAFullStoreKeepsNothingOfARefusedUpload(t *testing.T) {
	alone(t, func(t *testing.T, d *deployment) {
		d.assets.BlobMaxBytes = 3 << 20
		must(t, d.conn(t).Change(t.Context(), d.assets))
		receivesUploads(t, d.opened(t))
		reads := d.opened(t).TenantReads("acme")
		for range 5 {
			content, digest := randomBlob(4 << 20)
			err := reads.Upload(t.Context(), digest, bytes.NewReader(content))
			wantError(t, err, protocol.ResourceExhausted, protocol.ReasonStoreFull)
			nothingStored(t, d)
		}
		content, digest := randomBlob(2 << 20)
		must(t, reads.Upload(t.Context(), digest, bytes.NewReader(content)))
	})
}

// A coordinator that dies in the middle of an upload leaves chunks. Another coordinator removes these chunks and
// receives the upload when the client tries again.
func TestWhatADeadCoordinatorStoredOfAnUploadIsRemoved(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	p := throughProxy(t, d)
	stop := receivesUploads(t, d.connTo(t, p.url()))
	content, digest := randomBlob(1 << 20)
	begun(t, d, digest, content[:1<<19])
	p.partition()
	stop()
	c, ctx := d.opened(t), t.Context()
	must(t, c.RemoveUploadParts(ctx, time.Hour))
	if messages(t, d, uploadStream) == 0 {
		t.Error("the chunks of a young upload were removed")
	}
	must(t, c.RemoveUploadParts(ctx, 0))
	nothingStored(t, d)
	receivesUploads(t, c)
	must(t, d.opened(t).TenantReads("acme").Upload(ctx, digest, bytes.NewReader(content)))
	must(t, c.RemoveUploadParts(ctx, 0))
	if !bytes.Equal(reading(t, c, digest), content) {
		t.Error("the stored content differs")
	}
}

// Chunks without an object are removed when they reach a certain age. A coordinator that was stopped for longer than
// that age gives up the uploads that it was receiving, because their first chunks may be gone.
func TestACoordinatorThatWasStoppedGivesUpItsUploads(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	var stopped atomic.Int64
	began := time.Now()
	c, err := jetstream.Connect(t.Context(), jetstream.Config{URL: d.url(), Logger: quiet, Clock: jetstream.Clock{
		Boot: func() time.Duration { return time.Hour + time.Since(began) + time.Duration(stopped.Load()) },
	}})
	must(t, err)
	t.Cleanup(c.Close)
	must(t, c.Open(t.Context()))
	stop := &then{func() { stopped.Add(int64(jetstream.UploadPartsAge)) }}
	for left := range 9 { // the coordinator stops before each of the chunks, and before the end
		content, digest := randomBlob(1 << 20)
		source := io.MultiReader(bytes.NewReader(content[:left<<17]), stop, bytes.NewReader(content[left<<17:]))
		err := c.PutBlob(t.Context(), "acme", digest, source)
		if left == 0 {
			must(t, err) // no chunk was stored before the stop
			continue
		}
		wantError(t, err, protocol.Unavailable, "")
	}
	if n := messages(t, d, uploadStream); n != 9 {
		t.Errorf("%d messages are stored, want the 9 of the complete upload", n)
	}
}

// The type then is a reader without content. A read calls the function f.
type then struct{ f func() }

func (e *then) Read([]byte) (int, error) { e.f(); return 0, io.EOF }

// A client that vanishes in the middle of an upload leaves nothing, and can upload again.
func TestAClientThatVanishesLeavesNothingOfItsUpload(t *testing.T) {
	t.Parallel()
	d, c := startReceiver(t)
	content, digest := randomBlob(1 << 20)
	begun(t, d, digest, content[:1<<19])
	nothingStored(t, d)
	must(t, d.opened(t).TenantReads("acme").Upload(t.Context(), digest, bytes.NewReader(content)))
	if !bytes.Equal(reading(t, c, digest), content) {
		t.Error("the stored content differs")
	}
}

// Very many small uploads, one after another, never need more slots than one upload.
func TestManySmallUploadsInARow(t *testing.T) {
	t.Parallel()
	d, _ := startReceiver(t)
	reads := d.opened(t).TenantReads("acme")
	for range smallUploads {
		content, digest := randomBlob(100)
		must(t, reads.Upload(t.Context(), digest, bytes.NewReader(content)))
	}
	if n := messages(t, d, uploadStream); n != 2*smallUploads {
		t.Errorf("%d messages store %d uploads of one chunk", n, smallUploads)
	}
}

const smallUploads = 400

// If the source of an upload fails while chunks are in flight, none of these chunks stays stored.
func TestNoChunkOfAFailedUploadStays(t *testing.T) {
	alone(t, func(t *testing.T, d *deployment) {
		c := d.opened(t)
		broken := errors.New("the disk is broken")
		for range 10 {
			content, digest := randomBlob(3 << 20)
			err := c.PutBlob(t.Context(), "acme", digest, io.MultiReader(bytes.NewReader(content), &failing{broken}))
			if protocol.CodeOf(err) == "" {
				t.Fatal("the upload succeeds although its source fails")
			}
			if n := messages(t, d, uploadStream); n != 0 {
				t.Fatalf("%d chunks of a failed upload are stored", n)
			}
		}
	})
}
