package jetstream_test

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/eventually"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// An import stores the file first and the image that refers to it afterwards. An old file with the same content may be
// stored already. The old file must not be removed between these two steps, although no image refers to it yet.
func TestTheFileOfAReimportedImageStays(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		const age = 2 * time.Second
		c, ctx := d.opened(t), t.Context()
		content := "file of " + d.tenant
		for took := age; took >= age; { // if the machine stalled, the file is old again: repeat
			must(t, c.PutImageFile(ctx, d.tenant, strings.NewReader(content)))
			must(t, c.PutImageFile(ctx, d.tenant+"-unwanted", strings.NewReader(content)))
			stored := c.Now()
			eventually.Holds(t, 10*age, "the files are old", func() bool { return c.Now().Sub(stored) > age })
			again := time.Now()
			must(t, c.PutImageFile(ctx, d.tenant, strings.NewReader(content)))
			must(t, c.RemoveUnwantedFiles(ctx, age))
			took = time.Since(again)
		}
		must(t, c.WantImage(ctx, &protocol.WantedImage{Ref: d.tenant, Digest: d.tenant, Format: protocol.ImageRootFS}))
		r, err := c.ImageFile(ctx, d.tenant)
		must(t, err)
		defer r.Close()
		if got, err := io.ReadAll(r); err != nil || string(got) != content {
			t.Fatalf("the file contains %q, want %q: %v", got, content, err)
		}
		_, err = c.ImageFile(ctx, d.tenant+"-unwanted")
		wantError(t, err, protocol.NotFound, "")
		must(t, c.UnwantImage(ctx, d.tenant))
		_, err = c.ImageFile(ctx, d.tenant)
		wantError(t, err, protocol.NotFound, "")
	})
}

// Two imported images may have the same file. The file stays as long as one of them is wanted.
func TestTheFileOfAWantedImageStays(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		c, ctx := d.opened(t), t.Context()
		must(t, c.PutImageFile(ctx, d.tenant, strings.NewReader("content")))
		for _, ref := range []string{d.tenant, d.tenant + "-copy"} {
			must(t, c.WantImage(ctx, &protocol.WantedImage{Ref: ref, Digest: d.tenant, Format: protocol.ImageRootFS}))
		}
		must(t, c.UnwantImage(ctx, d.tenant))
		r, err := c.ImageFile(ctx, d.tenant)
		must(t, err)
		defer r.Close()
		must(t, c.UnwantImage(ctx, d.tenant+"-copy"))
		_, err = c.ImageFile(ctx, d.tenant)
		wantError(t, err, protocol.NotFound, "")
	})
}

// A file that is stored again between the check and its removal stays.
func TestAFileThatIsStoredAgainIsNotRemoved(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c, ctx := d.opened(t), t.Context()
	must(t, c.PutImageFile(ctx, "x", strings.NewReader("content")))
	p := throughProxy(t, d)
	far := d.connTo(t, p.url())
	p.whenClientSays(t, "$O."+protocol.BucketImageFiles+".M.", func() {
		if err := c.PutImageFile(ctx, "x", strings.NewReader("content")); err != nil {
			t.Error(err)
		}
	})
	must(t, far.RemoveUnwantedFiles(ctx, 0))
	r, err := c.ImageFile(ctx, "x")
	must(t, err)
	must(t, r.Close())
}

// A process knows the store's clock to within some milliseconds. A file that was just stored may seem to be from the
// future, and must be removed nevertheless.
func TestAFileThatWasJustStoredIsRemoved(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c, ctx := d.opened(t), t.Context()
	c.SetBack(time.Second)
	must(t, c.PutImageFile(ctx, "x", strings.NewReader("content")))
	must(t, c.WantImage(ctx, &protocol.WantedImage{Ref: "r", Digest: "x", Format: protocol.ImageRootFS}))
	must(t, c.UnwantImage(ctx, "r"))
	_, err := c.ImageFile(ctx, "x")
	wantError(t, err, protocol.NotFound, "")
	must(t, c.PutImageFile(ctx, "y", strings.NewReader("content")))
	must(t, c.RemoveUnwantedFiles(ctx, 0))
	if n := messages(t, d, "OBJ_"+protocol.BucketImageFiles); n != 0 {
		t.Errorf("%d messages of removed files are left", n)
	}
}
