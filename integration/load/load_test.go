package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestMain runs the tests or, in a process that the program started, a role.
func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestWrongUseIsRefused(t *testing.T) {
	for _, args := range [][]string{
		{"extra"}, {"-workers", "0"}, {"-sandboxes", "0"}, {"-rate", "-1"}, {"-nothing"}, {"-failover"}, {"-backlog",
			"-rate", "5"}, {"-limit", "0s"},
	} {
		var out bytes.Buffer
		if code := run(t.Context(), args, &out, &out); code != 2 {
			t.Errorf("%q: exit code %d, want 2\n%s", args, code, &out)
		}
	}
}

func TestAFewSandboxesAreCreatedAndNothingIsLeft(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	var out bytes.Buffer
	code := run(t.Context(), []string{"-short", "-workers", "3", "-sandboxes", "12", "-living", "6", "-over", "6",
		"-create", "20ms", "-settle", "0", "-limit", "1m"}, &out, &out)
	if code != 0 || !strings.Contains(out.String(), "12 after") ||
		!strings.Contains(out.String(), "hosts that got some") {
		t.Errorf("exit code %d\n%s", code, &out)
	}
	leftNothing(t, dir)
}

// The simulated engines need longer for a create than the time limit of a step. No sandbox becomes ready, so the run
// must fail.
func TestARunWhoseSandboxesNeverBecomeReadyFails(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	var out bytes.Buffer
	code := run(t.Context(), []string{"-short", "-workers", "1", "-sandboxes", "2", "-create", "1h", "-limit", "5s"},
		&out, &out)
	if code != 1 || !strings.Contains(out.String(), "until 2 sandboxes are ready, or failed; last state: 0") {
		t.Errorf("exit code %d\n%s", code, &out)
	}
	leftNothing(t, dir)
}

func leftNothing(t *testing.T, dir string) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(dir, "boxfleet-load-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left in the temporary directory: %q (%v)", left, err)
	}
	processes, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		data, err := os.ReadFile(p) // fails if the process has ended
		if err == nil && bytes.Contains(data, []byte(roleVariable+"=")) && bytes.Contains(data, []byte(dir)) {
			t.Errorf("a process is left: %s", p)
		}
	}
}

// judge detects each way in which a create can go wrong.
func TestEachKindOfFailureIsDetected(t *testing.T) {
	now := time.Now()
	good := func() *life {
		return &life{accepted: now, assigned: now, ready: now, assignments: 1, messages: 4, worker: "w", scheduler: "c"}
	}
	for name, c := range map[string]struct {
		spoil func(*life)
		wrong string
	}{
		"nothing":        {func(*life) {}, ""},
		"failed":         {func(l *life) { l.failed, l.reason = now, "host_lost" }, "failed host_lost"},
		"placed twice":   {func(l *life) { l.assignments = 2 }, "assigned 2 times"},
		"never ready":    {func(l *life) { l.ready = time.Time{} }, "0 of 1 sandboxes became ready"},
		"too many steps": {func(l *life) { l.messages = 7 }, "messages of a create"},
	} {
		var out bytes.Buffer
		l := good()
		c.spoil(l)
		m := &measurement{deployment: &deployment{}, report: &report{out: &out}, creator: newCreator(nil),
			watch: &watch{boxes: map[string]*life{"a": l}}}
		if err := m.judge(1); err != nil {
			t.Fatal(err)
		}
		m.report.end(nil)
		if m.ok() != (c.wrong == "") || !strings.Contains(out.String(), c.wrong) {
			t.Errorf("%s: ok is %v\n%s", name, m.ok(), &out)
		}
	}
}

func TestWarningsAreCountedByTheirWords(t *testing.T) {
	var out bytes.Buffer
	c := newComplaints(slog.NewTextHandler(&out, nil))
	log := slog.New(c).With("worker", "w1")
	for range 2 * firstShown {
		log.Warn("something", "error", "x")
	}
	log.Info("nothing")
	if got := c.take(); len(got) != 1 || got["WARN something"] != 2*firstShown {
		t.Errorf("counted %v", got)
	}
	if shown := strings.Count(out.String(), "something"); shown != firstShown {
		t.Errorf("%d were shown, want %d", shown, firstShown)
	}
}

func TestPercentilesAreSamples(t *testing.T) {
	samples := []time.Duration{1, 2, 3, 4}
	for p, want := range map[float64]time.Duration{0.5: 2, 0.99: 4, 0: 1} {
		if got := percentile(samples, p); got != want {
			t.Errorf("p%v is %v, want %v", p, got, want)
		}
	}
}
