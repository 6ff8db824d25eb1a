package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"
	"go.yaml.in/yaml/v4"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/seldom"
	"github.com/boxfleet/boxfleet/worker"
)

// config is everything that can be configured.
type config struct {
	file string

	NATS, Token, TokenFile, Creds, Tenant string
	Output, LogLevel                      string
	Deadline                              time.Duration
	DataDir                               string
	Health                                string
	Listen                                string
	ListenGiven                           bool // it is not the default, though it may say the same
	ListenInsecurely                      bool
	Ballast                               protocol.Bytes

	Coordinator coordinatorConfig
	Worker      workerConfig
}

type coordinatorConfig struct {
	Name        string
	CleanupTTL  time.Duration
	ForgetAfter time.Duration
	Defaults    string
	Replicas    int
	LogMaxAge   time.Duration
	LogMaxBytes protocol.Bytes
	BlobMaxAge  time.Duration
	Requests    int

	HistoryKeep, HistoryBatches int
	HistoryBytes                protocol.Bytes
	HistoryMaxAge               time.Duration
	SegmentMaxBytes             protocol.Bytes

	MaxActiveExecs                                            int
	EventMaxBytes, BlobMaxBytes, ImageMaxBytes, TableMaxBytes protocol.Bytes
	OutputSandboxBytes, OutputTenantBytes                     protocol.Bytes
}

type workerConfig struct {
	Name, Engine, StateDir, Supervisor, NetworkPool, ToolsHome string
	Defaults                                                   string
	ReapDryRun                                                 bool
	CrashWindow, CrashGuard                                    time.Duration
	OutputBurst, OutputRate                                    protocol.Bytes
	Watermarks                                                 worker.Watermarks
	Images                                                     worker.Images
	Slots                                                      int
	CPU                                                        float64
	Memory, DiskLow, DiskReserve                               protocol.Bytes
	Firewall                                                   string
	DenyNetworks, AllowNetworks, DNS, ServiceProfiles          []string
	Ports                                                      string
	Connections, PIDs                                          int
	Labels, AllowMounts, Tools, Profiles, Runtimes             []string
}

const (
	outputText = "text"
	outputJSON = "json"

	firewallRequired = "required"

	defaultListen = "127.0.0.1:4222"
)

var logLevels = []string{"debug", "info", "warn", "error"}

// setting is one key of the configuration. The table of them is the whole of what can be
// configured; docs/configuration.md is checked against it.
type setting struct {
	key      string
	def      string
	meaning  string
	commands []string // that have a flag for it; "" means all
	short    string
	set      func(value string) error
}

// flag is the name of the setting's flag.
func (s *setting) flag() string {
	_, name, found := strings.Cut(s.key, ".")
	if !found {
		name = s.key
	}
	return strings.NewReplacer("_", "-", ".", "-").Replace(name)
}

// env is the name of the setting's environment variable.
func (s *setting) env() string {
	return "BOXFLEET_" + strings.ToUpper(strings.ReplaceAll(s.key, ".", "_"))
}

