package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestSecretsOfALocalFleet(t *testing.T) {
	clean(t)
	stop := startUpWithoutEngine(t)
	if code, _, said := call(t.Context(), "", "ping", "--wait", "30s"); code != 0 {
		t.Fatalf("ping ended with %d: %s", code, said)
	}
	if code, stdout, stderr := call(t.Context(), "hunter2", "secret", "set", "db"); code != 0 ||
		stdout != "db version 1\n" {
		t.Fatalf("set ended with %d: %s%s", code, stdout, stderr)
	}
	file := filepath.Join(t.TempDir(), "value")
	write(t, file, "hunter2 of a file")
	expect(t, "secret set db --file "+file, 0, "db version 2\n")
	expect(t, "secret list -q", 0, "db\n")
	code, stdout, _ := call(t.Context(), "", "secret", "list")
	if code != 0 || !strings.Contains(stdout, "db     2         17") || strings.Contains(stdout, "hunter2") {
		t.Errorf("list: %d, %s", code, stdout)
	}
	t.Setenv("TOKEN", "hunter2 of the environment")
	expect(t, "sandbox create --image i --id s1 --wait=false --secret db,env=DB,mask --sensitive-env TOKEN "+
		"--sensitive-env KEY=@"+file, 0, "s1\n")
	for _, read := range []string{"sandbox get s1 -o json", "sandbox get s1", "sandbox events s1 -o json", "audit",
		"sandbox list -o json"} {
		code, stdout, stderr := call(t.Context(), "", strings.Fields(read)...)
		if code != 0 || strings.Contains(stdout+stderr, "hunter2") {
			t.Errorf("%s: %d, %s%s", read, code, stdout, stderr)
		}
		if strings.HasPrefix(read, "sandbox get s1 -o json") && !strings.Contains(stdout, `"TOKEN":"***"`) {
			t.Errorf("%s shows no ***: %s", read, stdout)
		}
	}
	applyTwice(t)
	code, _, stderr := call(t.Context(), "", "sandbox", "create", "--image", "i", "--secret", "none", "--wait=false")
	if code != exitFailure || !strings.Contains(stderr, protocol.ReasonSecretMissing) ||
		!strings.Contains(stderr, "secrets[0]") {
		t.Errorf("a missing secret: %d, %s", code, stderr)
	}
	for _, wrong := range []string{"--sensitive-env TOKEN=hunter2", "--sensitive-env NO_SUCH_VARIABLE",
		"--secret db,x=1"} {
		code, _, stderr := call(t.Context(), "", strings.Fields("sandbox create --image i "+wrong)...)
		if code != exitUsage || strings.Contains(stderr, "hunter2") {
			t.Errorf("%s: %d, %s", wrong, code, stderr)
		}
	}
	expect(t, "secret rm db", 0, "db\n")
	code, _, stderr = call(t.Context(), "", "secret", "rm", "db")
	if code == 0 || !strings.Contains(stderr, "not_found") {
		t.Errorf("rm of a removed secret: %d, %s", code, stderr)
	}
	if printed := stop(); strings.Contains(printed, "hunter2") {
		t.Errorf("up prints a value: %s", printed)
	}
	restartsWithItsKey(t)
}

// restartsWithItsKey starts a local fleet again, and checks that it keeps its key and the versions of secrets.
func restartsWithItsKey(t *testing.T) {
	t.Helper()
	key := filepath.Join(os.Getenv("XDG_DATA_HOME"), "boxfleet", authorityDir, "secrets.key")
	info, err := os.Stat(key)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the fleet's key: %v, %v", info, err)
	}
	before, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	startUpWithoutEngine(t)
	if code, _, said := call(t.Context(), "", "ping", "--wait", "30s"); code != 0 {
		t.Fatalf("ping ended with %d: %s", code, said)
	}
	if code, stdout, stderr := call(t.Context(), "again", "secret", "set", "db"); code != 0 || stdout != "db version 3\n" {
		t.Errorf("after a restart, set ended with %d: %s%s", code, stdout, stderr)
	}
	if after, err := os.ReadFile(key); err != nil || string(after) != string(before) {
		t.Errorf("a restart replaced the key: %v", err)
	}
}

// applyTwice applies a document with a sensitive variable, which is sealed again each time.
func applyTwice(t *testing.T) {
	t.Helper()
	document := filepath.Join(t.TempDir(), "spec.yaml")
	write(t, document, "name: web\nimage: i\nenv: {A: {sensitive: \"${TOKEN}\"}}\n")
	expect(t, "apply -f "+document+" --wait=false", 0, "web created\n")
	expect(t, "apply -f "+document+" --wait=false", 0, "web unchanged\n") // sealed again
}

func TestAFleetWithoutCredentialsRefusesSecrets(t *testing.T) {
	clean(t)
	startWithoutHosts(t, 0)
	code, _, stderr := call(t.Context(), "x", "secret", "set", "db")
	if code != exitFailure || !strings.Contains(stderr, protocol.ReasonNoCredentials) {
		t.Errorf("set: %d, %s", code, stderr)
	}
	code, _, stderr = call(t.Context(), "", "sandbox", "create", "--image", "i", "--secret", "db", "--wait=false")
	if code != exitFailure || !strings.Contains(stderr, protocol.ReasonNoCredentials) {
		t.Errorf("create: %d, %s", code, stderr)
	}
}

func TestTheFleetsKeysAreWrittenAndRotated(t *testing.T) {
	clean(t)
	dir, file := t.TempDir()+"/authority", filepath.Join(t.TempDir(), "secrets.key")
	expect(t, "auth init "+dir, 0, "")
	read := func() []string {
		t.Helper()
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(content))
	}
	expect(t, "auth secrets-key --dir "+dir+" --file "+file, 0, "")
	first := read()
	expect(t, "auth secrets-key --rotate --dir "+dir+" --file "+file, 0, "")
	if both := read(); len(first) != 1 || len(both) != 2 || both[1] != first[0] || both[0] == first[0] {
		t.Errorf("%d keys, and %d after the rotation", len(first), len(both))
	}
	keys, err := readSecretsKeys(file)
	if err != nil || len(keys) != 2 {
		t.Errorf("%d keys are read: %v", len(keys), err)
	}
	write(t, file, "SXNOTASEED")
	if _, err := readSecretsKeys(file); err == nil || strings.Contains(err.Error(), "NOTASEED") ||
		!strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "boxfleet auth secrets-key") {
		t.Errorf("a damaged file: %v", err)
	}
	write(t, file, "\n")
	if keys, err := readSecretsKeys(file); err != nil || keys != nil {
		t.Errorf("an empty file gives %v: %v", keys, err)
	}
}
