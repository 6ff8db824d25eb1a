package main

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/certs"
)

// secrets are the files of a certificate authority, of a server and of a client.
type secrets struct {
	ca                                           *certs.CA
	serverCert, serverKey, clientCert, clientKey string
}

// newSecrets makes the files. The environment variables of the test name those of the client.
func newSecrets(t *testing.T) *secrets {
	t.Helper()
	dir := t.TempDir()
	ca, err := certs.NewCA(dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	s := &secrets{ca: ca}
	if s.serverCert, s.serverKey, err = ca.Issue(dir, "server", time.Hour); err != nil {
		t.Fatal(err)
	}
	if s.clientCert, s.clientKey, err = ca.Issue(dir, "client", time.Hour); err != nil {
		t.Fatal(err)
	}
	t.Setenv("BOXFLEET_TLS_CA", ca.File)
	t.Setenv("BOXFLEET_TLS_CERT", s.clientCert)
	t.Setenv("BOXFLEET_TLS_KEY", s.clientKey)
	return s
}

// section returns the section tls of a server's configuration.
func (s *secrets) section(more string) string {
	return fmt.Sprintf("tls { cert_file: %q, key_file: %q, ca_file: %q, %s }\n", s.serverCert, s.serverKey, s.ca.File, more)
}

// TestEveryRoleAndCommandWorksWithTLSAndAPassword uses a server that demands a certificate from its clients.
func TestEveryRoleAndCommandWorksWithTLSAndAPassword(t *testing.T) {
	fleetOfOne(t)
	s := newNATS(t, "")
	s.tls = newSecrets(t).section("verify: true")
	s.configure(t, `user: k, password: "geheim"`)
	s.start(t)
	t.Setenv("BOXFLEET_NATS", s.url())
	t.Setenv("BOXFLEET_LOGIN", "k")
	t.Setenv("BOXFLEET_PASSWORD", "geheim")
	coordinator := startRole(t, "coordinator")
	// The coordinator must set its logger before the worker starts: both set the default logger of this process.
	coordinator.await(t, http.StatusOK, "places sandboxes")
	worker := startRole(t, "worker", "--name", "w1", "--state-dir", t.TempDir())
	worker.await(t, http.StatusOK, "holds the lock")
	removeHostMark(t)
	expect(t, "storage set --requests 1000", 0, "")
	expect(t, "sandbox create --image "+image+" --id web --memory 64m", 0, "web\n")
	expectOf(t, []string{"exec", "web", "--", "echo", "through"}, 0, "through\n")
	expect(t, "sandbox delete web", 0, "")
	worker.ends(t, 20*time.Second)
}

func TestDoctorNamesTheSettingOfTLSThatIsWrong(t *testing.T) {
	clean(t)
	s := newNATS(t, "")
	s.tls = newSecrets(t).section("verify: true")
	s.configure(t, "")
	s.start(t)
	other, err := certs.NewCA(t.TempDir(), "other")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, finding, message string }{
		{"--tls-ca " + other.File, "nats.settings", "no certificate in " + other.File},
		{"--tls-cert= --tls-key=", "access.refused", "name one in tls.cert"},
	} {
		args := append([]string{"doctor", "--nats", s.url(), "-o", "json"}, strings.Fields(c.args)...)
		if _, stdout, stderr := call(t.Context(), "", args...); !strings.Contains(stdout, c.finding) ||
			!strings.Contains(stdout, c.message) {
			t.Errorf("%s: want %s and %q, got %s %s", c.args, c.finding, c.message, stdout, stderr)
		}
	}
}

func TestUpSaysThatItIgnoresTheSettingsOfTLS(t *testing.T) {
	clean(t)
	_, _, stderr := call(t.Context(), "", "up", "--tls-ca", "ca.pem", "--listen", "0.0.0.0") // refused: not on loopback
	if !strings.Contains(stderr, "up ignores the settings tls.*") {
		t.Errorf("no warning: %s", stderr)
	}
}

func TestSettingsThatContradictEachOtherAreRefused(t *testing.T) {
	clean(t)
	s := newNATS(t, `user: k, password: "geheim"`)
	s.start(t)
	_, seed := newNKey(t)
	file := filepath.Join(t.TempDir(), "seed.nk")
	write(t, file, seed)
	missing, empty := filepath.Join(t.TempDir(), "missing"), filepath.Join(t.TempDir(), "empty")
	write(t, empty, "\n")
	withLogin := strings.Replace(s.url(), "nats://", "nats://k:geheim@", 1)
	for _, c := range []struct{ args, env, want string }{
		{"--nkey FILE --creds " + file, "", "nkey: must not be set together with creds"},
		{"--login k --creds " + file, "BOXFLEET_PASSWORD=geheim", "login: must not be set together with creds"},
		{"--login k --nkey FILE", "BOXFLEET_PASSWORD=geheim", "login: must not be set together with nkey"},
		{"--creds " + file + " --token t", "", "token: must not be set together with creds"},
		{"--nkey FILE --token t", "", "token: must not be set together with nkey"},
		{"--login k --token t", "BOXFLEET_PASSWORD=geheim", "token: must not be set together with login"},
		{"--login k", "", "password: is missing"},
		{"", "BOXFLEET_PASSWORD=geheim", "login: is missing"},
		{"--login k --password-file " + missing, "", "password_file: cannot read"},
		{"--login k --password-file " + empty, "", "password_file: " + empty + " is empty"},
		{"--nkey " + missing, "", "nkey: could not read the seed"},
		{"--nkey " + empty, "", "nkey: could not read the seed"},
		{"--tls-cert FILE", "", "tls.key: is missing"},
		{"--tls-key FILE", "", "tls.cert: is missing"},
		{"--tls-ca FILE", "", "tls.ca: " + file + " contains no certificate"},
		{"--tls-server-name n1", "", "offers no TLS"},
		{"--nats " + withLogin + " --nkey FILE", "", "must not be set together with"},
		{"--nats " + withLogin + " --login k", "BOXFLEET_PASSWORD=geheim", "nats: "},
		{"--nats " + withLogin + " --token t", "", "nats: "},
		{"--login k", "BOXFLEET_PASSWORD=wrong-one", "login: connect to NATS"},
		{"--nkey FILE", "", "nkey: connect to NATS"},
	} {
		for _, command := range []string{"ping", "coordinator"} {
			t.Run(command+" "+c.args, func(t *testing.T) {
				args := []string{command}
				if !strings.Contains(c.args, "--nats") {
					args = append(args, "--nats", s.url())
				}
				args = append(args, strings.Fields(strings.ReplaceAll(c.args, "FILE", file))...)
				if name, value, found := strings.Cut(c.env, "="); found {
					t.Setenv(name, value)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				code, _, stderr := call(ctx, "", args...)
				if ctx.Err() != nil || code == 0 || !strings.Contains(stderr, c.want) || strings.Contains(stderr, "geheim") {
					t.Errorf("ended with %d, want %q: %s", code, c.want, stderr)
				}
			})
		}
	}
}
