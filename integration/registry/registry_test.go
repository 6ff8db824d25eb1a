package registry_test

import (
	"testing"

	"github.com/boxfleet/boxfleet/integration/engines"
	"github.com/boxfleet/boxfleet/integration/registry"
	"github.com/boxfleet/boxfleet/worker/docker/dockertest"
)

func TestAnImageIsPushedToAPrivateRegistry(t *testing.T) {
	e := engines.Default(t)
	r := registry.Start(t, true)
	door := r.Open(e.Listen())
	if digest := r.Push(e.Host, door, dockertest.Image, "private:1", 1000); len(digest) != len("sha256:")+64 {
		t.Errorf("the digest is %q", digest)
	}
	if door.Passed("PUT", "/manifests/1") != 1 {
		t.Error("the push did not go through the door")
	}
}
