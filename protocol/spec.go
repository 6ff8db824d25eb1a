package protocol

import (
	"fmt"
	"math"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Limits of a spec. A spec outside these limits is rejected with invalid_argument.
const (
	MaxSpecBytes    = 256 << 10 // bytes of an encoded request
	MaxArgs         = 4096
	MaxArgsBytes    = 128 << 10
	MaxEnv          = 1024
	MaxEnvBytes     = 128 << 10
	MaxLabels       = 64
	MaxLabelKey     = 128
	MaxLabelValue   = 256
	MaxStdin        = 128 << 10
	MaxMounts       = 64
	MaxCopies       = 64
	MinMemory       = Bytes(16 << 20)
	MaxPIDs         = 1 << 20
	MaxOutputLimit  = Bytes(4 << 30)
	MaxActiveExecs  = 8192     // unfinished execs of a sandbox; its supervisor keeps as many ended execs
	MaxInlineOutput = 16 << 10 // stdout and stderr together, carried in the exec's last event
)

// Defaults that Resolve fills in, and MaxGrace.
const (
	DefaultCPU           = 1.0
	DefaultMemory        = Bytes(512 << 20)
	DefaultPIDs          = 2048
	DefaultCreateTimeout = Duration(5 * time.Minute)
	DefaultQueueTimeout  = Duration(24 * time.Hour)
	DefaultGrace         = Duration(5 * time.Second)
	DefaultStartTimeout  = Duration(2 * time.Minute)
	DefaultOutputLimit   = Bytes(256 << 20)
	DefaultActiveExecs   = 1000
	MaxGrace             = Duration(10 * time.Minute)
)

// What happens to a ready sandbox when its host is lost.
const (
	OnHostLossWait = "wait" // keep the sandbox, shown as unreachable, until the host comes back
	OnHostLossFail = "fail" // fail the sandbox with reason host_lost when the host's lock lease expires
	// Recreate the sandbox on another host from its spec, with the same id and the next generation, when the host's
	// lock lease expires.
	OnHostLossReplace = "replace"
)

// SandboxSpec describes a sandbox. Reads return it with every default filled in.
type SandboxSpec struct {
	Image string `json:"image"` // image reference, required
	// primary command, run by the supervisor as User in Cwd; empty: the sandbox only waits for execs
	Command []string          `json:"command,omitempty"`
	Env     map[string]string `json:"env,omitempty"`    // added to the image's environment
	Labels  map[string]string `json:"labels,omitempty"` // for selectors; they mean nothing to Boxfleet
	// environment variables whose values are sealed, by name; reads show *** instead
	SensitiveEnv map[string]Sealed `json:"sensitive_env,omitempty"`
	Secrets      []SecretUse       `json:"secrets,omitempty"` // secrets of the tenant, as files or variables
	// name, uid, or either with ":group"; default: the image's user
	User   string  `json:"user,omitempty"`
	Cwd    string  `json:"cwd,omitempty"`    // absolute; default: the image's cwd
	CPU    float64 `json:"cpu,omitempty"`    // cores, 0.01 or more; default 1
	Memory Bytes   `json:"memory,omitempty"` // bytes, 16 MiB or more; default 512 MiB
	PIDs   int64   `json:"pids,omitempty"`   // processes and threads; default 2048
	// maximum size of the container's writable layer in bytes; 0: no limit
	Disk     Bytes   `json:"disk,omitempty"`
	ShmSize  Bytes   `json:"shm_size,omitempty"`  // size of /dev/shm; default: the Engine's, 64 MiB
	GPUs     string  `json:"gpus,omitempty"`      // "all" or a number
	Hostname string  `json:"hostname,omitempty"`  // default: the sandbox's id
	ReadOnly bool    `json:"read_only,omitempty"` // make the root file system read-only
	Tmpfs    []Tmpfs `json:"tmpfs,omitempty"`     // in-memory file systems
	Profile  string  `json:"profile,omitempty"`   // hardened (default) or standard
	Runtime  string  `json:"runtime,omitempty"`   // OCI runtime; default: the Engine's default
	// when to pull images: missing (default), always or never
	Pull    string   `json:"pull,omitempty"`
	Network *Network `json:"network,omitempty"` // what it may connect to; default: public addresses
	Ports   []Port   `json:"ports,omitempty"`   // published on the host's loopback
	Mounts  []Mount  `json:"mounts,omitempty"`  // files and directories of the host
	Copies  []Copy   `json:"copies,omitempty"`  // trees uploaded by the caller
	// names of built-in tools; the worker's host provides their files
	Tools         []string `json:"tools,omitempty"`
	TTL           Duration `json:"ttl,omitempty"`            // time from create to delete; 0: never
	IdleTTL       Duration `json:"idle_ttl,omitempty"`       // stop after this time without exec and stream; 0: never
	QueueTimeout  Duration `json:"queue_timeout,omitempty"`  // fail if no host is found in this time; default 24h
	CreateTimeout Duration `json:"create_timeout,omitempty"` // from assignment to ready; default 5m
	// time from TERM to KILL for execs and the primary command when the sandbox stops; default 5s
	Grace      Duration `json:"grace,omitempty"`
	OnHostLoss string   `json:"on_host_loss,omitempty"` // wait (default), fail or replace
	OnDelete   *Hook    `json:"on_delete,omitempty"`    // runs before a ready sandbox is deleted
	// host labels that must all match: KEY=VALUE, KEY!=VALUE or "KEY in (VALUE, VALUE)"
	Placement []string `json:"placement,omitempty"`

	RequiredServices Services `json:"required_services,omitempty"` // by name; the sandbox waits until all are ready
	OptionalServices Services `json:"optional_services,omitempty"` // by name; the sandbox does not wait for them
}

// Mount binds a file or directory of the host into the sandbox, without the file systems mounted below it. Source must
// be below an entry of the worker's allow-list, and that entry must be rw if Writable is set.
type Mount struct {
	Source   string `json:"source"`             // absolute path on the host
	Target   string `json:"target"`             // absolute path in the sandbox
	Writable bool   `json:"writable,omitempty"` // default: read-only
}

// Copy extracts an uploaded tree, a tar stream in the object store, into a container of the sandbox before the
// container's first start.
type Copy struct {
	Digest string `json:"digest"`         // digest of the tar stream: "sha256-" and 64 hex digits
	Size   Bytes  `json:"size,omitempty"` // size of the tar stream in bytes; only shows progress
	Target string `json:"target"`         // absolute directory in the container; created if missing
	// uid or uid:gid that owns everything in the copy; default: the ids in the tar stream
	Owner   string `json:"owner,omitempty"`
	Service string `json:"service,omitempty"` // service whose container gets the copy; default: the primary container
}

// ExecSpec describes an exec. Execs are stateless: cwd and env apply to one call.
type ExecSpec struct {
	Command []string          `json:"command"`       // argv, never a shell string
	Env     map[string]string `json:"env,omitempty"` // added to the sandbox's environment
	// environment variables whose values are sealed, by name; reads show *** instead
	SensitiveEnv map[string]Sealed `json:"sensitive_env,omitempty"`
	// secrets of the tenant, as files below /run/secrets/EXEC or as variables, while the exec runs
	Secrets []SecretUse `json:"secrets,omitempty"`
	Cwd     string      `json:"cwd,omitempty"`     // absolute; default: the sandbox's cwd
	User    string      `json:"user,omitempty"`    // default: the sandbox's user
	Service string      `json:"service,omitempty"` // run in this service's container; default: the primary container
	Stdin   []byte      `json:"stdin,omitempty"`   // at most 128 KiB, followed by end of file
	Timeout Duration    `json:"timeout,omitempty"` // wall-clock time from the start; 0: no limit
	// stdin stays open, and its bytes come over streams of kind "stdin"; not together with stdin
	OpenStdin bool `json:"open_stdin,omitempty"`
	// StartTimeout limits the time from acceptance to start, by the coordinator's clock. After it, the exec
	// fails with deadline_exceeded, reason start_timeout. Default 2m.
	StartTimeout Duration `json:"start_timeout,omitempty"`
	Grace        Duration `json:"grace,omitempty"`        // time from TERM to KILL on cancel and timeout; default 5s
	OutputLimit  Bytes    `json:"output_limit,omitempty"` // bytes retained of stdout and of stderr, each; default 256 MiB
}

var (
	envPattern         = regexp.MustCompile(`\A[A-Za-z_][A-Za-z0-9_]*\z`)
	labelPattern       = regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9._/-]*\z`)
	imagePattern       = regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9._:/@-]*\z`)
	userPattern        = regexp.MustCompile(`\A[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?\z`)
	digestPattern      = regexp.MustCompile(`\Asha256-[0-9a-f]{64}\z`)
	interpreterPattern = regexp.MustCompile(`\A[A-Za-z0-9._-]+\z`)
)