func (c *config) settings() []setting {
	k, w := &c.Coordinator, &c.Worker
	all, up := []string{""}, []string{"up"}
	storage := []string{"set"} // of boxfleet storage
	roleK, roleW, upAndW := []string{"coordinator"}, []string{"worker"}, []string{"up", "worker"}
	return []setting{
		{"nats", "", "URL of NATS, several comma separated; default: the `boxfleet up` of this machine, else nats://127.0.0.1:4222", all, "", text(&c.NATS)},
		{"token", "", "token for NATS; better given in the file or the environment than as a flag", all, "", text(&c.Token)},
		{"token_file", "", "file with the token for NATS, where token says none; read again at each try to connect", all, "",
			text(&c.TokenFile)},
		{"creds", "", "NATS credentials file; read again at each try to connect", all, "", text(&c.Creds)},
		{"tenant", protocol.DefaultTenant, "tenant to work for", all, "", text(&c.Tenant)},
		{"output", outputText, "text or json", all, "o", oneOf(&c.Output, outputText, outputJSON)},
		{"deadline", "0s", "how long a client command waits before it gives up; the request goes on, but run deletes its sandbox; 0s: no limit", all, "", parsed(&c.Deadline, notNegative)},
		{"log_level", "warn", "debug, info, warn or error; logs go to stderr", all, "", oneOf(&c.LogLevel, logLevels...)},
		{"data_dir", "", "where up keeps its data, and clients find its address; default $XDG_DATA_HOME/boxfleet, else ~/.local/share/boxfleet", all, "", text(&c.DataDir)},
		{"health", "", "HOST:PORT where a server command answers /healthz: 200 when it works, else 503, with the reason in one line; default: nowhere", []string{"up", "coordinator", "worker"}, "", text(&c.Health)},
		{"up.ballast", "64MiB", "room that up keeps on the disk of its data, a twentieth of the disk at most, so that it can end work when the disk is full", up, "", parsed(&c.Ballast, protocol.ParseBytes)},
		{"up.listen", defaultListen, "where up's NATS listens; without a port on a free one; where nobody says a port and 4222 is taken, on a free one too", up, "", text(&c.Listen)},
		{"up.listen_insecurely", "false", "true: up may listen beyond loopback, where NATS has no TLS and the token opens every host to anyone who reads it", up, "", parsed(&c.ListenInsecurely, strconv.ParseBool)},
		{"coordinator.name", "", "an id, its own for each coordinator; default: the machine's name and a random part", roleK,
			"", text(&k.Name)},
		{"coordinator.cleanup_ttl", "360h0m0s",
			"stopped and failed sandboxes are deleted, and the histories of deleted ones purged, after so long", roleK, "",
			parsed(&k.CleanupTTL, positive)},
		{"coordinator.host_forget_after", "0s",
			"how long a host may be lost before it is forgotten, as by boxfleet host forget; 0s: never", roleK, "",
			parsed(&k.ForgetAfter, notNegative)},
		{"coordinator.defaults", "", "YAML file: by tenant, or * for every tenant, the defaults of its sandboxes; see docs/spec.md", []string{"up", "coordinator"}, "", text(&k.Defaults)},
		{"coordinator.replicas", "", "copies of each stream: 3 for the first coordinator of a cluster; default: as it is now, at first 1; boxfleet storage grow changes it later", roleK, "", optional(parsed(&k.Replicas, copies))},
		{"coordinator.event_max_bytes", "", "the event log may take so much; new work is refused at seven eighths, 1GiB before at most; default: as it is now, at first 8GiB", storage, "", optional(parsed(&k.EventMaxBytes, someBytes))},
		{"coordinator.log_max_age", "", "how long the output of execs is kept; default: as the stream is, a new one 360h",
			storage, "", optional(parsed(&k.LogMaxAge, positive))},
		{"coordinator.log_max_bytes", "", "how much output is kept; default: as the stream is, a new one 8GiB", storage, "",
			optional(parsed(&k.LogMaxBytes, someBytes))},
		{"coordinator.output_sandbox_bytes", "0B",
			"how much output is kept of one sandbox, which loses its own oldest beyond it; 0: an eighth of log_max_bytes", roleK,
			"", parsed(&k.OutputSandboxBytes, protocol.ParseBytes)},
		{"coordinator.output_tenant_bytes", "0B",
			"how much output is kept of one tenant, whose sandboxes with most lose their oldest beyond it; 0: what log_max_bytes has room for", roleK, "", parsed(&k.OutputTenantBytes, protocol.ParseBytes)},
		{"coordinator.blob_max_age", "", "how long uploaded trees are kept, and longer while a sandbox waits for them; default: as the store is, a new one 24h", storage, "", optional(parsed(&k.BlobMaxAge, positive))},
		{"coordinator.blob_max_bytes", "", "uploaded trees may take so much; one more is refused; default: as the store is, a new one 4GiB", storage, "", optional(parsed(&k.BlobMaxBytes, someBytes))},
		{"coordinator.image_max_bytes", "", "files of imported images may take so much; default: as it is now, at first 16GiB", storage, "", optional(parsed(&k.ImageMaxBytes, someBytes))},
		{"coordinator.segment_max_bytes", "", "older parts of histories, compressed, may take so much; more stays in the event log; default: as it is now, at first 8GiB", storage, "", optional(parsed(&k.SegmentMaxBytes, someBytes))},
		{"coordinator.table_max_bytes", "", "each table of ids, snapshots and images may take so much; default: as it is now, at first 1GiB", storage, "", optional(parsed(&k.TableMaxBytes, someBytes))},
		{"coordinator.requests", "", "requests that may wait; one more is refused with resource_exhausted; default: as it is now, at first 100000", storage, "", optional(parsed(&k.Requests, between(1, math.MaxInt32)))},
		{"coordinator.max_active_execs", "1000",
			"execs of one sandbox that have not ended, 1 to 8192; one more is refused with resource_exhausted", nil, "",
			parsed(&k.MaxActiveExecs, between(1, protocol.MaxActiveExecs))},
		{"coordinator.history_keep", "1000", "newest messages of a sandbox's history that stay in the event log, from 1", nil,
			"", parsed(&k.HistoryKeep, between(1, math.MaxInt32))},
		{"coordinator.history_batches", "5000",
			"older messages of a living sandbox are moved out of the event log, compressed, when they are more than so many, from 1", nil, "", parsed(&k.HistoryBatches, between(1, math.MaxInt32))},
		{"coordinator.history_bytes", "4MiB", "they are moved, too, when they take more than this", nil, "",
			parsed(&k.HistoryBytes, someBytes)},
		{"coordinator.history_max_age", "0s", "how long older parts of a history are kept after they left the event log; 0s: as long as the sandbox's history", nil, "", parsed(&k.HistoryMaxAge, notNegative)},
		{"worker.name", "", "an id, unique in the fleet and always the same for a host; default: the machine's name", roleW,
			"", text(&w.Name)},
		{"worker.engine", "", "address of the Docker Engine; default $DOCKER_HOST, else the local socket", upAndW, "",
			text(&w.Engine)},
		{"worker.state_dir", "", "directories of sandboxes, absolute; default: worker, below data_dir", roleW, "",
			text(&w.StateDir)},
		{"worker.supervisor", "", "the boxfleet-supervisor binary; default: beside the boxfleet binary", upAndW, "",
			text(&w.Supervisor)},
		{"worker.slots", "100", "sandboxes that the host takes at most", upAndW, "", parsed(&w.Slots, strconv.Atoi)},
		{"worker.cpu", "0", "cores to offer; 0: the host's", upAndW, "", parsed(&w.CPU, parseFloat)},
		{"worker.memory", "0B", "memory to offer, such as 4GiB; 0: nine tenths of the host's", upAndW, "",
			parsed(&w.Memory, protocol.ParseBytes)},
		{"worker.labels", "", "labels of the host, K=V", roleW, "", list(&w.Labels)},
		{"worker.defaults", "", "YAML file: what lies below the specs of the sandboxes of this worker; see docs/spec.md",
			roleW, "", text(&w.Defaults)},
		{"worker.images.pull_stall", "2m0s", "the pull of an image ends when it makes no progress for so long", roleW, "",
			parsed(&w.Images.PullStall, positive)},
		{"worker.images.pre_pull", "", "images that are pulled in the background, before a sandbox wants them, and kept",
			upAndW, "", list(&w.Images.PrePull)},
		{"worker.images.high_water", "85", "percent of the engine's file system, bytes or inodes, above which unused images go that the worker pulled; 100: never", roleW, "", parsed(&w.Images.HighWater, strconv.Atoi)},
		{"worker.images.low_water", "75", "stop removing images below this percentage", roleW, "",
			parsed(&w.Images.LowWater, strconv.Atoi)},
		{"worker.images.max_bytes", "0B", "what the images that the worker pulled may take, in use or not, before unused ones go, such as 50GiB; 0: no bound", roleW, "", parsed(&w.Images.MaxBytes, protocol.ParseBytes)},
		{"worker.images.check_cached", "false",
			"true: ask the registry before each use of an image that came from one, so that what is on the host is no permission to use it", roleW, "", parsed(&w.Images.CheckCached, strconv.ParseBool)},
		{"worker.images.registries", "docker.io,public",
			"registries that images are pulled from: docker.io, host or host:port as in references, and public: those at public addresses, which the worker itself pulls from; a registry on a private network must be named", upAndW, "", list(&w.Images.Registries)},
		{"worker.images.docker_config", "", "directory of the Docker configuration with credentials for registries; default $DOCKER_CONFIG, else ~/.docker", upAndW, "", text(&w.Images.DockerConfig)},
		{"worker.mounts.allow", "", "directories of the host that sandboxes may mount: PATH or PATH:ro read-only, PATH:rw also writable; none by default", upAndW, "", list(&w.AllowMounts)},
		{"worker.tools", "", "builtin tools that sandboxes may have, with the files of the worker's user, credentials among them: claude, codex, opencode, git, uv, npm, apt, or all; none by default", upAndW, "", list(&w.Tools)},
		{"worker.tools_home", "", "home directory with the files of those tools; default: the worker's user's", upAndW, "",
			text(&w.ToolsHome)},
		{"worker.profiles", "hardened", "capability profiles that sandboxes may choose: hardened, standard", upAndW, "",
			list(&w.Profiles)},
		{"worker.service_profiles", "hardened,standard",
			"capability profiles that services may choose; where standard is not among them, a service that names none is refused", upAndW, "", someOf(&w.ServiceProfiles, protocol.ProfileHardened, protocol.ProfileStandard)},
		{"worker.runtimes", "", "OCI runtimes of the engine that sandboxes may choose; none by default: they get the engine's", upAndW, "", list(&w.Runtimes)},
		{"worker.max_disk", "95", "percent of the engine's and the worker's disk that may be used; a fuller host takes no new sandboxes", roleW, "", parsed(&w.Watermarks.Disk, strconv.Atoi)},
		{"worker.max_inodes", "95", "percent of the inodes of those disks that may be used", roleW, "",
			parsed(&w.Watermarks.Inodes, strconv.Atoi)},
		{"worker.max_memory", "97", "percent of the host's memory that may be in use, by the kernel's estimate", roleW, "",
			parsed(&w.Watermarks.Memory, strconv.Atoi)},
		{"worker.max_pids", "90", "percent of the host's processes and threads that may be in use", roleW, "",
			parsed(&w.Watermarks.PIDs, strconv.Atoi)},
		{"worker.disk_low", "0B", "where a disk of the engine or the worker has less free than this, half the disk at most, the sandbox that fills it is stopped, with reason disk_full; 0: a tenth of the disk, 2GiB at most", upAndW, "", parsed(&w.DiskLow, protocol.ParseBytes)},
		{"worker.disk_reserve", "0B", "room that the worker keeps on its own disk, a tenth of the disk at most, for records and deletes where that is full; 0: a fiftieth of the disk, 32MiB at most", upAndW, "", parsed(&w.DiskReserve, protocol.ParseBytes)},
		{"worker.output_burst", "256MiB", "output that one sandbox may have published as fast as it prints; a process never waits, its output is on the host first", roleW, "", parsed(&w.OutputBurst, someBytes)},
		{"worker.output_rate", "8MiB", "output that one sandbox may publish in a second after its burst, which comes back at the same rate", roleW, "", parsed(&w.OutputRate, someBytes)},
		{"worker.crash_window", "5m0s", "a primary command or service that keeps ending, and never ran for crash_guard within this time, is not started again: its sandbox, or the service, fails", roleW, "", parsed(&w.CrashWindow, positive)},
		{"worker.crash_guard", "30s", "a command that has run for this time is not in a crash loop", roleW, "",
			parsed(&w.CrashGuard, positive)},
		{"worker.reap_dry_run", "false", "true: only report what is left on the host of sandboxes that are over, and bridges without a network; remove nothing", roleW, "", parsed(&w.ReapDryRun, strconv.ParseBool)},
		{"worker.network_pool", "10.201.0.0/16", "IPv4 prefix that the networks of sandboxes come from", upAndW, "",
			text(&w.NetworkPool)},
		{"worker.firewall", "required", "required: take no sandbox unless nftables keeps its network apart; off: take them as the host is, and only with network internet", upAndW, "", oneOf(&w.Firewall, firewallRequired, protocol.FirewallOff)},
		{"worker.deny_networks", "", "IPv4 ranges that no sandbox reaches, whatever its spec allows", upAndW, "",
			list(&w.DenyNetworks)},
		{"worker.allow_networks", "", "private IPv4 ranges that specs may allow with network: allow; none by default", upAndW,
			"", list(&w.AllowNetworks)},
		{"worker.connections", strconv.Itoa(worker.DefaultConnections),
			"connections that the containers of one sandbox may have beyond their network at a time, from 64", upAndW, "",
			parsed(&w.Connections, between(64, math.MaxInt32))},
		{"worker.pids", strconv.Itoa(worker.DefaultMostPIDs), "processes and threads that a spec may give one container",
			upAndW, "", parsed(&w.PIDs, between(protocol.DefaultPIDs, protocol.MaxPIDs))},
		{"worker.ports", worker.DefaultPorts, "ports of the host's loopback that sandboxes may publish, FIRST-LAST", upAndW,
			"", text(&w.Ports)},
		{"worker.dns", "", "name servers that sandboxes ask, IPv4; default: those of the host, but for metadata addresses",
			upAndW, "", list(&w.DNS)},
	}
}

