package main

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// configured returns the configuration that a command reads when it has these arguments.
func configured(t *testing.T, command string, args ...string) (config, error) {
	t.Helper()
	p := newProgram(nil, io.Discard, io.Discard)
	root := p.root()
	cmd, rest, err := root.Find(append([]string{command}, args...))
	if err != nil {
		t.Fatal(err)
	}
	cmd.RunE, cmd.Args = func(*cobra.Command, []string) error { return nil }, nil
	root.SetArgs(append([]string{command}, rest...))
	err = root.ExecuteContext(t.Context())
	return *p.config, err
}

// clean gives the test empty user directories. It returns the path of the default configuration file, which does not
// exist yet.
func clean(t *testing.T) (file string) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	t.Setenv("XDG_DATA_HOME", filepath.Join(dir, "data"))
	if err := os.MkdirAll(filepath.Join(dir, "boxfleet"), 0o700); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "boxfleet", "config.yaml")
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestUnknownVariablesAreNamedWithASuggestion(t *testing.T) {
	var c config
	got := c.unknownEnv([]string{"BOXFLEET_WORKER_SLOTZ=3", "BOXFLEET_WORKER_SLOTS=3", "BOXFLEET_TEST_X=1", "SLOTS=3"})
	if want := []string{"BOXFLEET_WORKER_SLOTZ; did you mean BOXFLEET_WORKER_SLOTS?"}; !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

func TestAFlagOverridesTheEnvironmentTheFileAndTheDefault(t *testing.T) {
	file := clean(t)
	read := func(args ...string) int {
		t.Helper()
		c, err := configured(t, "worker", args...)
		if err != nil {
			t.Fatal(err)
		}
		return c.Worker.Slots
	}
	if got := read(); got != 100 {
		t.Errorf("default: want 100, got %d", got)
	}
	write(t, file, "worker:\n  slots: 3\n  mounts:\n    allow: [/a, /b]\n")
	if got := read(); got != 3 {
		t.Errorf("file: want 3, got %d", got)
	}
	t.Setenv("BOXFLEET_WORKER_SLOTS", "4")
	if got := read(); got != 4 {
		t.Errorf("environment: want 4, got %d", got)
	}
	if got := read("--slots", "5"); got != 5 {
		t.Errorf("flag: want 5, got %d", got)
	}
	c, err := configured(t, "worker")
	if err != nil || strings.Join(c.Worker.AllowMounts, " ") != "/a /b" {
		t.Errorf("a list in the file: %q, %v", c.Worker.AllowMounts, err)
	}
	t.Setenv("BOXFLEET_WORKER_MOUNTS_ALLOW", "/c,/d")
	if c, err = configured(t, "worker"); err != nil || strings.Join(c.Worker.AllowMounts, " ") != "/c /d" {
		t.Errorf("a list in the environment: %q, %v", c.Worker.AllowMounts, err)
	}
}

func TestP9_AnErrorInTheConfigurationNamesTheKey(t *testing.T) {
	for name, tc := range map[string]struct{ file, env, want string }{
		"unknown key":        {"natz: nats://x\n", "", "natz"},
		"unknown nested key": {"worker:\n  slotz: 3\n", "", "worker.slotz"},
		"unknown empty key":  {"nonsense: {}\n", "", "unknown key nonsense"},
		"unknown empty keys": {"nonsense: {a: {}}\n", "", "unknown key nonsense"},
		"unknown null key":   {"worker: {images: {nonsense: }}\n", "", "unknown key worker.images.nonsense"},
		"a value for a map":  {"worker: 3\n", "", "worker must be a map"},
		"an empty number":    {"", "BOXFLEET_WORKER_SLOTS=", "worker.slots"},
		"an empty duration":  {"", "BOXFLEET_DEADLINE=", "deadline"},
		"an empty choice":    {"", "BOXFLEET_OUTPUT=", "output"},
		"an empty switch":    {"", "BOXFLEET_WORKER_REAP_DRY_RUN=", "worker.reap_dry_run"},
		"an empty address":   {"", "BOXFLEET_UP_LISTEN=", "up.listen"},
		"an empty tenant":    {"tenant: \"\"\n", "", "tenant"},
		"not a number":       {"worker:\n  slots: many\n", "", "worker.slots"},
		"a map for a value":  {"worker:\n  slots:\n    x: 1\n", "", "worker.slots"},
		"not a duration":     {"", "BOXFLEET_COORDINATOR_CLEANUP_TTL=7", "coordinator.cleanup_ttl"},
		"not an output":      {"", "BOXFLEET_OUTPUT=xml", "output"},
		"no such profile":    {"worker:\n  service_profiles: [root]\n", "", "worker.service_profiles"},
		"no profile":         {"worker:\n  service_profiles: []\n", "", "worker.service_profiles"},
		"not yaml":           {"{", "", "config.yaml"},
		"two replicas":       {"", "BOXFLEET_COORDINATOR_REPLICAS=2", "coordinator.replicas: must be 1, 3 or 5"},
		"no replicas":        {"coordinator:\n  replicas: -1\n", "", "coordinator.replicas: must be 1, 3 or 5"},
		"no requests":        {"", "BOXFLEET_COORDINATOR_REQUESTS=0", "coordinator.requests: must be 1 to"},
		"requests below 0":   {"", "BOXFLEET_COORDINATOR_REQUESTS=-1", "coordinator.requests: must be 1 to"},
		"no room": {"", "BOXFLEET_COORDINATOR_TABLE_MAX_BYTES=0",
			"coordinator.table_max_bytes: must be more than 0"},
		"too many execs": {"", "BOXFLEET_COORDINATOR_MAX_ACTIVE_EXECS=9000",
			"coordinator.max_active_execs: must be 1 to 8192"},
	} {
		t.Run(name, func(t *testing.T) {
			file := clean(t)
			if tc.file != "" {
				write(t, file, tc.file)
			}
			if k, v, ok := strings.Cut(tc.env, "="); ok {
				t.Setenv(k, v)
			}
			_, err := configured(t, "worker")
			if err == nil || !strings.Contains(err.Error(), tc.want) || codeOf(err) != exitUsage {
				t.Errorf("want a usage error that names %s, got %v", tc.want, err)
			}
		})
	}
}

func TestAnEmptyVariableOverridesTheFile(t *testing.T) {
	write(t, clean(t), "token: secret\nworker: {tools: [git], deny_networks: [10.0.0.0/8]}\n")
	t.Setenv("BOXFLEET_TOKEN", "")
	t.Setenv("BOXFLEET_WORKER_TOOLS", "")
	c, err := configured(t, "worker")
	if err != nil || c.Token != "" || len(c.Worker.Tools) != 0 || len(c.Worker.DenyNetworks) != 1 {
		t.Errorf("got token %q, tools %q, denied %q, %v", c.Token, c.Worker.Tools, c.Worker.DenyNetworks, err)
	}
}

func TestAKeyWithoutAValueIsIgnored(t *testing.T) {
	write(t, clean(t), "Worker:\n  images:\n  slots:\ncoordinator:\n")
	if c, err := configured(t, "worker"); err != nil || c.Worker.Slots != 100 {
		t.Errorf("got %d slots, %v", c.Worker.Slots, err)
	}
}

func TestEveryKeyIsInTheReference(t *testing.T) {
	data, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	for _, s := range new(config).settings() {
		want[reference(&s)] = true
	}
	for _, line := range strings.Split(string(data), "\n") {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		if !want[line] {
			t.Errorf("docs/configuration.md has a row that matches no key:\n%s", line)
		}
		delete(want, line)
	}
	for line := range want {
		t.Errorf("docs/configuration.md lacks the row:\n%s", line)
	}
}

// reference returns the row of a setting in docs/configuration.md.
func reference(s *setting) string {
	def, flag := s.def, ""
	if def != "" {
		def = "`" + def + "`"
	}
	if len(s.commands) > 0 {
		if flag = "`--" + s.flag() + "`"; s.commands[0] != "" {
			flag += " of " + strings.ReplaceAll(strings.Join(s.commands, ", "), "set", "storage set")
		}
	}
	return strings.Join([]string{"| `" + s.key + "`", "`" + s.env() + "`", flag, def, s.meaning + " |"}, " | ")
}
