package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
)

const image = "boxfleet/demo:busybox"

func TestTheScriptMendsAProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for backend, target := range map[string]string{"local": dir, "docker": image} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			if backend == "docker" && exec.Command("docker", "image", "inspect", image).Run() != nil {
				t.Skipf("no image %s: run make image", image)
			}
			var out bytes.Buffer
			if err := run(t.Context(), []string{"--backend", backend, target}, &out); err != nil {
				t.Fatalf("%v\n%s", err, out.String())
			}
			if !strings.Contains(out.String(), "> edit ") || !strings.Contains(out.String(), "\nhello world\n") {
				t.Error(out.String())
			}
		})
	}
	t.Cleanup(func() {
		if left, err := os.ReadDir(dir); err == nil && len(left) > 0 {
			t.Errorf("it left %v", left)
		}
	})
}

func TestAnAnswerThatTheScriptDoesNotExpectEndsTheWork(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/agent-demo", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err := run(t.Context(), []string{dir}, &out)
	if err == nil || !strings.Contains(err.Error(), "not_directory") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

func TestBadArgumentsAreRefused(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{}, {"a", "b"}, {"--backend", "none", "x"}, {"--backend", "ssh", "host"},
		{"relative"}} {
		if err := run(t.Context(), args, &bytes.Buffer{}); err == nil {
			t.Errorf("%q was taken", args)
		}
	}
}
