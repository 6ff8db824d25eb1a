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

// Bounds of what a spec may hold. A spec outside them is refused with invalid_argument.
const (
	MaxSpecBytes    = 256 << 10 // a whole request, encoded
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
	MaxActiveExecs  = 8192     // of a sandbox, that have not ended; a supervisor keeps as many again that have
	MaxInlineOutput = 16 << 10 // stdout and stderr together, carried in the exec's last event
)

// Defaults that Resolve fills in.
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

// What happens to a ready sandbox whose host is lost.
const (
	OnHostLossWait = "wait" // it stays, shown unreachable, until the host comes back
	OnHostLossFail = "fail" // it fails with reason host_lost when the host's lock lease is over
	// It is made again elsewhere from its spec, under its id and in the next generation, when the host's lock
	// lease is over.
	OnHostLossReplace = "replace"
)

// SandboxSpec says what a sandbox is made of. The handle shows it resolved, with every default
// filled in.
type SandboxSpec struct {
	Image         string            `json:"image"`                    // image reference, required
	Command       []string          `json:"command,omitempty"`        // primary command, run by the supervisor as User in Cwd; none: the sandbox only waits for execs
	Env           map[string]string `json:"env,omitempty"`            // added to the image's environment
	Labels        map[string]string `json:"labels,omitempty"`         // the caller's own, for selectors
	User          string            `json:"user,omitempty"`           // name, uid, or either with ":group"; default: the image's
	Cwd           string            `json:"cwd,omitempty"`            // absolute; default: the image's
	CPU           float64           `json:"cpu,omitempty"`            // cores, 0.01 or more; default 1
	Memory        Bytes             `json:"memory,omitempty"`         // bytes, 16 MiB or more; default 512 MiB
	PIDs          int64             `json:"pids,omitempty"`           // processes and threads; default 2048
	Disk          Bytes             `json:"disk,omitempty"`           // bytes that the container's own layer may hold; 0: no limit
	ShmSize       Bytes             `json:"shm_size,omitempty"`       // of /dev/shm; default: the Engine's, 64 MiB
	GPUs          string            `json:"gpus,omitempty"`           // "all", or how many
	Hostname      string            `json:"hostname,omitempty"`       // default: the sandbox's id
	ReadOnly      bool              `json:"read_only,omitempty"`      // the root file system cannot be written
	Tmpfs         []Tmpfs           `json:"tmpfs,omitempty"`          // file systems in memory
	Profile       string            `json:"profile,omitempty"`        // hardened (default) or standard
	Runtime       string            `json:"runtime,omitempty"`        // OCI runtime; default: the Engine's
	Pull          string            `json:"pull,omitempty"`           // missing (default), always or never: when images are pulled
	Network       *Network          `json:"network,omitempty"`        // what it may connect to; default: public addresses
	Ports         []Port            `json:"ports,omitempty"`          // published on the host's loopback
	Mounts        []Mount           `json:"mounts,omitempty"`         // files and directories of the host
	Copies        []Copy            `json:"copies,omitempty"`         // trees uploaded by the caller
	Tools         []string          `json:"tools,omitempty"`          // names of builtin tools, whose files the worker's host has
	TTL           Duration          `json:"ttl,omitempty"`            // delete so long after the create; 0: never
	IdleTTL       Duration          `json:"idle_ttl,omitempty"`       // stop after so long without an exec; 0: never
	QueueTimeout  Duration          `json:"queue_timeout,omitempty"`  // fail when no host was found by then; default 24h
	CreateTimeout Duration          `json:"create_timeout,omitempty"` // from assignment to ready; default 5m
	Grace         Duration          `json:"grace,omitempty"`          // TERM to KILL for execs and command when the sandbox stops; default 5s
	OnHostLoss    string            `json:"on_host_loss,omitempty"`   // wait (default), fail or replace
	OnDelete      *Hook             `json:"on_delete,omitempty"`      // run before a ready sandbox is deleted
	Placement     []string          `json:"placement,omitempty"`      // on hosts with these labels only: KEY=VALUE, KEY!=VALUE or "KEY in (VALUE, VALUE)"; all must hold

	RequiredServices Services `json:"required_services,omitempty"` // by name; must be ready for the sandbox to be
	OptionalServices Services `json:"optional_services,omitempty"` // by name; block nothing
}