func text(into *string) func(string) error {
	return func(v string) error { *into = v; return nil }
}

func oneOf(into *string, values ...string) func(string) error {
	return func(v string) error {
		if !slices.Contains(values, v) {
			return fmt.Errorf("must be %s, got %.40q", strings.Join(values, ", "), v)
		}
		*into = v
		return nil
	}
}

func parsed[T any](into *T, parse func(string) (T, error)) func(string) error {
	return func(v string) (err error) { *into, err = parse(v); return err }
}

// optional leaves a value as it is where none is given.
func optional(set func(string) error) func(string) error {
	return func(v string) error {
		if v == "" {
			return nil
		}
		return set(v)
	}
}

func list(into *[]string) func(string) error {
	return func(v string) error {
		*into = nil
		for _, item := range strings.Split(v, ",") {
			if item = strings.TrimSpace(item); item != "" {
				*into = append(*into, item)
			}
		}
		return nil
	}
}

// someOf is a list of these values, with one at least.
func someOf(into *[]string, values ...string) func(string) error {
	return func(v string) error {
		if err := list(into)(v); err != nil {
			return err
		}
		for _, item := range *into {
			if !slices.Contains(values, item) {
				return fmt.Errorf("must be of %s, got %.40q", strings.Join(values, ", "), item)
			}
		}
		if len(*into) == 0 {
			return fmt.Errorf("must be one or more of %s", strings.Join(values, ", "))
		}
		return nil
	}
}

