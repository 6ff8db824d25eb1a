package main

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/auth"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
)

// must runs a command that has to succeed, and returns its output.
func must(t *testing.T, args ...string) string {
	t.Helper()
	code, stdout, stderr := call(t.Context(), "", args...)
	if code != 0 {
		t.Fatalf("boxfleet %s: %d, %s", strings.Join(args, " "), code, stderr)
	}
	return stdout
}

// trustingServer runs a NATS server whose configuration includes part. The server keeps its files in dir.
func trustingServer(t *testing.T, dir, part string) *server.Server {
	t.Helper()
	file := filepath.Join(dir, "nats.conf")
	write(t, filepath.Join(dir, "auth.conf"), part)
	write(t, file, `server_name: nats-1
listen: "127.0.0.1:-1"
jetstream { store_dir: store }
include "auth.conf"
`)
	opts, err := server.ProcessConfigFile(file)
	if err != nil {
		t.Fatalf("the server does not accept its configuration: %v", err)
	}
	opts.NoLog, opts.NoSigs, opts.StoreDir = true, true, filepath.Join(dir, "store")
	s, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the NATS server is not ready")
	}
	return s
}

// accepted reports whether a server accepts a credentials file.
func accepted(s *server.Server, file string) bool {
	nc, err := nats.Connect(s.ClientURL(), nats.UserCredentials(file), nats.NoReconnect())
	if err == nil {
		nc.Close()
	}
	return err == nil
}

// shellBlock is a block of commands in a page.
var shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")

