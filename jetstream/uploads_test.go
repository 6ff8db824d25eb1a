package jetstream_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// uploadLimits are the limits of the coordinators in tests. Idle is long compared with the pauses of a busy machine.
var uploadLimits = jetstream.UploadLimits{MaxBytes: 16 << 20, Idle: 4 * time.Second}

// startReceiver starts a server, and a connection to it that receives uploads.
func startReceiver(t *testing.T) (*deployment, *jetstream.Conn) {
	t.Helper()
	d := startServer(t, jetstream.Assets{})
	c := d.opened(t)
	receivesUploads(t, c)
	return d, c
}

// receivesUploads serves uploads and the read service, which clients ask about uploads, until the test ends or stop is
// called.
func receivesUploads(t *testing.T, c *jetstream.Conn) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := c.ServeUploads(ctx, uploadLimits); ctx.Err() == nil {
			t.Errorf("serve uploads: %v", err)
		}
	})
	serving := make(chan struct{})
	running.Go(func() {
		if err := c.ServeReads(ctx, "1.0.0", c.PageEndpoints(hostsOfAll), func() { close(serving) }); ctx.Err() == nil {
			t.Errorf("serve reads: %v", err)
		}
	})
	<-serving
	stop = func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	return stop
}

func reading(t *testing.T, c *jetstream.Conn, digest string) []byte {
	t.Helper()
	r, err := c.Blob(t.Context(), "acme", digest)
	must(t, err)
	defer r.Close()
	content, err := io.ReadAll(r)
	must(t, err)
	return content
}

func TestContentWithoutItsDigestIsNotStored(t *testing.T) {
	t.Parallel()
	d, c := startReceiver(t)
	content, digest := randomBlob(1 << 20)
	content[len(content)-1]++
	err := d.opened(t).TenantReads("acme").Upload(t.Context(), digest, bytes.NewReader(content))
	if protocol.CodeOf(err) != protocol.InvalidArgument || protocol.AsError(err).Field != "digest" {
		t.Errorf("got %v, want invalid_argument that names the digest", err)
	}
	if there, err := c.HasBlob(t.Context(), "acme", digest); there || err != nil {
		t.Errorf("content without its digest is stored: %v, %v", there, err)
	}
}

// A source that fails half-way leaves nothing behind, and frees the coordinator's slot at once.
func TestAFailedUploadIsDiscardedAtOnce(t *testing.T) {
	t.Parallel()
	d, c := startReceiver(t)
	content, digest := randomBlob(1 << 20)
	broken := errors.New("the disk is broken")
	reads := d.opened(t).TenantReads("acme")
	for range 3 * jetstream.UploadsAtOnce { // more than the coordinator receives at once
		source := io.MultiReader(bytes.NewReader(content[:1<<19]), &failing{broken})
		if err := reads.Upload(t.Context(), digest, source); !errors.Is(err, broken) {
			t.Fatalf("got %v, want the source's error", err)
		}
	}
	must(t, reads.Upload(t.Context(), digest, bytes.NewReader(content)))
	if !bytes.Equal(reading(t, c, digest), content) {
		t.Error("the stored content differs")
	}
}

type failing struct{ err error }

func (f *failing) Read([]byte) (int, error) { return 0, f.err }

// Many clients upload the same content at once. At the same time, other clients start more uploads than a coordinator
// receives at once.
func TestManyUploadsAtOnce(t *testing.T) {
	t.Parallel()
	_, c := startReceiver(t)
	same, sameDigest := randomBlob(2 << 20)
	var uploads sync.WaitGroup
	for i := range 2*jetstream.UploadsAtOnce + 1 {
		uploads.Go(func() {
			content, digest := same, sameDigest
			if i%2 == 0 {
				content, digest = randomBlob(300<<10 + i)
			}
			if err := c.TenantReads("acme").Upload(t.Context(), digest, bytes.NewReader(content)); err != nil {
				t.Error(err)
				return
			}
			if !bytes.Equal(reading(t, c, digest), content) {
				t.Error("the stored content differs")
			}
		})
	}
	uploads.Wait()
}