func notNegative(v string) (time.Duration, error) {
	d, err := time.ParseDuration(v)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("must be a duration such as 90s or 1h30m, got %.40q", v)
	}
	return d, nil
}

func positive(v string) (time.Duration, error) {
	d, err := notNegative(v)
	if err == nil && d == 0 {
		err = errors.New("must be more than 0")
	}
	return d, err
}

// between takes the whole numbers from least to most.
func between(least, most int) func(string) (int, error) {
	return func(v string) (int, error) {
		n, err := strconv.Atoi(v)
		if err != nil || n < least || n > most {
			return 0, fmt.Errorf("must be %d to %d, got %.40q", least, most, v)
		}
		return n, nil
	}
}

// copies is a number of replicas: a majority of an even number is no safer than that of one less.
func copies(v string) (int, error) {
	n, err := strconv.Atoi(v)
	if err != nil || n != 1 && n != 3 && n != 5 {
		return 0, fmt.Errorf("must be 1, 3 or 5, got %.40q", v)
	}
	return n, nil
}

// someBytes is a limit: 0 would say that nothing is kept, or that there is none.
func someBytes(v string) (protocol.Bytes, error) {
	n, err := protocol.ParseBytes(v)
	if err == nil && n == 0 {
		err = errors.New("must be more than 0")
	}
	return n, err
}