// TestTheCommandsOfThePageOnCredentialsWork runs the commands in the order of the page, against a NATS server with TLS
// that the printed configuration starts.
func TestTheCommandsOfThePageOnCredentialsWork(t *testing.T) {
	clean(t)
	page, err := os.ReadFile("../../docs/credentials.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	t.Chdir(dir)
	var s *server.Server
	ran := 0
	for _, block := range shellBlock.FindAllStringSubmatch(string(page), -1) {
		for _, line := range strings.Split(strings.TrimSpace(block[1]), "\n") {
			line, into, _ := strings.Cut(line, " >")
			args := strings.Fields(strings.NewReplacer("/srv/boxfleet-auth", filepath.Join(dir, "auth"),
				"/var/lib/nats/accounts", filepath.Join(dir, "accounts"), "'", "").Replace(line))
			if args[0] == "rm" {
				if err := os.Remove(args[1]); err != nil {
					t.Fatal(err)
				}
				continue
			}
			if args[0] != "boxfleet" {
				t.Fatalf("%s: not a command of boxfleet", line)
			}
			if s != nil {
				t.Setenv("BOXFLEET_NATS", s.ClientURL())
			}
			printed := must(t, args[1:]...)
			ran++
			if into != "" && s == nil {
				s = trustingServer(t, t.TempDir(), printed+newSecrets(t).section("verify: false"))
			}
		}
	}
	if ran < 10 || s == nil {
		t.Errorf("ran %d commands", ran)
	}
}

func TestCredentialsAreMadeListedRevokedAndReplaced(t *testing.T) {
	clean(t)
	dir := t.TempDir()
	t.Chdir(dir)
	authority := filepath.Join(dir, "authority")
	must(t, "auth", "init", authority)
	in := []string{"--dir", authority}
	on := func(args ...string) []string { return append(append([]string{"auth"}, args...), in...) }
	must(t, on("add", "worker", "w1", "--host", "HOSTA")...)
	must(t, on("add", "user", "anna", "--tenant", "blue", "--expires", "1h", "--file", "anna.creds")...)
	if text := must(t, on("add", "operator", "otto", "--file", "-")...); !strings.Contains(text, "BEGIN NATS USER JWT") {
		t.Errorf("stdout has no credentials: %.80s", text)
	}
	for _, file := range []string{"worker-w1.creds", "anna.creds"} {
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != fs.FileMode(0o600) {
			t.Errorf("%s: %v, %v", file, info, err)
		}
	}
	s := trustingServer(t, t.TempDir(), must(t, on("config", "--resolver-dir", filepath.Join(dir, "accounts"))...))
	t.Setenv("BOXFLEET_NATS", s.ClientURL())
	if !accepted(s, "worker-w1.creds") || !accepted(s, "anna.creds") {
		t.Error("the server refuses the credentials")
	}
	var all []struct {
		auth.Issued
		Status string `json:"status"`
	}
	if err := json.Unmarshal([]byte(must(t, on("list", "-o", "json")...)), &all); err != nil || len(all) != 3 ||
		all[1].Role != rights.User || all[1].Tenant != "blue" || all[1].Expires.IsZero() || all[1].Status != "valid" {
		t.Errorf("got %+v, %v", all, err)
	}
	shown := must(t, on("show", "worker", "w1")...)
	for _, want := range []string{
		"HOSTA", "valid", "publish   boxfleet.v1.append.w1.*.*", "subscribe _INBOX.@w1.>",
	} {
		if !strings.Contains(shown, want) {
			t.Errorf("show does not print %q: %s", want, shown)
		}
	}
	must(t, on("revoke", "user", "anna", "--tenant", "blue")...)
	if told := must(t, on("push")...); !strings.Contains(told, "nats-1") {
		t.Errorf("push printed %q", told)
	}
	if accepted(s, "anna.creds") || !accepted(s, "worker-w1.creds") {
		t.Error("want the revoked credentials refused, and no others")
	}
	if rotated := must(t, on("rotate", "worker", "--overlap", "0s")...); !strings.Contains(rotated, "worker w1") {
		t.Errorf("rotate does not say whose credentials to replace: %s", rotated)
	}
	must(t, on("push")...)
	if accepted(s, "worker-w1.creds") {
		t.Error("credentials of a replaced key without overlap are accepted")
	}
	must(t, on("add", "worker", "w1", "--host", "HOSTA", "--file", "new.creds")...)
	if !accepted(s, "new.creds") {
		t.Error("credentials of the new key are refused")
	}
}

func TestWrongCredentialsAreRefusedByTheField(t *testing.T) {
	clean(t)
	t.Chdir(t.TempDir())
	for line, want := range map[string]string{
		"auth list": "boxfleet auth init",
	} {
		if code, _, stderr := call(t.Context(), "", strings.Fields(line)...); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("boxfleet %s: %d, %s", line, code, stderr)
		}
	}
	must(t, "auth", "init")
	must(t, "auth", "add", "user", "anna", "--tenant", "blue")
	write(t, "taken.creds", "mine")
	for line, want := range map[string]string{
		"auth init":                                      "has an authority",
		"auth add":                                       "ROLE is missing",
		"auth add worker":                                "NAME is missing",
		"auth add root r":                                "role: must be one of",
		"auth add worker w1":                             "host: must not be empty",
		"auth add worker w1 --host a.b":                  "host: must be",
		"auth add worker W1 --host a":                    "name: must be",
		"auth add user otto":                             "tenant: must not be empty",
		"auth add user otto --tenant a.>":                "tenant: must be",
		"auth add operator otto --tenant blue":           "tenant: must be empty",
		"auth add operator otto --host h":                "host: must be empty",
		"auth add operator otto --expires -1s":           "expires: must be at least 1s",
		"auth add user anna --tenant blue --file x":      "name: user anna has valid credentials",
		"auth add viewer anna --tenant blue":             "name: anna is the name of a user",
		"auth add operator otto --file taken.creds":      "--file: taken.creds exists",
		"auth add operator otto --file /nonexistent/x":   "--file: open /nonexistent/x",
		"auth show user nobody --tenant blue":            "no credentials were issued for user nobody of tenant blue",
		"auth revoke user anna":                          "tenant: must not be empty",
		"auth revoke worker w9":                          "no credentials were issued for worker w9",
		"auth rotate":                                    "ROLE is missing",
		"auth rotate root":                               "role: must be one of",
		"auth rotate user --overlap -1h":                 "overlap: must not be negative",
		"auth config":                                    "--resolver-dir or --memory",
		"auth config --resolver-dir relative":            "resolver_dir: must be an absolute path",
		"auth push --nats nats://127.0.0.1:1":            "connect to the system account",
		"auth list --dir " + filepath.Join("no", "such"): "no authority",
	} {
		code, stdout, stderr := call(t.Context(), "", strings.Fields(line)...)
		if code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("boxfleet %s: %d, %s%s; want %q", line, code, stdout, stderr, want)
		}
	}
	if text, err := os.ReadFile("taken.creds"); err != nil || string(text) != "mine" {
		t.Errorf("an existing file was changed: %q, %v", text, err)
	}
	if _, err := os.Stat("x"); err == nil {
		t.Error("a refused command left a file")
	}
	if text := must(t, "auth", "list"); strings.Contains(text, "otto") {
		t.Errorf("credentials were made in spite of an error: %s", text)
	}
}

