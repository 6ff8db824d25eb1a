package integration

import (
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
)

func TestASandboxLivesItsWholeLife(t *testing.T) {
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	s := f.Create("a")
	result, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"sh", "-c", "echo out; echo err >&2; exit 3"}})
	if err != nil {
		t.Fatal(err)
	}
	if string(result.Stdout) != "out\n" || string(result.Stderr) != "err\n" || result.ExitCode == nil ||
		*result.ExitCode != 3 {
		t.Errorf("got %q, %q, exit code %v", result.Stdout, result.Stderr, result.ExitCode)
	}
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Exec(ctx, protocol.ExecSpec{Command: []string{"true"}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	if left := f.Objects(""); len(left) > 0 {
		t.Errorf("left on the engine: %q", left)
	}
}