// Mount binds a file or directory of the host into the sandbox, without what is mounted below it.
// Source must be below an entry of the worker's allow-list, and one that says rw for Writable.
type Mount struct {
	Source   string `json:"source"`             // absolute path on the host
	Target   string `json:"target"`             // absolute path in the sandbox
	Writable bool   `json:"writable,omitempty"` // default: read-only
}

// Copy places a tree that the caller uploaded, a tar stream in the object store, into a container of
// the sandbox, before that one starts for the first time.
type Copy struct {
	Digest  string `json:"digest"`            // "sha256-" and 64 hex digits, of the tar stream
	Size    Bytes  `json:"size,omitempty"`    // of the tar stream, for progress only
	Target  string `json:"target"`            // absolute directory in the container, made where missing
	Owner   string `json:"owner,omitempty"`   // uid or uid:gid that everything belongs to; default: the ids in the tar stream
	Service string `json:"service,omitempty"` // the service whose container gets it; default: the primary one
}

// ExecSpec says what an exec runs. Execs are stateless: cwd and env are per call.
type ExecSpec struct {
	Command []string          `json:"command"`           // argv, never a shell string
	Env     map[string]string `json:"env,omitempty"`     // over the sandbox's environment
	Cwd     string            `json:"cwd,omitempty"`     // absolute; default: the sandbox's
	User    string            `json:"user,omitempty"`    // default: the sandbox's
	Service string            `json:"service,omitempty"` // run it in this service's container; default: the primary one
	Stdin   []byte            `json:"stdin,omitempty"`   // at most 128 KiB; then end of file
	Timeout Duration          `json:"timeout,omitempty"` // wall clock from start; 0: none
	// StartTimeout is how long it may be accepted and not started, by the coordinator's clock; then it
	// fails with deadline_exceeded, reason start_timeout. Default 2m.
	StartTimeout Duration `json:"start_timeout,omitempty"`
	Grace        Duration `json:"grace,omitempty"`        // TERM to KILL on cancel and timeout; default 5s
	OutputLimit  Bytes    `json:"output_limit,omitempty"` // bytes kept of stdout and of stderr, each; default 256 MiB
}

var (
	envPattern         = regexp.MustCompile(`\A[A-Za-z_][A-Za-z0-9_]*\z`)
	labelPattern       = regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9._/-]*\z`)
	imagePattern       = regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9._:/@-]*\z`)
	userPattern        = regexp.MustCompile(`\A[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?\z`)
	digestPattern      = regexp.MustCompile(`\Asha256-[0-9a-f]{64}\z`)
	interpreterPattern = regexp.MustCompile(`\A[A-Za-z0-9._-]+\z`)
)

// ValidateInterpreter checks the name of an interpreter that is to run code from stdin.
func ValidateInterpreter(field, name string) error {
	if !interpreterPattern.MatchString(name) || strings.HasPrefix(name, "-") {
		return Invalid(field, "must match [A-Za-z0-9._-]+ and not begin with -, got %.80q", name)
	}
	return nil
}

// Resolve fills in every default, so that the stored spec says all that will be done.
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

// StartWithin is how long an exec may be accepted and not started. The default is not written into the
// spec: an exec that was accepted before there was one has it too.
func (s *ExecSpec) StartWithin() time.Duration {
	if s.StartTimeout == 0 {
		return DefaultStartTimeout.Std()
	}
	return s.StartTimeout.Std()
}

// Resolve fills in every default but that of StartTimeout.
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

