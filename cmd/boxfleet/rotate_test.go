package main

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nkeys"
)

// replace replaces the contents of a file atomically.
func replace(t *testing.T, file, text string) {
	t.Helper()
	if err := writePrivate(file, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

// refusedFor checks three things for the duration d: the role's health says that NATS refuses the credentials, the role
// does not end, and its log stays short.
func (r *role) refusedFor(t *testing.T, d time.Duration) {
	t.Helper()
	r.await(t, http.StatusServiceUnavailable, "NATS refuses the credentials")
	before := len(r.stderr.String())
	for until := time.Now().Add(d); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		if code, text := r.askReady(); code != http.StatusServiceUnavailable || len(r.ended) > 0 {
			t.Fatalf("health says %d %s, log:\n%s", code, text, r.stderr.String())
		}
	}
	log := r.stderr.String()
	if n := len(log) - before; n > 2048 {
		t.Errorf("%d bytes of log within %s:\n%s", n, d, log)
	}
	if n := strings.Count(log, "NATS refuses this process"); n != 1 {
		t.Errorf("the log says %d times that NATS refuses the process, want once:\n%s", n, log)
	}
}

func TestACoordinatorReadsChangedCredentialsAgain(t *testing.T) {
	firstKey, firstSeed := newNKey(t)
	secondKey, secondSeed := newNKey(t)
	for name, c := range map[string]struct {
		before, after string // values of the server's configuration section authorization
		first, second string // contents of the file before and after the change
		args          []string
		file          string
	}{
		"token file": {
			before: `token: "one"`, after: `token: "two"`, file: "token", first: "one\n", second: "two\n",
			args: []string{"--nats", "URL", "--token-file", "FILE"},
		},
		"token in the configuration": {
			before: `token: "one"`, after: `token: "two"`, file: "config.yaml", first: "nats: URL\ntoken: one\n",
			second: "nats: URL\ntoken: two\n",
			args:   []string{"--config", "FILE"},
		},
		"password in the URL": {
			before: `user: k, password: "one"`, after: `user: k, password: "two"`, file: "config.yaml",
			first: "nats: nats://k:one@HOST\n", second: "nats: nats://k:two@HOST\n",
			args: []string{"--config", "FILE"},
		},
		"password file": {
			before: `user: k, password: "one"`, after: `user: k, password: "two"`, file: "password", first: "one\n",
			second: "two\n",
			args:   []string{"--nats", "URL", "--login", "k", "--password-file", "FILE"},
		},
		"password in the configuration": {
			before: `user: k, password: "one"`, after: `user: k, password: "two"`, file: "config.yaml",
			first: "nats: URL\nlogin: k\npassword: one\n", second: "nats: URL\nlogin: k\npassword: two\n",
			args: []string{"--config", "FILE"},
		},
		"nkey": {
			before: "users: [{nkey: " + firstKey + "}]", after: "users: [{nkey: " + secondKey + "}]", file: "seed.nk",
			first: firstSeed, second: secondSeed + "\n",
			args: []string{"--nats", "URL", "--nkey", "FILE"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			clean(t)
			s := newNATS(t, c.before)
			s.start(t)
			file := filepath.Join(t.TempDir(), c.file)
			fill := strings.NewReplacer("URL", s.url(), "HOST", strings.TrimPrefix(s.url(), "nats://"), "FILE", file)
			replace(t, file, fill.Replace(c.first))
			args := []string{"coordinator"}
			for _, a := range c.args {
				args = append(args, fill.Replace(a))
			}
			r := startRole(t, args...)
			r.await(t, http.StatusOK, "places sandboxes")
			s.reload(t, c.after)
			r.refusedFor(t, time.Second)
			replace(t, file, fill.Replace(c.second))
			r.await(t, http.StatusOK, "NATS: connected")
			code, _, stderr := call(t.Context(), "", append([]string{"ping"}, args[1:]...)...)
			if code != 0 {
				t.Errorf("ping ended with %d: %s", code, stderr)
			}
		})
	}
}

// newNKey makes the key of a user, and returns the public key and the seed.
func newNKey(t *testing.T) (public, seed string) {
	t.Helper()
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	text, err := pair.Seed()
	if err != nil {
		t.Fatal(err)
	}
	if public, err = pair.PublicKey(); err != nil {
		t.Fatal(err)
	}
	return public, string(text)
}

func TestAnExecContinuesWhileNATSRefusesItsWorker(t *testing.T) {
	fleetOfOne(t)
	s := newNATS(t, `token: "one"`)
	s.start(t)
	file := filepath.Join(t.TempDir(), "token")
	replace(t, file, "one")
	t.Setenv("BOXFLEET_NATS", s.url())
	t.Setenv("BOXFLEET_TOKEN_FILE", file)
	coordinator := startRole(t, "coordinator")
	// The coordinator must set its logger before the worker starts: both set the default logger of this process.
	coordinator.await(t, http.StatusOK, "places sandboxes")
	worker := startRole(t, "worker", "--name", "w1", "--state-dir", t.TempDir())
	worker.await(t, http.StatusOK, "holds the lock")
	removeHostMark(t)
	expect(t, "sandbox create --image "+image+" --id web --memory 64m", 0, "web\n")
	expectOf(t, []string{"exec", "web", "--id", "x", "--detach", "--", "sh", "-c",
		"echo up; sleep 4; echo through"}, 0, "x\n")
	expect(t, "wait web x --contains up", 0, "up\n") // --detach does not wait for the start
	s.reload(t, `token: "two"`)
	worker.refusedFor(t, 4*time.Second)
	replace(t, file, "two")
	worker.await(t, http.StatusOK, "holds the lock")
	coordinator.await(t, http.StatusOK, "NATS: connected")
	expect(t, "execs logs web x --follow", 0, "up\nthrough\n")
	expect(t, "execs get web x -o json", 0, `"exit_code":0`)
	expectOf(t, []string{"exec", "web", "--", "echo", "again"}, 0, "again\n")
	expect(t, "sandbox delete web", 0, "")
	worker.ends(t, 20*time.Second)
}