// ValidateInterpreter checks the name of an interpreter that reads code from stdin. Errors: invalid_argument
// with the given field.
func ValidateInterpreter(field, name string) error {
	if !interpreterPattern.MatchString(name) || strings.HasPrefix(name, "-") {
		return Invalid(field, "must match [A-Za-z0-9._-]+ and not start with -, got %.80q", name)
	}
	return nil
}

// Resolve fills in every default, so that the stored spec is complete.
func (s *SandboxSpec) Resolve() {
	setDefault(&s.CPU, DefaultCPU)
	setDefault(&s.Memory, DefaultMemory)
	setDefault(&s.PIDs, DefaultPIDs)
	setDefault(&s.QueueTimeout, DefaultQueueTimeout)
	setDefault(&s.CreateTimeout, DefaultCreateTimeout)
	setDefault(&s.Grace, DefaultGrace)
	setDefault(&s.OnHostLoss, OnHostLossWait)
	s.resolveParts()
}

// StartWithin returns the effective StartTimeout. The default is not stored in the spec, so that it also
// applies to execs accepted before the field existed.
func (s *ExecSpec) StartWithin() time.Duration {
	if s.StartTimeout == 0 {
		return DefaultStartTimeout.Std()
	}
	return s.StartTimeout.Std()
}