func parseFloat(v string) (float64, error) { return strconv.ParseFloat(v, 64) }

// addFlags adds the flags that a command has; "" means those of every command.
func (c *config) addFlags(flags *pflag.FlagSet, command string) {
	for _, s := range c.settings() {
		if !slices.Contains(s.commands, command) {
			continue
		}
		meaning := strings.ReplaceAll(s.meaning, "`", "")
		if s.def != "" {
			meaning += " (default " + s.def + ")"
		}
		flags.StringP(s.flag(), s.short, "", meaning)
	}
}

// configure reads the configuration of a command.
func (p *program) configure(cmd *cobra.Command) error {
	if err := p.config.read(cmd); err != nil {
		return err
	}
	p.log()
	if unknown := p.config.unknownEnv(os.Environ()); len(unknown) > 0 && topOf(cmd).GroupID == groupServer {
		slog.Warn("the environment has variables that are no settings", "unknown", unknown)
	}
	return nil
}

// read reads the configuration of a command: defaults, then the file, the environment and the flags, each
// over the ones before. The file is the one that c names, or the usual one.
func (c *config) read(cmd *cobra.Command) error {
	v := viper.New()
	v.AllowEmptyEnv(true)
	settings := c.settings()
	for _, s := range settings {
		v.SetDefault(s.key, s.def)
		if err := v.BindEnv(s.key, s.env()); err != nil {
			return err
		}
		if f := cmd.Flags().Lookup(s.flag()); f != nil && hasFlag(&s, cmd) {
			if err := v.BindPFlag(s.key, f); err != nil {
				return err
			}
		}
	}
	if err := readFile(v, settings, c.file); err != nil {
		return err
	}
	for _, s := range settings {
		value, err := asText(v.Get(s.key))
		switch {
		case err != nil:
		case value == "" && s.def != "":
			err = errors.New("must not be empty")
		default:
			err = s.set(value)
		}
		if err != nil {
			return usage("configuration %s: %v", s.key, err)
		}
	}
	if c.DataDir == "" {
		c.DataDir = dataDir()
	}
	_, inEnv := os.LookupEnv("BOXFLEET_UP_LISTEN")
	flag := cmd.Flags().Lookup("listen")
	c.ListenGiven = inEnv || v.InConfig("up.listen") || flag != nil && flag.Changed
	return nil
}

