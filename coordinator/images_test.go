package coordinator

import (
	"slices"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/coordinator/placement"
	"github.com/boxfleet/boxfleet/protocol"
)

func TestAnImageThatNoHostHasFailsItsSandbox(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{Scan: 20 * time.Millisecond, Image: 300 * time.Millisecond})()
	h := reporting("w1", 0, placement.Images{})
	h.Healthy, h.SeenAt = true, time.Now()
	if err := d.conn.RegisterHost(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	if err := d.conn.PublishImages(t.Context(),
		&protocol.HostImages{Worker: "w1", Instance: h.Instance, Listed: true}); err != nil {
		t.Fatal(err)
	}
	if err := d.conn.WantImage(t.Context(), &protocol.WantedImage{Ref: appImage}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for _, image := range []string{"app", "misspelt"} {
		if r := d.request(protocol.VerbCreate, image, image,
			protocol.Request{Sandbox: &protocol.SandboxSpec{Image: image, Pull: protocol.PullNever}}); r.Error != nil {
			t.Fatal(r.Error)
		}
	}
	d.eventually("the sandbox has failed", func() bool {
		b := d.list("failed")["misspelt"]
		return b != nil && b.Error.Reason == protocol.ReasonImageNotFound
	})
	if took := time.Since(began); took < 300*time.Millisecond {
		t.Errorf("the sandbox failed after %s, want at least 300 ms", took)
	}
	if d.list("pending")["app"] == nil {
		t.Error("the sandbox does not wait for the import")
	}
}

func TestImagesThatPendingSandboxesWaitForAreListed(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	defer d.coordinator("c1", Timing{})()
	spec := protocol.SandboxSpec{Image: "app",
		OptionalServices: map[string]protocol.Service{"db": {Image: dbDigest}, "x": {Image: "cafe01"}}}
	if r := d.request(protocol.VerbCreate, "a", "a", protocol.Request{Sandbox: &spec}); r.Error != nil {
		t.Fatal(r.Error)
	}
	ask := func() []string {
		reply, err := d.conn.Query(t.Context(), "other", protocol.EndpointAwaited,
			&protocol.Query{Images: []string{appImage, dbDigest, "sha256:cafe0123", "sha256:beef",
				"docker.io/library/app:2"}})
		if err != nil {
			t.Fatal(err)
		}
		return slices.Sorted(slices.Values(reply.Awaited))
	}
	if got, want := ask(), []string{appImage, dbDigest, "sha256:cafe0123"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if r := d.request(protocol.VerbDelete, "a", "d", protocol.Request{}); r.Error != nil {
		t.Fatal(r.Error)
	}
	if got := ask(); len(got) > 0 {
		t.Errorf("a deleted sandbox waits for %q", got)
	}
}