func TestAWrongFileOfARoleIsNamedWithWhatToDo(t *testing.T) {
	clean(t)
	t.Chdir(t.TempDir())
	must(t, "auth", "init", "a")
	must(t, "auth", "add", "worker", "w1", "--host", "HOSTA", "--dir", "a", "--file", "w1.creds")
	must(t, "auth", "add", "coordinator", "c1", "--dir", "a", "--file", "c1.creds")
	must(t, "auth", "secrets-key", "--dir", "a", "--file", "secrets.key")
	write(t, "tls.key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
	for line, want := range map[string]string{
		"coordinator --name c1 --creds w1.creds": "for the role worker, not coordinator: make others with boxfleet " +
			"auth add coordinator c1",
		"worker --name w1 --supervisor /bin/true --creds c1.creds":    "make others with boxfleet auth add worker w1",
		"worker --name w1 --supervisor /bin/true --creds secrets.key": "secrets.key has no credentials",
		"coordinator --name c1 --creds tls.key":                       "tls.key has no credentials",
		"coordinator --name c1 --creds a":                             "cannot read a: is a directory",
		"coordinator --name c1 --creds missing.creds":                 "cannot read missing.creds: no such file",
		"coordinator --name c1 --creds c1.creds --secrets-key w1.creds": "coordinator.secrets_key: w1.creds: line 1 is not " +
			"the seed of a curve key",
		"coordinator --name c1 --creds c1.creds --secrets-key a":  "coordinator.secrets_key: read a: is a directory",
		"coordinator --name c1 --creds c1.creds --tls-ca tls.key": "tls.ca: tls.key contains no certificate",
		"coordinator --name c1 --creds c1.creds --nats tsl://n1":  `want nats, tls, ws or wss in place of "tsl"`,
	} {
		args := strings.Fields(line)
		if !strings.Contains(line, "--nats") {
			args = append(args, "--nats", "nats://127.0.0.1:1")
		}
		code, stdout, stderr := call(t.Context(), "", args...)
		if code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("boxfleet %s: %d, %s%s; want %q", line, code, stdout, stderr, want)
		}
		if strings.Contains(stderr, "SX") && !strings.Contains(stderr, "begins with SX") || strings.Contains(stderr, "AAAA") {
			t.Errorf("boxfleet %s shows a key: %s", line, stderr)
		}
	}
}

// TestTheCommandsForANewHostWorkAsPrinted runs the commands of the documentation in their order.
func TestTheCommandsForANewHostWorkAsPrinted(t *testing.T) {
	clean(t)
	page, err := os.ReadFile("../../docs/credentials.md")
	if err != nil {
		t.Fatal(err)
	}
	_, part, _ := strings.Cut(string(page), "### Make credentials for a new host\n")
	_, part, _ = strings.Cut(part, "```sh\n")
	commands, _, found := strings.Cut(part, "```")
	if !found {
		t.Fatal("the page has no commands for a new host")
	}
	t.Chdir(t.TempDir())
	must(t, "auth", "init", "authority")
	for line := range strings.Lines(commands) {
		words := strings.Fields(strings.ReplaceAll(line, "/srv/boxfleet-auth", "authority"))
		switch words[0] {
		case "boxfleet":
			must(t, words[1:]...)
		case "rm":
			if err := os.Remove(words[1]); err != nil {
				t.Fatal(err)
			}
		default:
			t.Fatalf("unknown command: %s", line)
		}
	}
	if err := checkHost("worker-w2.creds", "w2", "EUJWVNGE5TFI6JAATMATQMD76O"); err != nil {
		t.Error(err)
	}
}

// When a coordinator or worker starts, it compares its role, name and host with its credentials. Without this check,
// the server would refuse its messages one after another.
func TestARoleRefusesCredentialsOfAnother(t *testing.T) {
	clean(t)
	dir := filepath.Join(t.TempDir(), "authority")
	file := filepath.Join(t.TempDir(), "w.creds")
	must(t, "auth", "init", dir)
	must(t, "auth", "add", "worker", "w1", "--host", "HOSTA", "--dir", dir, "--file", file)
	field := func(err error) string {
		if err == nil {
			return ""
		}
		return protocol.AsError(err).Field
	}
	cfg := &jetstream.Config{Creds: file}
	for what, c := range map[string]struct {
		err  error
		want string
	}{
		"its own host":         {checkHost(file, "w1", "HOSTA"), ""},
		"without a file":       {checkHost("", "w1", "HOSTA"), ""},
		"another host":         {checkHost(file, "w1", "HOSTB"), "host"},
		"its own name":         {checkRole(cfg, "worker", "w1"), ""},
		"another name":         {checkRole(cfg, "worker", "w2"), "name"},
		"another role":         {checkRole(cfg, "coordinator", "w1"), "creds"},
		"another role, a user": {checkRole(cfg, "user", "w1"), "creds"},
	} {
		if got := field(c.err); got != c.want {
			t.Errorf("%s: got field %q of %v", what, got, c.err)
		}
	}
	if err := checkHost(file, "w1", "HOSTB"); !strings.Contains(err.Error(), "auth add worker w1 --host HOSTB") {
		t.Errorf("the error does not say what to do: %v", err)
	}
}