// Validate checks everything that can be known without a host. The error names the field, below
// "spec".
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
	for _, ttl := range []struct {
		field string
		value Duration
	}{
		{"spec.idle_ttl", s.IdleTTL}, {"spec.queue_timeout", s.QueueTimeout}, {"spec.create_timeout", s.CreateTimeout},
	} {
		if ttl.value < 0 {
			return Invalid(ttl.field, "must not be negative, got %s", ttl.value)
		}
	}
	if err := validateGrace("spec.grace", s.Grace); err != nil {
		return err
	}
	switch s.OnHostLoss {
	case "", OnHostLossWait, OnHostLossFail, OnHostLossReplace:
	default:
		return Invalid("spec.on_host_loss", "must be %q, %q or %q, got %.40q", OnHostLossWait, OnHostLossFail, OnHostLossReplace, s.OnHostLoss)
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

func (s *SandboxSpec) validateFiles() error {
	if len(s.Mounts) > MaxMounts {
		return Invalid("spec.mounts", "has %d entries, at most %d are allowed", len(s.Mounts), MaxMounts)
	}
	if len(s.Copies) > MaxCopies {
		return Invalid("spec.copies", "has %d entries, at most %d are allowed", len(s.Copies), MaxCopies)
	}
	if len(s.Tmpfs) > MaxTmpfs {
		return Invalid("spec.tmpfs", "has %d entries, at most %d are allowed", len(s.Tmpfs), MaxTmpfs)
	}
	targets := targetGuard{}
	ofServices := map[string]targetGuard{}
	for i, m := range s.Mounts {
		field := fmt.Sprintf("spec.mounts[%d]", i)
		if err := validatePath(field+".source", m.Source); err != nil {
			return err
		}
		if path.Clean(m.Source) == "/" {
			return Invalid(field+".source", "must not be the root of the host")
		}
		if err := targets.add(field+".target", m.Target); err != nil {
			return err
		}
	}
	for i, c := range s.Copies {
		field := fmt.Sprintf("spec.copies[%d]", i)
		if !digestPattern.MatchString(c.Digest) {
			return Invalid(field+".digest", "must be \"sha256-\" and 64 hex digits, got %.80q", c.Digest)
		}
		if c.Size < 0 {
			return Invalid(field+".size", "must not be negative")
		}
		if _, _, ok := c.Owners(); !ok {
			return Invalid(field+".owner", "must be a uid, or uid:gid, as numbers, got %.40q", c.Owner)
		}
		guard := targets
		if c.Service != "" {
			if _, there := s.Service(c.Service); !there {
				return Invalid(field+".service", "the spec has no service %.80q", c.Service)
			}
			if ofServices[c.Service] == nil {
				ofServices[c.Service] = targetGuard{}
			}
			guard = ofServices[c.Service]
		}
		if err := guard.add(field+".target", c.Target); err != nil {
			return err
		}
	}
	for i, m := range s.Tmpfs {
		field := fmt.Sprintf("spec.tmpfs[%d]", i)
		if m.Size < 0 || m.Size > 0 && m.Size < MinShm {
			return Invalid(field+".size", "must be at least %s, got %s", MinShm, m.Size)
		}
		if err := targets.add(field+".target", m.Target); err != nil {
			return err
		}
	}
	for i, c := range s.Copies {
		if c.Service != "" {
			continue
		}
		for _, m := range s.Mounts {
			if isBelow(path.Clean(c.Target), path.Clean(m.Target)) {
				return Invalid(fmt.Sprintf("spec.copies[%d].target", i), "the mount at %s would hide it", path.Clean(m.Target))
			}
		}
		for _, m := range s.Tmpfs {
			if isBelow(path.Clean(c.Target), path.Clean(m.Target)) {
				return Invalid(fmt.Sprintf("spec.copies[%d].target", i), "the file system in memory at %s would hide it", path.Clean(m.Target))
			}
		}
	}
	return nil
}

// Validate checks everything that can be known without the sandbox. The error names the field,
// below "spec".
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
	if s.Timeout < 0 || s.Timeout > 0 && s.Timeout < Duration(time.Millisecond) {
		return Invalid("spec.timeout", "must be 1ms or more, or 0 for none, got %s", s.Timeout)
	}
	if s.StartTimeout < 0 || s.StartTimeout > 0 && s.StartTimeout < Duration(time.Second) {
		return Invalid("spec.start_timeout", "must be 1s or more, or 0 for the default of %s, got %s", DefaultStartTimeout, s.StartTimeout)
	}
	if err := validateGrace("spec.grace", s.Grace); err != nil {
		return err
	}
	if s.OutputLimit < 0 || s.OutputLimit > MaxOutputLimit {
		return Invalid("spec.output_limit", "must be at most %s, got %d", MaxOutputLimit, s.OutputLimit)
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
			return Invalid(fmt.Sprintf("%s.%.80s", field, key), "key must be 1 to %d characters of [A-Za-z0-9._/-], got %.80q", MaxLabelKey, key)
		}
		if len(value) > MaxLabelValue || strings.ContainsAny(value, "\x00\n\r") {
			return Invalid(field+"."+key, "value must be one line of at most %d bytes", MaxLabelValue)
		}
	}
	return nil
}

func validateUser(field, user string) error {
	if user != "" && (len(user) > 128 || !userPattern.MatchString(user)) {
		return Invalid(field, "must be a name or id, or either with :group, got %.80q", user)
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
