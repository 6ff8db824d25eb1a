package jetstream_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// wantedImages follows the wanted images of one test. Because other tests may use the same deployment, the names of
// the images contain the test's tenant: ref returns the name of image n. The function next waits until exactly the
// given images are wanted.
func wantedImages(t *testing.T, d *deployment, c *jetstream.Conn) (ref func(n int) string, next func(want ...int)) {
	t.Helper()
	ref = func(n int) string { return fmt.Sprintf("example/%s:%d", d.tenant, n) }
	own := func(refs []string) []string {
		return slices.DeleteFunc(refs, func(r string) bool { return !slices.Contains([]string{ref(1), ref(2), ref(3)}, r) })
	}
	lists, ended := make(chan []string, 100), make(chan error, 1)
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		ended <- c.WantedImages(ctx, func(all []*protocol.WantedImage) {
			var refs []string
			for _, w := range all {
				refs = append(refs, w.Ref)
			}
			lists <- own(refs)
		})
	}()
	t.Cleanup(func() { stop(); <-ended })
	return ref, func(want ...int) {
		t.Helper()
		var refs []string
		for _, n := range want {
			refs = append(refs, ref(n))
		}
		// Without a message, a worker reads the list only once a minute. A worker that knows a change within ten
		// seconds has received the message.
		for within := time.After(10 * time.Second); ; {
			select {
			case got := <-lists:
				if slices.Equal(got, refs) {
					return
				}
			case err := <-ended:
				ended <- err
				t.Fatal(err)
			case <-within:
				t.Fatalf("the wanted images are not %q in time", refs)
			}
		}
	}
}

func TestAChangeOfTheWantedImagesIsHeardOf(t *testing.T) {
	conform(t, func(t *testing.T, d *deployment) {
		c, ctx := d.opened(t), t.Context()
		ref, next := wantedImages(t, d, d.opened(t))
		next()
		began := time.Now()
		must(t, c.WantImage(ctx, &protocol.WantedImage{Ref: ref(1), Digest: "a"}))
		next(1)
		t.Logf("an image was heard of after %s", time.Since(began))
		must(t, c.WantImage(ctx, &protocol.WantedImage{Ref: ref(2), Digest: "b"}))
		next(1, 2)
		must(t, c.WantImage(ctx, &protocol.WantedImage{Ref: ref(1), Digest: "c"})) // replaces the first one
		next(2, 1)
		must(t, c.UnwantImage(ctx, ref(2)))
		next(1)
		must(t, c.UnwantImage(ctx, ref(1)))
		next()
	})
}

// The bucket is made again while the worker is disconnected. Its sequences begin again, so the newest sequence is the
// same as before.
func TestABucketOfImagesThatWasMadeAgainIsRecognized(t *testing.T) {
	t.Parallel()
	d := startServer(t, jetstream.Assets{})
	c, ctx := d.opened(t), t.Context()
	p := throughProxy(t, d)
	ref, next := wantedImages(t, d, d.connTo(t, p.url()))
	must(t, c.WantImage(ctx, &protocol.WantedImage{Ref: ref(1), Digest: "a"}))
	next(1)
	p.partition()
	js, err := natsjs.New(d.raw(t))
	must(t, err)
	must(t, js.DeleteStream(ctx, "KV_"+protocol.BucketImages))
	must(t, c.Provision(ctx, jetstream.Assets{}))
	must(t, c.WantImage(ctx, &protocol.WantedImage{Ref: ref(2), Digest: "b"}))
	p.heal()
	next(2)
}
