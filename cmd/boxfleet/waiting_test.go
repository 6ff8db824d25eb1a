package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/boxfleet/boxfleet/eventually"
)

// If the sandbox of a command waits for a host, the command says why, once, even if stderr is not a terminal.
func TestACreateThatWaitsSaysWhy(t *testing.T) {
	clean(t)
	startWithoutHosts(t, 0)
	file := filepath.Join(t.TempDir(), "boxes.yaml")
	if err := os.WriteFile(file, []byte("id: applied\nimage: i\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var ended sync.WaitGroup
	said := map[string]*eventually.Buffer{"made": {}, "applied": {}}
	for id, args := range map[string][]string{
		"made":    {"sandbox", "create", "--image", "i", "--id", "made"},
		"applied": {"apply", "-f", file},
	} {
		ended.Go(func() { run(ctx, args, strings.NewReader(""), new(eventually.Buffer), said[id]) })
	}
	for id, stderr := range said {
		line := "boxfleet: sandbox " + id + " is waiting: there is no host\n"
		eventually.Holds(t, patience, "the create of "+id+" says why it waits", func() bool {
			return strings.Contains(stderr.String(), line)
		})
	}
	cancel()
	ended.Wait()
	for id, stderr := range said {
		if n := strings.Count(stderr.String(), " is waiting: "); n != 1 {
			t.Errorf("the create of %s says %d times that it waits: %s", id, n, stderr.String())
		}
	}
	if code, _, stderr := call(t.Context(), "", "sandbox", "create", "--image", "i", "--id", "not-waited-for",
		"--wait=false"); code != 0 || stderr != "" {
		t.Errorf("create with --wait=false: exit code %d, %s", code, stderr)
	}
}

func TestAnImportForAnUnknownWorkerIsRefused(t *testing.T) {
	clean(t)
	startWithoutHosts(t, 0)
	code, _, stderr := call(t.Context(), "no tar", "image", "import", "-", "--ref", "tools:1", "--worker", "typo")
	if code != exitFailure || !strings.Contains(stderr,
		"not_found: workers[0]: the fleet has no worker typo; it has none") {
		t.Errorf("%d: %s", code, stderr)
	}
}
