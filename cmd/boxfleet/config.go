package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"
	"go.yaml.in/yaml/v4"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker"
)

// config holds the whole configuration.
type config struct {
	file string

	NATS, Tenant, NATSUser        string
	Creds, NKey, Token, TokenFile string
	Login, Password, PasswordFile string
	TLS                           jetstream.TLS
	Output, LogLevel              string
	Deadline                      time.Duration
	DataDir                       string
	HealthListen                  string
	Listen                        string
	ListenGiven, TenantGiven      bool // listen and tenant were set explicitly, perhaps to the default value
	ListenInsecurely              bool
	Insecure                      bool
	Ballast                       protocol.Bytes

	Coordinator coordinatorConfig
	Worker      workerConfig
}

type coordinatorConfig struct {
	Name        string
	CleanupTTL  time.Duration
	ForgetAfter time.Duration
	Defaults    string
	Quotas      string
	SecretsKey  string
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
	UploadMaxBytes                                            protocol.Bytes
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

// addFlags adds the flags of the settings that belong to a command. If command is "", it adds the flags that all
// commands have.
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
		if s.key == insecureKey { // the flag needs no value
			flags.Lookup(s.flag()).NoOptDefVal = "true"
		}
	}
}

// read reads the configuration of a command: the defaults, the file, the environment and the flags. Each source
// overrides the sources before it. The file is c.file, or the default file if c.file is empty.
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
	for i, s := range settings {
		given := isGiven(v, cmd, &settings[i])
		switch s.key {
		case "up.listen":
			c.ListenGiven = given
		case "tenant":
			c.TenantGiven = given
		}
	}
	return nil
}

// isGiven reports whether a setting was set explicitly, perhaps to its default.
func isGiven(v *viper.Viper, cmd *cobra.Command, s *setting) bool {
	_, inEnv := os.LookupEnv(s.env())
	flag := cmd.Flags().Lookup(s.flag())
	return inEnv || v.InConfig(s.key) || flag != nil && flag.Changed && hasFlag(s, cmd)
}

// unknownEnv returns the BOXFLEET_ variables of an environment that are not settings, each with a suggestion if a
// setting has a similar name. It ignores the variables that tests use.
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

// hasFlag reports whether a setting has a flag in a command. A command may have another flag with the same name.
func hasFlag(s *setting, cmd *cobra.Command) bool {
	if s.key == "deadline" && cmd.Annotations[ownDeadline] != "" {
		return false
	}
	return slices.Contains(s.commands, "") || slices.Contains(s.commands, cmd.Name())
}

// readFile reads the configuration file and rejects unknown keys. Only an explicitly named file must exist.
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

// known returns an error if a section of the configuration file has an unknown key. prefix is the key of the section
// and a dot, or empty for the whole file.
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

// asText converts a value of the configuration file to text.
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

// usualFile returns the default configuration file, or "" if this user has no home directory.
func usualFile() string { return userDir("XDG_CONFIG_HOME", ".config", "config.yaml") }

// dataDir returns the default data directory of `up`, or "" if this user has no home directory.
func dataDir() string { return userDir("XDG_DATA_HOME", ".local/share", "") }

// userDir returns the path DIR/boxfleet/name. DIR is the value of the environment variable or, if the variable is not
// set, the directory HOME/below. Without a home directory, userDir returns "", so that nothing is written to the root
// directory.
func userDir(variable, below, name string) string {
	if dir := os.Getenv(variable); dir != "" {
		return filepath.Join(dir, "boxfleet", name)
	}
	if dir := home(); dir != "" {
		return filepath.Join(dir, below, "boxfleet", name)
	}
	return ""
}

// home returns the home directory of this user, or "" if HOME is not set.
func home() string {
	dir, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return dir
}
