package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
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