// unknownEnv are the variables of an environment that look like settings and are none, with what was probably
// meant. Those of tests are left alone.
func (c *config) unknownEnv(environ []string) []string {
	var names, unknown []string
	for _, s := range c.settings() {
		names = append(names, s.env())
	}
	for _, pair := range environ {
		name, _, _ := strings.Cut(pair, "=")
		if strings.HasPrefix(name, "BOXFLEET_") && !strings.HasPrefix(name, "BOXFLEET_TEST_") &&
			!slices.Contains(names, name) {
			unknown = append(unknown, name+didYouMean("", name, names))
		}
	}
	slices.Sort(unknown)
	return unknown
}

// hasFlag says whether the flag of that name is the setting's.
func hasFlag(s *setting, cmd *cobra.Command) bool {
	if s.key == "deadline" && cmd.Annotations[ownDeadline] != "" {
		return false
	}
	return slices.Contains(s.commands, "") || slices.Contains(s.commands, cmd.Name())
}

// readFile reads the configuration file, and refuses keys that nobody knows. A file that was not
// named need not be there.
func readFile(v *viper.Viper, settings []setting, file string) error {
	named := file != ""
	if !named {
		file = usualFile()
	}
	if file == "" {
		return nil
	}
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) && !named {
		return nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return usage("configuration file: %v", err)
	}
	inFile := map[string]any{}
	if err = yaml.Unmarshal(data, &inFile); err == nil {
		err = known(settings, "", inFile)
	}
	if err != nil {
		return usage("configuration file %s: %v", file, err)
	}
	return v.MergeConfigMap(inFile)
}

// known says whether everything of a section of the configuration file, which has a prefix or is the
// whole, is a setting or a section with settings.
func known(settings []setting, prefix string, section map[string]any) error {
	for _, name := range slices.Sorted(maps.Keys(section)) {
		key, value := prefix+strings.ToLower(name), section[name]
		if slices.ContainsFunc(settings, func(s setting) bool { return s.key == key }) {
			continue
		}
		if !slices.ContainsFunc(settings, func(s setting) bool { return strings.HasPrefix(s.key, key+".") }) {
			return fmt.Errorf("unknown key %s", key)
		}
		below, isMap := value.(map[string]any)
		if !isMap && value != nil {
			return fmt.Errorf("%s must be a map of keys", key)
		}
		if err := known(settings, key+".", below); err != nil {
			return err
		}
	}
	return nil
}

// asText is a value of the configuration as text.
func asText(value any) (string, error) {
	switch value := value.(type) {
	case nil:
		return "", nil
	case []any:
		items := make([]string, len(value))
		for i, item := range value {
			items[i] = fmt.Sprint(item)
		}
		return strings.Join(items, ","), nil
	case map[string]any:
		return "", errors.New("must be a value, not a map")
	}
	return fmt.Sprint(value), nil
}

// usualFile is the configuration file where none is named; empty where this user has no place for one.
func usualFile() string { return userDir("XDG_CONFIG_HOME", ".config", "config.yaml") }

// dataDir is where up keeps its data where nobody says so; empty where this user has no place for it.
func dataDir() string { return userDir("XDG_DATA_HOME", ".local/share", "") }

// userDir is something of Boxfleet's below a directory that a variable names, or else below the home
// directory; empty where this user has neither. The root of the file system is nobody's home.
func userDir(variable, below, name string) string {
	if dir := os.Getenv(variable); dir != "" {
		return filepath.Join(dir, "boxfleet", name)
	}
	if dir := home(); dir != "" {
		return filepath.Join(dir, below, "boxfleet", name)
	}
	return ""
}

// home is the home directory of this user; empty where HOME is not set.
func home() string {
	dir, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return dir
}

// log makes the logger of the level that was asked for the process's.
func (p *program) log() {
	var level slog.Level
	_ = level.UnmarshalText([]byte(p.config.LogLevel)) // checked by oneOf
	slog.SetDefault(slog.New(seldom.New(slog.NewTextHandler(p.stderr,
		&slog.HandlerOptions{Level: level, ReplaceAttr: p.redactedAttr()}))))
}
