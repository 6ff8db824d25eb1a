package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/doctor"
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
	return fmt.Sprintf("tls { cert_file: %q, key_file: %q, ca_file: %q, %s }\n", s.serverCert, s.serverKey, s.ca.File,
		more)
}

// TestEveryRoleAndCommandWorksWithTLSAndAPassword uses a server that begins with the TLS handshake and demands a
// certificate from its clients.
func TestEveryRoleAndCommandWorksWithTLSAndAPassword(t *testing.T) {
	t.Setenv("BOXFLEET_LOGIN", "k")
	t.Setenv("BOXFLEET_PASSWORD", "geheim")
	worksWithTLS(t, `user: k, password: "geheim"`, nil, nil)
}

// TestEveryRoleAndCommandWorksWithTLSAndAnNKey gives each role and the commands a key of their own, because a key
// belongs to one writer of histories.
func TestEveryRoleAndCommandWorksWithTLSAndAnNKey(t *testing.T) {
	var users []string
	seedFile := func(name string) string {
		public, seed := newNKey(t)
		users = append(users, "{nkey: "+public+"}")
		file := filepath.Join(t.TempDir(), name)
		write(t, file, seed)
		return file
	}
	coordinator, worker := seedFile("coordinator.nk"), seedFile("worker.nk")
	t.Setenv("BOXFLEET_NKEY", seedFile("client.nk"))
	worksWithTLS(t, "users: ["+strings.Join(users, ", ")+"]", []string{"--nkey", coordinator}, []string{"--nkey", worker})
}

// worksWithTLS runs a fleet of one worker, and commands, with a server that has this section authorization. The roles
// get further flags.
func worksWithTLS(t *testing.T, authorization string, ofCoordinator, ofWorker []string) {
	t.Helper()
	t.Setenv("BOXFLEET_TLS_HANDSHAKE_FIRST", "true")
	fleetOfOne(t)
	s := newNATS(t, "")
	s.tls = newSecrets(t).section("verify: true, handshake_first: true")
	s.configure(t, authorization)
	s.start(t)
	t.Setenv("BOXFLEET_NATS", s.url())
	coordinator := startRole(t, append([]string{"coordinator"}, ofCoordinator...)...)
	// The coordinator must set its logger before the worker starts: both set the default logger of this process.
	coordinator.await(t, http.StatusOK, "places sandboxes")
	worker := startRole(t, append([]string{"worker", "--name", "w1", "--state-dir", t.TempDir()}, ofWorker...)...)
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

// agedSecrets makes certificates of a year, of which so much is left.
func agedSecrets(t *testing.T, left time.Duration, hosts ...string) *secrets {
	t.Helper()
	s, dir := newSecrets(t), t.TempDir()
	const year = 365 * 24 * time.Hour
	var err error
	if s.serverCert, s.serverKey, err = s.ca.IssueAged(dir, "server", year-left, left, hosts...); err != nil {
		t.Fatal(err)
	}
	if s.clientCert, s.clientKey, err = s.ca.IssueAged(dir, "client", year-left, left); err != nil {
		t.Fatal(err)
	}
	t.Setenv("BOXFLEET_TLS_CERT", s.clientCert)
	t.Setenv("BOXFLEET_TLS_KEY", s.clientKey)
	return s
}

// serverWith starts a NATS server with this section tls.
func serverWith(t *testing.T, section string) *natsServer {
	t.Helper()
	s := newNATS(t, "")
	s.tls = section
	s.configure(t, "")
	s.start(t)
	return s
}

func TestDoctorWarnsBeforeCertificatesExpire(t *testing.T) {
	clean(t)
	const day = 24 * time.Hour
	for left, want := range map[time.Duration][]string{
		29 * day: {"access.certificate_expires", "nats.certificate_expires"}, 31 * day: nil,
	} {
		s := serverWith(t, agedSecrets(t, left).section("verify: true"))
		t.Setenv("BOXFLEET_NATS", s.url())
		coordinator := startRole(t, "coordinator")
		coordinator.await(t, http.StatusOK, "places sandboxes")
		code, stdout, stderr := call(t.Context(), "", "doctor", "-o", "json")
		var r doctor.Report
		if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitWarnings {
			t.Fatalf("%s left: exit code %d, %v: %s%s", left, code, err, stdout, stderr)
		}
		got := slices.DeleteFunc(codesOf(r), func(code string) bool { return !strings.Contains(code, "certificate") })
		if !slices.Equal(got, want) {
			t.Errorf("%s left: found %q, want %q", left, got, want)
		}
		coordinator.ends(t, 20*time.Second)
	}
}

func TestDoctorExaminesTheCertificateOfEachServer(t *testing.T) {
	clean(t)
	expired := serverWith(t, agedSecrets(t, -time.Hour).section(""))
	misnamed := serverWith(t, agedSecrets(t, 300*24*time.Hour, "n1.example.com").section("handshake_first: auto"))
	good := serverWith(t, agedSecrets(t, 300*24*time.Hour).section("")) // its CA is the one that doctor trusts
	plain := serverWith(t, "")
	find := func(urls, args string, want ...string) {
		t.Helper()
		code, stdout, stderr := call(t.Context(), "", append(strings.Fields("doctor -o json --nats "+urls),
			strings.Fields(args)...)...)
		var r doctor.Report
		if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitErrors {
			t.Fatalf("%s: exit code %d, %v: %s%s", urls, code, err, stdout, stderr)
		}
		if got := codesOf(r, doctor.Error); !slices.Equal(got, want) {
			t.Errorf("%s: found %q, want %q: %s", urls, got, want, stdout)
		}
	}
	find(expired.url(), "", "nats.certificate_expired")
	find(misnamed.url(), "", "nats.certificate_name")
	find(good.url(), "", "coordinator.silent")
	find(good.url(), "--tls-server-name n9.example.com", "nats.certificate_name")
	all := good.url() + "," + expired.url() + "," + misnamed.url()
	find(all, "", "coordinator.silent", "nats.certificate_expired", "nats.certificate_name")
	find(plain.url(), "--tls-ca= --tls-cert= --tls-key=", "coordinator.silent")
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
