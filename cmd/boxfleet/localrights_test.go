package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
)

// A fleet without credentials keeps its sandboxes and output when it gets credentials. From then on it refuses
// --insecure.
func TestSandboxesStayWhenAFleetGetsCredentials(t *testing.T) {
	fleetOfOne(t)
	stop := startUp(t, "--insecure")
	removeHostMark(t)
	expect(t, "sandbox create --image "+image+" --id web --memory 64m", 0, "web\n")
	expectOf(t, []string{"exec", "web", "--id", "first", "--", "echo", "one"}, 0, "one\n")
	for again := range 2 {
		if code := stop(); code != 0 {
			t.Fatalf("up ended with %d", code)
		}
		if again > 0 { // without a key, `up` could append only messages that readers refuse
			code, _, stderr := call(t.Context(), "", "up", "--insecure")
			if code == 0 || !strings.Contains(stderr, "has no key to sign with") {
				t.Errorf("up --insecure ended with %d: %s", code, stderr)
			}
		}
		stop = startUp(t)
		expectOf(t, []string{"exec", "web", "--", "echo", "still there"}, 0, "still there\n")
		expect(t, "execs logs web first", 0, "one\n")
		expect(t, "sandbox events web", 0, "sandbox.accepted")
	}
	expect(t, "sandbox delete web", 0, "web\n")
	if code := stop(); code != 0 {
		t.Errorf("up ended with %d", code)
	}
}

// inData returns a path in the data directory of `up`.
func inData(parts ...string) string {
	return filepath.Join(append([]string{os.Getenv("XDG_DATA_HOME"), "boxfleet"}, parts...)...)
}

func TestUpKeepsItsCredentialsToItsUser(t *testing.T) {
	clean(t)
	stop := startUpWithoutEngine(t)
	// A NATS server that stops while it makes a stream leaves a goroutine of that stream behind.
	expect(t, "ping --wait 30s", 0, "")
	files := map[string]string{}
	for _, name := range []string{"coordinator.creds", "user.creds"} {
		info, err := os.Stat(inData(credentialsDir, name))
		if err != nil || info.Mode().Perm() != fs.FileMode(0o600) {
			t.Fatalf("%s: %v, %v", name, info, err)
		}
		text, err := os.ReadFile(inData(credentialsDir, name))
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(text)
	}
	stop()
	stop = startUpWithoutEngine(t)
	for name, before := range files {
		if text, err := os.ReadFile(inData(credentialsDir, name)); err != nil || string(text) != before {
			t.Errorf("after a restart, %s is another one: %v", name, err)
		}
	}
	expect(t, "sandbox create --image i --id web --wait=false", 0, "web\n")
	expect(t, "audit", 0, "@local-")
	stop()
}

func TestUpTakesCredentialsOfOthers(t *testing.T) {
	clean(t)
	t.Chdir(t.TempDir())
	startUpWithoutEngine(t)
	expect(t, "ping --wait 30s", 0, "")
	must(t, "auth", "add", "user", "anna", "--tenant", "blue")
	anna := "--creds user-blue-anna.creds "
	expect(t, anna+"sandbox create --image i --id web --wait=false", 0, "web\n")
	expect(t, anna+"sandbox list", 0, "web")
	expect(t, "sandbox list -o json", 0, "[]")
	expect(t, "sandbox list --tenant blue", 0, "web")
	for line, want := range map[string]string{
		anna + "sandbox list --tenant green":       "tenant: is green, but the credentials in user-blue-anna.creds are",
		anna + "sandbox list --nats-user otto":     "nats_user: is otto, but the credentials in user-blue-anna.creds are",
		"sandbox list --nats-user @otto":           "nats_user: is @otto, but the credentials in",
		"coordinator --name c2":                    "--creds is missing: make credentials with boxfleet auth add coordinator",
		"coordinator --creds user-blue-anna.creds": "creds: user-blue-anna.creds has credentials for the role user",
	} {
		if code, _, stderr := call(t.Context(), "", strings.Fields(line)...); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("boxfleet %s: %d, %s; want %q", line, code, stderr, want)
		}
	}
	must(t, "auth", "revoke", "user", "anna", "--tenant", "blue")
	must(t, "auth", "push")
	if code, _, stderr := call(t.Context(), "", strings.Fields(anna+"sandbox list")...); code == 0 ||
		!strings.Contains(stderr, "permission_denied") {
		t.Errorf("revoked credentials: %d, %s", code, stderr)
	}
	expect(t, "sandbox list --tenant blue", 0, "web")
}