// A coordinator that ends in the middle of an upload is replaced by another one when the client begins again.
func TestAnUploadSurvivesItsCoordinator(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	first, second := d.opened(t), d.opened(t)
	stop := receivesUploads(t, first)
	content, digest := randomBlob(4 << 20)
	reads := d.opened(t).TenantReads("acme")
	source := &halfway{Reader: bytes.NewReader(content), left: len(content) / 2, then: func() {
		stop()
		receivesUploads(t, second)
	}}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err := reads.Upload(ctx, digest, source)
	if code := protocol.CodeOf(err); code != protocol.Unavailable && code != protocol.DeadlineExceeded {
		t.Fatalf("got %v, want an error after which the upload is tried again", err)
	}
	must(t, reads.Upload(ctx, digest, bytes.NewReader(content)))
	if !bytes.Equal(reading(t, second, digest), content) {
		t.Error("the stored content differs")
	}
}

// A client that breaks the protocol gets an error and stores nothing.
func TestAnUploadInDisorderIsRefused(t *testing.T) {
	t.Parallel()
	d, c := startReceiver(t)
	nc := d.raw(t)
	content, digest := randomBlob(1000)
	ask := func(upload, piece string, data []byte) *protocol.Reply {
		t.Helper()
		m := nats.NewMsg(protocol.BlobSubject("acme", protocol.NoUser, upload, piece))
		m.Data = data
		answer, err := nc.RequestMsg(m, 5*time.Second)
		must(t, err)
		reply := &protocol.Reply{}
		must(t, protocol.DecodeAs(answer.Header.Get(protocol.HeaderContentType), answer.Data, reply))
		return reply
	}
	if reply := ask("sha256-00", "begin", nil); reply.Error == nil || reply.Error.Field != "digest" {
		t.Errorf("a digest that is none: %+v", reply)
	}
	begun := ask(digest, "begin", nil)
	if begun.Upload == nil || begun.Upload.ID == "" {
		t.Fatalf("the upload does not begin: %+v", begun)
	}
	id := begun.Upload.ID
	for _, piece := range []string{"8", "-1", "x", strconv.FormatUint(1<<63, 10)} {
		if reply := ask(id, piece, content); reply.Error == nil || reply.Error.Field != "piece" {
			t.Errorf("piece %s: %+v", piece, reply)
		}
	}
	if reply := ask(id, "0", content); reply.Error != nil {
		t.Errorf("the first piece: %v", reply.Error)
	}
	if reply := ask(id, "0", content); reply.Error != nil {
		t.Errorf("the first piece again: %v", reply.Error)
	}
	for range 2 {
		if reply := ask(id, "end", nil); reply.Error != nil || !reply.Upload.Stored {
			t.Errorf("the end: %+v", reply)
		}
	}
	eventually.Holds(t, 5*time.Second, "the content is stored", func() bool {
		there, err := c.HasBlob(t.Context(), "acme", digest)
		return there && err == nil
	})
}

// One tenant cannot keep the others from uploading: silent uploads end, and each tenant has few at once.
func TestATenantsSilentUploadsLeaveRoomForOthers(t *testing.T) {
	t.Parallel()
	d, c := startReceiver(t)
	nc := d.raw(t)
	for i := range jetstream.UploadsAtOnce {
		_, digest := randomBlob(100 + i)
		m := nats.NewMsg(protocol.BlobSubject("hostile", protocol.NoUser, digest, "begin"))
		if _, err := nc.RequestMsg(m, 5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	content, digest := randomBlob(1 << 20)
	began := time.Now()
	must(t, c.TenantReads("acme").Upload(t.Context(), digest, bytes.NewReader(content)))
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("the upload of another tenant took %s", took)
	}
}

// A log of very many small chunks is read in pages that the server accepts.
func TestManySmallChunksAreReadInPages(t *testing.T) {
	t.Parallel()
	d, c := startReceiver(t)
	const chunks = 15_000 // a multiple of 1,000, because the loop waits for every thousandth chunk
	var last <-chan error
	for i := range int64(chunks) {
		var err error
		last, err = c.PublishOutput(outputHost, "acme", "s", "x",
			jetstream.Chunk{Stream: jetstream.Stdout, Offset: i, Data: []byte{'a'},
				NextStdout: i + 1})
		must(t, err)
		if i%1000 == 999 {
			must(t, <-last)
		}
	}
	read := 0
	_, err := d.opened(t).TenantReads("acme").Output(t.Context(), "s", "x", 1, func(jetstream.Chunk) error {
		read++
		return nil
	})
	must(t, err)
	if read != chunks {
		t.Errorf("read %d chunks of %d", read, chunks)
	}
}
