package worker

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/hostfiles"
)

func TestHiddenPathsCannotBeMounted(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"data/worker", "data/nats", "other"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	w := &worker{cfg: Config{
		StateDir: filepath.Join(dir, "data", "worker"),
		Hidden:   []string{filepath.Join(dir, "data"), "", "relative"},
	}}
	policy, err := hostfiles.NewPolicy([]string{dir}, w.hidden())
	if err != nil {
		t.Fatal(err)
	}
	for source, want := range map[string]protocol.Code{
		"other": "", "data": protocol.PermissionDenied, "data/nats": protocol.PermissionDenied,
		"data/worker": protocol.PermissionDenied, "": protocol.PermissionDenied,
	} {
		spec := &protocol.SandboxSpec{Mounts: []protocol.Mount{{Source: filepath.Join(dir, source), Target: "/m"}}}
		if _, err := (hostfiles.Files{Mounts: policy}).Check(spec); protocol.CodeOf(err) != want {
			t.Errorf("mount of %q: got %v, want code %q", source, err, want)
		}
	}
}