func TestLostAndDamagedFilesOfUpAreNamed(t *testing.T) {
	clean(t)
	stop := startUpWithoutEngine(t)
	expect(t, "ping --wait 30s", 0, "")
	stop()
	authority, user := inData(authorityDir, "authority.json"), inData(credentialsDir, "user.creds")
	for name, c := range map[string]struct {
		file string
		mode fs.FileMode
		text string // empty: the file is lost
		want string // empty: `up` repairs it
	}{
		"lost authority":      {authority, 0, "", "is lost: restore it from a backup"},
		"damaged authority":   {authority, 0o600, "{", "is damaged"},
		"lost credentials":    {user, 0, "", ""},
		"damaged credentials": {user, 0o600, "x", "user.creds has no usable credentials: remove the file"},
		"readable by others":  {user, 0o644, "x", "run chmod 600"},
	} {
		t.Run(name, func(t *testing.T) {
			before, err := os.ReadFile(c.file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(c.file); err != nil {
				t.Fatal(err)
			}
			if c.text != "" {
				if err := os.WriteFile(c.file, []byte(c.text), c.mode); err != nil {
					t.Fatal(err)
				}
			}
			if c.want == "" {
				stop := startUpWithoutEngine(t)
				expect(t, "ping --wait 30s", 0, "")
				stop()
				return
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			code, _, stderr := call(ctx, "", "up")
			if code != exitFailure || !strings.Contains(stderr, "failed_precondition") || !strings.Contains(stderr, c.want) {
				t.Errorf("up: %d, %s", code, stderr)
			}
			// A lost file is still lost: `up` must not make another one.
			if err := os.Remove(c.file); err != nil && (c.text != "" || !errors.Is(err, fs.ErrNotExist)) {
				t.Fatal(err)
			}
			write(t, c.file, string(before))
		})
	}
}

// If the authority is lost and the operator makes a new one, the fleet continues with the new authority.
func TestUpContinuesWithAReplacedAuthority(t *testing.T) {
	clean(t)
	stop := startUpWithoutEngine(t)
	expect(t, "ping --wait 30s", 0, "")
	expect(t, "sandbox create --image i --id web --wait=false", 0, "web\n")
	stop()
	if err := os.Rename(inData(authorityDir), inData("lost")); err != nil {
		t.Fatal(err)
	}
	must(t, "auth", "init")
	startUpWithoutEngine(t)
	expect(t, "ping --wait 30s", 0, "")
	expect(t, "sandbox list", 0, "web")
}

// If the authority of a fleet is missing, `up --insecure` must not run the fleet without credentials, and `up` must not
// make another authority by itself.
func TestUpInsecureChangesNothingInAFleetWithCredentials(t *testing.T) {
	clean(t)
	stop := startUpWithoutEngine(t)
	expect(t, "ping --wait 30s", 0, "")
	expect(t, "sandbox create --image i --id web --wait=false", 0, "web\n")
	stop()
	if err := os.Rename(inData(authorityDir), inData("backup")); err != nil {
		t.Fatal(err)
	}
	for _, try := range []struct{ command, want string }{
		{"up --insecure", "has no key to sign with"},
		{"up", "is lost: restore it from a backup"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		code, _, stderr := call(ctx, "", strings.Fields(try.command)...)
		cancel()
		if code != exitFailure || !strings.Contains(stderr, try.want) {
			t.Errorf("boxfleet %s: %d, %s; want %q", try.command, code, stderr, try.want)
		}
	}
	if _, err := os.Stat(inData("token")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("up --insecure made a token: %v", err)
	}
	if err := os.RemoveAll(inData(authorityDir)); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(inData("backup"), inData(authorityDir)); err != nil {
		t.Fatal(err)
	}
	startUpWithoutEngine(t)
	expect(t, "ping --wait 30s", 0, "")
	expect(t, "sandbox list", 0, "web")
}

// A worker that could not get the credentials of its host gets them at the next attempt.
func TestAWorkerGetsTheCredentialsOfItsHostAfterAFailure(t *testing.T) {
	clean(t)
	dir, server := t.TempDir(), embedded.Config{Name: "boxfleet", SyncLazily: true}
	f := &local{stopWorking: func() {}}
	if err := f.protect(&server, dir, false, "c1", "w1"); err != nil {
		t.Fatal(err)
	}
	server.Dir = filepath.Join(dir, natsDir)
	var err error
	if f.server, err = embedded.Keep(server, 0, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.close)
	f.rights.server = f.server
	_, conn, err := f.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(f.rights.workerIn, 0o644); err != nil { // a file that others can read is refused
		t.Fatal(err)
	}
	if err := f.rights.onHost(t.Context(), conn, "h1"); err == nil {
		t.Fatal("the attempt does not fail, so the test does not show anything")
	}
	if err := os.Chmod(f.rights.workerIn, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := f.rights.onHost(t.Context(), conn, "h1"); err != nil {
			t.Fatal(err)
		}
	}
	has, _, err := jetstream.CredentialsIdentity(f.rights.workerIn)
	if err != nil || has.Host != "h1" {
		t.Errorf("the worker has credentials for the host %q, %v", has.Host, err)
	}
}
