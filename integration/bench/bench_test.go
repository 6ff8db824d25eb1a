package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestMain runs the tests or, in a process that the bench started, a role.
func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestTargetsAreJudged(t *testing.T) {
	samples := []float64{4, 1, 3, 2, 10}
	for _, c := range []struct {
		name        string
		m           measurement
		p50, p90    float64
		wantsMissed bool
	}{
		{"no target", measurement{Ours: samples}, 3, 10, false},
		{"p50 at its bound", measurement{Ours: samples, Target: target{ofP50, 3}}, 3, 10, false},
		{"p50 above", measurement{Ours: samples, Target: target{ofP50, 2.9}}, 3, 10, true},
		{"more is better: p90 is a low sample", measurement{Ours: samples, More: true, Target: target{ofP50, 3}}, 3,
			1, false},
		{"more is better: p50 below", measurement{Ours: samples, More: true, Target: target{ofP50, 3.1}}, 3, 1, true},
		{"worst", measurement{Ours: samples, Target: target{ofWorst, 9}}, 3, 10, true},
		{"worst is within", measurement{Ours: samples, Target: target{ofWorst, 10}}, 3, 10, false},
		{"ratio", measurement{Ours: samples, Bare: []float64{2}, Target: target{ofRatio, 1.4}}, 3, 10, true},
		{"ratio is within", measurement{Ours: samples, Bare: []float64{2}, Target: target{ofRatio, 1.5}}, 3, 10, false},
		{"p99 above", measurement{Ours: samples, Target: target{ofP99, 9}}, 3, 10, true},
		{"p99 is within", measurement{Ours: samples, Target: target{ofP99, 10}}, 3, 10, false},
		{"p99 of no samples", measurement{Target: target{ofP99, 10}}, 0, 0, true},
		{"ratio without a bare figure", measurement{Ours: samples, Target: target{ofRatio, 1.5}}, 3, 10, true},
		{"no samples", measurement{Target: target{ofP50, 3}}, 0, 0, true},
	} {
		c.m.judge(1)
		if c.m.P50 != c.p50 || c.m.P90 != c.p90 || c.m.Missed != c.wantsMissed {
			t.Errorf("%s: p50 %v, p90 %v, missed %v; want %v, %v, %v", c.name, c.m.P50, c.m.P90, c.m.Missed, c.p50,
				c.p90, c.wantsMissed)
		}
	}
}

func TestAShortRunFindsWhatBecameSeveralTimesSlower(t *testing.T) {
	for figure, missed := range map[float64]bool{399: false, 401: true} {
		m := measurement{Ours: []float64{figure}, Target: target{ofP50, 100}}
		if m.judge(options{short: true}.slack()); m.Missed != missed {
			t.Errorf("%v against a target of 100: missed %v", figure, m.Missed)
		}
	}
}

func TestAMissedTargetOrAFailedPhaseFailsTheReport(t *testing.T) {
	good := &measurement{Ours: []float64{1}, Target: target{ofP50, 1}}
	bad := &measurement{Ours: []float64{2}, Target: target{ofP50, 1}}
	good.judge(1)
	bad.judge(1)
	for _, c := range []struct {
		name string
		r    report
		ok   bool
	}{
		{"all reached", report{Measurements: []*measurement{good}}, true},
		{"one missed", report{Measurements: []*measurement{good, bad}}, false},
		{"a phase failed", report{Measurements: []*measurement{good}, Failed: map[string]string{"exec": "broken"}},
			false},
	} {
		if c.r.ok() != c.ok {
			t.Errorf("%s: ok is %v", c.name, c.r.ok())
		}
	}
}

func TestWrongUseIsRefused(t *testing.T) {
	for _, args := range [][]string{{"-only", "exec,nothing"}, {"extra"}, {"-samples", "3"}, {"-past", "10,x"},
		{"-past", "10,5"}, {"-past", "0"}} {
		var stderr bytes.Buffer
		if code := run(t.Context(), args, &stderr, &stderr); code != 2 {
			t.Errorf("%q: exit code %d, want 2\n%s", args, code, &stderr)
		}
	}
}

func TestOnePhaseIsMeasuredAndLeavesNothing(t *testing.T) {
	dir := ownTemp(t)
	out := filepath.Join(t.TempDir(), "bench.json")
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), []string{"-short", "-only", "stop", "-o", out}, &stdout, &stderr)
	if !strings.Contains(stdout.String(), "stop of an idle sandbox") {
		t.Fatalf("exit code %d\n%s%s", code, &stdout, &stderr)
	}
	data, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Failed) > 0 || code != 0 && r.ok() { // on a slow machine the bench may miss a target
		t.Errorf("exit code %d\n%s%s", code, &stdout, &stderr)
	}
	if r.Commit == "" || r.Machine.Cores == 0 || r.Machine.Engine == "" || len(r.Measurements) == 0 ||
		len(r.Measurements[0].Ours) != 4 {
		t.Errorf("the file is incomplete:\n%s", data)
	}
	leftNothing(t, dir)
}

// The bench is interrupted while it creates a sandbox.
func TestAnInterruptLeavesNothing(t *testing.T) {
	dir := ownTemp(t)
	ctx, interrupt := context.WithCancel(t.Context())
	ended := make(chan int)
	var stderr bytes.Buffer
	go func() {
		ended <- run(ctx, []string{"-short", "-only", "create", "-o", filepath.Join(t.TempDir(), "bench.json")},
			&stderr, &stderr)
	}()
	var containers []string
	for len(containers) == 0 {
		containers = containersOf(t, dir)
		select {
		case code := <-ended:
			t.Fatalf("ended with %d before the first container\n%s", code, &stderr)
		case <-time.After(10 * time.Millisecond): // then look for a container again
		}
	}
	interrupt()
	if code := <-ended; code != 1 || !strings.Contains(stderr.String(), "interrupted") {
		t.Errorf("exit code %d\n%s", code, &stderr)
	}
	leftNothing(t, dir)
	deployment, _, _ := strings.Cut(containers[0], " ")
	for _, kind := range []string{"network", "volume"} {
		if left := dockerCLI(t, kind, "ls", "-q", "--filter", "label=boxfleet.deployment="+deployment); left != "" {
			t.Errorf("a %s is left: %s", kind, left)
		}
	}
}

// ownTemp gives the bench its own temporary directory.
func ownTemp(t *testing.T) string {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	return dir
}

func leftNothing(t *testing.T, dir string) {
	t.Helper()
	if left := containersOf(t, dir); len(left) > 0 {
		t.Errorf("containers are left: %q", left)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "boxfleet-") {
			t.Errorf("left in the temporary directory: %s", e.Name())
		}
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

// containersOf lists the sandbox containers that mount directories below dir, as deployment, name and mounts.
func containersOf(t *testing.T, dir string) []string {
	t.Helper()
	format := `{{.Label "boxfleet.deployment"}} {{.Names}} {{.Mounts}}`
	var found []string
	for line := range strings.Lines(dockerCLI(t, "ps", "-a", "--no-trunc", "--filter", "label=boxfleet.deployment",
		"--format", format)) {
		if strings.Contains(line, dir) {
			found = append(found, line)
		}
	}
	return found
}

func dockerCLI(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("docker", args...).Output()
	if err != nil {
		t.Fatalf("docker %q: %v", args, err)
	}
	return string(out)
}
