package sdk_test

import (
	"os/exec"
	"strings"
	"testing"
)

func TestS20_ImportsNeitherDockerNorTheServer(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "github.com/boxfleet/boxfleet/sdk").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const own = "github.com/boxfleet/boxfleet/"
	allowed := map[string]bool{own + "sdk": true, own + "protocol": true, own + "jetstream": true, own + "spec": true,
		own + "evidence": true, own + "seal": true, own + "rights": true, own + "imagetar": true,
		own + "imageref": true, own + "backoff": true, own + "wake": true, own + "stream": true,
		own + "zrecord": true}
	for _, pkg := range strings.Fields(string(out)) {
		switch {
		case strings.HasPrefix(pkg, own) && !allowed[pkg]:
			t.Errorf("the SDK reaches %s: callers link only its layer and small leaf packages, not the fleet", pkg)
		case strings.HasPrefix(pkg, "github.com/docker/"):
			t.Errorf("the SDK reaches %s: a caller needs no Docker client", pkg)
		case strings.HasPrefix(pkg, "github.com/nats-io/nats-server"):
			t.Errorf("the SDK reaches %s: a caller must not link a NATS server", pkg)
		}
	}
}
