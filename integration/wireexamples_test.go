package integration

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/sdk"
)

// The JavaScript examples in docs/wire.md must run unchanged. They need Node and its package nats. `make examples`
// installs this package.
func TestTheExamplesInAnotherLanguageRun(t *testing.T) {
	t.Parallel()
	if out, err := exec.Command("node", "-e", `require("nats")`).CombinedOutput(); err != nil {
		if os.Getenv("BOXFLEET_NEED_NODE") != "" {
			t.Fatalf("%v: %s", err, out)
		}
		t.Skip("Node with the package nats is missing; run `make examples`")
	}
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(time.Minute)
	s := f.Create("demo")
	creds := f.Options(sdk.Options{}).Creds
	run := func(wantCode int, args ...string) (stdout, stderr string) {
		t.Helper()
		var out, errs bytes.Buffer
		cmd := exec.CommandContext(ctx, "node", args...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = "../docs/examples", &out, &errs
		cmd.Env = append(os.Environ(), "BOXFLEET_NATS="+f.URL(), "BOXFLEET_CREDS="+creds)
		err := cmd.Run()
		var exit *exec.ExitError
		if code := cmd.ProcessState.ExitCode(); code != wantCode || err != nil && !errors.As(err, &exit) {
			t.Fatalf("%q: %v, want exit code %d\n%s%s", args, err, wantCode, out.String(), errs.String())
		}
		return out.String(), errs.String()
	}
	if stdout, stderr := run(3, "exec.js", "demo", "sh", "-c", "echo out; echo err >&2; exit 3"); stdout != "out\n" ||
		stderr != "err\n" {
		t.Errorf("a short exec printed %q and %q", stdout, stderr)
	}
	if stdout, _ := run(0, "exec.js", "demo", "sh", "-c",
		"echo first; sleep 1; seq 1 40000"); !strings.HasPrefix(stdout, "first\n1\n") ||
		!strings.HasSuffix(stdout, "\n40000\n") || strings.Count(stdout, "\n") != 40001 {
		t.Errorf("a longer one printed %d lines", strings.Count(stdout, "\n"))
	}
	if _, stderr := run(2, "exec.js", "nowhere", "true"); !strings.Contains(stderr, "not_found") {
		t.Errorf("an unknown sandbox: %q", stderr)
	}
	if err := s.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	stdout, _ := run(0, "events.js", "demo")
	for i, line := range strings.Split(strings.TrimSpace(stdout), "\n") {
		if !strings.HasPrefix(line, strconv.Itoa(i+1)+" ") {
			t.Errorf("line %d is %q", i+1, line)
		}
	}
	for _, kind := range []string{"sandbox.accepted", "sandbox.ready", "exec.finished", "sandbox.deleted"} {
		if !strings.Contains(stdout, kind) {
			t.Errorf("%s is not among the events:\n%s", kind, stdout)
		}
	}
	f.Judge()
}