// Resolve fills in every default except the default of StartTimeout.
func (s *ExecSpec) Resolve() {
	setDefault(&s.Grace, DefaultGrace)
	setDefault(&s.OutputLimit, DefaultOutputLimit)
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate checks everything that does not depend on a host. Errors: invalid_argument, or permission_denied for
// a forbidden network range; the field is below "spec".
func (s *SandboxSpec) Validate() error {
	if err := validateImage("spec.image", s.Image); err != nil {
		return err
	}
	if len(s.Command) > 0 {
		if err := validateCommand("spec.command", s.Command); err != nil {
			return err
		}
	}
	if err := validateEnv("spec.env", s.Env); err != nil {
		return err
	}
	if err := validateSecrets("spec", s.Env, s.SensitiveEnv, s.Secrets); err != nil {
		return err
	}
	if err := validateLabels("spec.labels", s.Labels); err != nil {
		return err
	}
	if err := validateUser("spec.user", s.User); err != nil {
		return err
	}
	if err := validateCwd("spec.cwd", s.Cwd); err != nil {
		return err
	}
	if err := validateLimits("spec", s.CPU, s.Memory, s.PIDs); err != nil {
		return err
	}
	for _, d := range []struct {
		field string
		value Duration
	}{
		{"spec.idle_ttl", s.IdleTTL}, {"spec.queue_timeout", s.QueueTimeout}, {"spec.create_timeout", s.CreateTimeout},
	} {
		if d.value < 0 {
			return Invalid(d.field, "must not be negative, got %s", d.value)
		}
	}
	if err := validateGrace("spec.grace", s.Grace); err != nil {
		return err
	}
	switch s.OnHostLoss {
	case "", OnHostLossWait, OnHostLossFail, OnHostLossReplace:
	default:
		return Invalid("spec.on_host_loss", "must be %q, %q or %q, got %.40q",
			OnHostLossWait, OnHostLossFail, OnHostLossReplace, s.OnHostLoss)
	}
	if err := s.validatePlacement(); err != nil {
		return err
	}
	if err := s.validateFiles(); err != nil {
		return err
	}
	return s.validateParts()
}

func validateImage(field, image string) error {
	if image == "" {
		return Invalid(field, "must not be empty")
	}
	if len(image) > 512 || !imagePattern.MatchString(image) {
		return Invalid(field, "is not an image reference: %.80q", image)
	}
	return nil
}

func validateLimits(field string, cpu float64, memory Bytes, pids int64) error {
	if math.IsNaN(cpu) || cpu != 0 && (cpu < 0.01 || cpu > 4096) {
		return Invalid(field+".cpu", "must be 0.01 to 4096 cores, got %v", cpu)
	}
	if memory != 0 && memory < MinMemory {
		return Invalid(field+".memory", "must be at least %s, got %s", MinMemory, memory)
	}
	if pids != 0 && (pids < 8 || pids > MaxPIDs) {
		return Invalid(field+".pids", "must be 8 to %d, got %d", MaxPIDs, pids)
	}
	return nil
}

// validateFiles checks mounts, copies and in-memory file systems. All of them use the paths of the primary
// container, except copies into a service, which use the paths of the service's container.
func (s *SandboxSpec) validateFiles() error {
	for _, list := range []struct {
		field   string
		n, most int
	}{
		{"spec.mounts", len(s.Mounts), MaxMounts},
		{"spec.copies", len(s.Copies), MaxCopies},
		{"spec.tmpfs", len(s.Tmpfs), MaxTmpfs},
	} {
		if list.n > list.most {
			return Invalid(list.field, "has %d entries, at most %d are allowed", list.n, list.most)
		}
	}
	targets := targetGuard{}
	if err := s.validateMounts(targets); err != nil {
		return err
	}
	if err := s.validateCopies(targets); err != nil {
		return err
	}
	if err := s.validateTmpfs(targets); err != nil {
		return err
	}
	if err := s.validateSecretsDir(); err != nil {
		return err
	}
	return s.validateCopiesVisible()
}

func (s *SandboxSpec) validateMounts(targets targetGuard) error {
	for i, m := range s.Mounts {
		field := fmt.Sprintf("spec.mounts[%d]", i)
		if err := validatePath(field+".source", m.Source); err != nil {
			return err
		}
		if path.Clean(m.Source) == "/" {
			return Invalid(field+".source", "must not be the host's root directory")
		}
		if err := targets.add(field+".target", m.Target); err != nil {
			return err
		}
	}
	return nil
}

func (s *SandboxSpec) validateCopies(primary targetGuard) error {
	services := map[string]targetGuard{}
	for i, c := range s.Copies {
		field := fmt.Sprintf("spec.copies[%d]", i)
		if err := ValidateDigest(field+".digest", c.Digest); err != nil {
			return err
		}
		if c.Size < 0 {
			return Invalid(field+".size", "must not be negative")
		}
		if _, _, ok := c.Owners(); !ok {
			return Invalid(field+".owner", "must be a numeric uid or uid:gid, got %.40q", c.Owner)
		}
		targets := primary
		if c.Service != "" {
			if _, there := s.Service(c.Service); !there {
				return Invalid(field+".service", "the spec has no service %.80q", c.Service)
			}
			if services[c.Service] == nil {
				services[c.Service] = targetGuard{}
			}
			targets = services[c.Service]
		}
		if err := targets.add(field+".target", c.Target); err != nil {
			return err
		}
	}
	return nil
}

func (s *SandboxSpec) validateTmpfs(targets targetGuard) error {
	for i, m := range s.Tmpfs {
		field := fmt.Sprintf("spec.tmpfs[%d]", i)
		if m.Size < 0 || m.Size > 0 && m.Size < MinShm {
			return Invalid(field+".size", "must be at least %s, got %s", MinShm, m.Size)
		}
		if err := targets.add(field+".target", m.Target); err != nil {
			return err
		}
	}
	return nil
}

// validateCopiesVisible checks that no mount or in-memory file system covers a copy.
func (s *SandboxSpec) validateCopiesVisible() error {
	for i, c := range s.Copies {
		if c.Service != "" {
			continue
		}
		field, target := fmt.Sprintf("spec.copies[%d].target", i), path.Clean(c.Target)
		for _, m := range s.Mounts {
			if cover := path.Clean(m.Target); isBelow(target, cover) {
				return Invalid(field, "the mount at %s would hide it", cover)
			}
		}
		for _, m := range s.Tmpfs {
			if cover := path.Clean(m.Target); isBelow(target, cover) {
				return Invalid(field, "the in-memory file system at %s would hide it", cover)
			}
		}
	}
	return nil
}

// Validate checks everything that does not depend on the sandbox. Errors: invalid_argument; the field is below
// "spec".
func (s *ExecSpec) Validate() error {
	if len(s.Command) == 0 {
		return Invalid("spec.command", "must not be empty")
	}
	if err := validateCommand("spec.command", s.Command); err != nil {
		return err
	}
	if err := validateEnv("spec.env", s.Env); err != nil {
		return err
	}
	if err := validateSecrets("spec", s.Env, s.SensitiveEnv, s.Secrets); err != nil {
		return err
	}
	if err := validateCwd("spec.cwd", s.Cwd); err != nil {
		return err
	}
	if err := validateUser("spec.user", s.User); err != nil {
		return err
	}
	if s.Service != "" && !servicePattern.MatchString(s.Service) {
		return Invalid("spec.service", "is not the name of a service: %.80q", s.Service)
	}
	if len(s.Stdin) > MaxStdin {
		return Invalid("spec.stdin", "has %d bytes, at most %d are allowed", len(s.Stdin), MaxStdin)
	}
	if s.OpenStdin && len(s.Stdin) > 0 {
		return Invalid("spec.open_stdin", "must not be set together with stdin: send these bytes first, over the stream")
	}
	if s.Timeout < 0 || s.Timeout > 0 && s.Timeout < Duration(time.Millisecond) {
		return Invalid("spec.timeout", "must be 1ms or more, or 0 for none, got %s", s.Timeout)
	}
	if s.StartTimeout < 0 || s.StartTimeout > 0 && s.StartTimeout < Duration(time.Second) {
		return Invalid("spec.start_timeout",
			"must be 1s or more, or 0 for the default of %s, got %s", DefaultStartTimeout, s.StartTimeout)
	}
	if err := validateGrace("spec.grace", s.Grace); err != nil {
		return err
	}
	if s.OutputLimit < 0 || s.OutputLimit > MaxOutputLimit {
		return Invalid("spec.output_limit", "must be 0 to %s, got %s", MaxOutputLimit, s.OutputLimit)
	}
	return nil
}

func validateCommand(field string, argv []string) error {
	if len(argv) > MaxArgs {
		return Invalid(field, "has %d arguments, at most %d are allowed", len(argv), MaxArgs)
	}
	if argv[0] == "" {
		return Invalid(field+"[0]", "must not be empty")
	}
	total := 0
	for i, arg := range argv {
		if strings.ContainsRune(arg, 0) {
			return Invalid(fmt.Sprintf("%s[%d]", field, i), "must not contain a NUL byte")
		}
		total += len(arg)
	}
	if total > MaxArgsBytes {
		return Invalid(field, "has %d bytes, at most %d are allowed", total, MaxArgsBytes)
	}
	return nil
}

func validateEnv(field string, env map[string]string) error {
	if len(env) > MaxEnv {
		return Invalid(field, "has %d entries, at most %d are allowed", len(env), MaxEnv)
	}
	total := 0
	for _, name := range sortedKeys(env) {
		value := env[name]
		if !envPattern.MatchString(name) {
			return Invalid(fmt.Sprintf("%s.%.80s", field, name), "name must match [A-Za-z_][A-Za-z0-9_]*, got %.80q", name)
		}
		if strings.ContainsRune(value, 0) {
			return Invalid(field+"."+name, "must not contain a NUL byte")
		}
		total += len(name) + len(value)
	}
	if total > MaxEnvBytes {
		return Invalid(field, "has %d bytes, at most %d are allowed", total, MaxEnvBytes)
	}
	return nil
}

func validateLabels(field string, labels map[string]string) error {
	if len(labels) > MaxLabels {
		return Invalid(field, "has %d entries, at most %d are allowed", len(labels), MaxLabels)
	}
	for _, key := range sortedKeys(labels) {
		value := labels[key]
		if len(key) > MaxLabelKey || !labelPattern.MatchString(key) {
			return Invalid(fmt.Sprintf("%s.%.80s", field, key),
				"key must be 1 to %d characters of [A-Za-z0-9._/-], got %.80q", MaxLabelKey, key)
		}
		if len(value) > MaxLabelValue || strings.ContainsAny(value, "\x00\n\r") {
			return Invalid(field+"."+key, "value must be one line of at most %d bytes", MaxLabelValue)
		}
	}
	return nil
}

func validateUser(field, user string) error {
	if user != "" && (len(user) > 128 || !userPattern.MatchString(user)) {
		return Invalid(field, "must be a name or numeric id, optionally followed by :group, got %.80q", user)
	}
	return nil
}

func validateCwd(field, cwd string) error {
	if cwd == "" {
		return nil
	}
	return validatePath(field, cwd)
}

func validatePath(field, p string) error {
	switch {
	case p == "":
		return Invalid(field, "must not be empty")
	case strings.ContainsRune(p, 0):
		return Invalid(field, "must not contain a NUL byte")
	case !path.IsAbs(p):
		return Invalid(field, "must be an absolute path, got %.80q", p)
	case len(p) > 4096:
		return Invalid(field, "is longer than 4096 bytes")
	}
	return nil
}

func validateGrace(field string, d Duration) error {
	if d < 0 || d > MaxGrace {
		return Invalid(field, "must be 0 to %s, got %s", MaxGrace, d)
	}
	return nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// ValidateDigest checks the digest of an upload. Errors: invalid_argument with the given field.
func ValidateDigest(field, digest string) error {
	if !digestPattern.MatchString(digest) {
		return Invalid(field, "must be \"sha256-\" and 64 hex digits, got %.80q", digest)
	}
	return nil
}
