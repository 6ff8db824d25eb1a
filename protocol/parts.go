package protocol

import (
	"fmt"
	"maps"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

// Limits on the parts of a sandbox.
const (
	MaxPorts    = 64
	MaxServices = 12 // a sandbox's network has addresses for these services and its primary container
	MaxHooks    = 16
	MaxTmpfs    = 16
	MaxTools    = 32
	MaxAllow    = 64
	MaxHostname = 63
	MinDisk     = Bytes(16 << 20)
	MinShm      = Bytes(64 << 10)

	MaxLastOutput = 2 << 10 // bytes of a service's or hook's output in an event
)

// Network modes. Whatever the mode, a sandbox cannot reach its host, other sandboxes, cloud metadata addresses, or
// private ranges that are not allowed.
const (
	NetworkInternet = "internet" // public addresses; the default
	NetworkNone     = "none"     // only its own services
	NetworkAllow    = "allow"    // only the listed ranges
)

// Network defines what a sandbox may connect to.
type Network struct {
	Mode  string   `json:"mode,omitempty"`  // internet (default), none or allow
	Allow []string `json:"allow,omitempty"` // IPv4 ranges; only valid with mode allow
}

// Port protocols.
const (
	ProtocolTCP  = "tcp"
	ProtocolUDP  = "udp"
	ProtocolSCTP = "sctp"
)

// Port publishes a port of the sandbox on its host's loopback.
type Port struct {
	Container int    `json:"container"`          // 1 to 65535
	Host      int    `json:"host,omitempty"`     // port on 127.0.0.1; 0: Docker chooses
	Protocol  string `json:"protocol,omitempty"` // tcp (default), udp or sctp
}

// Tmpfs is an in-memory file system. Its content counts against the sandbox's memory limit.
type Tmpfs struct {
	Target string `json:"target"`         // absolute path in the sandbox
	Size   Bytes  `json:"size,omitempty"` // default: half of the sandbox's memory
}

// Capability profiles of sandboxes and services.
const (
	ProfileHardened = "hardened" // execs have no capabilities, even as root; the default of sandboxes
	// Execs as root have Docker's default capabilities except NET_RAW and MKNOD; the default of services.
	ProfileStandard = "standard"
)

// Image pull policies.
const (
	PullMissing = "missing" // pull only if the host does not have the image; the default
	PullAlways  = "always"
	PullNever   = "never"
)

// Hook is a command that runs in the primary container as the sandbox's user.
type Hook struct {
	Command  []string `json:"command"`
	Timeout  Duration `json:"timeout,omitempty"`   // default 1m
	OnResume bool     `json:"on_resume,omitempty"` // run the hook again after a resume; not valid in on_delete
}

// Service is an additional container on the sandbox's network, reachable under its name.
type Service struct {
	Image   string            `json:"image"`
	Command []string          `json:"command,omitempty"` // replaces the image's command
	Env     map[string]string `json:"env,omitempty"`
	// environment variables whose values are sealed, by name; reads show *** instead
	SensitiveEnv map[string]Sealed `json:"sensitive_env,omitempty"`
	Secrets      []SecretUse       `json:"secrets,omitempty"` // secrets of the tenant, as files or variables
	User         string            `json:"user,omitempty"`    // default: the image's user
	CPU          float64           `json:"cpu,omitempty"`
	Memory       Bytes             `json:"memory,omitempty"`
	PIDs         int64             `json:"pids,omitempty"`
	Disk         Bytes             `json:"disk,omitempty"`
	// hardened or standard (default). Images of services often start as root and then switch to another user.
	Profile string `json:"profile,omitempty"`
	// default: the image's health check; without any health check, the service is ready as soon as it runs
	Healthcheck *Healthcheck `json:"healthcheck,omitempty"`
	// commands that run in the primary container once the service is healthy; the service is ready when all have ended
	PostStart []Hook `json:"post_start,omitempty"`
}

// Services maps names to services.
type Services map[string]Service

// EncodeMsgpack encodes the services sorted by name, so that a spec has only one encoding.
func (s Services) EncodeMsgpack(enc *msgpack.Encoder) error {
	err := enc.EncodeMapLen(len(s))
	for _, name := range sortedKeys(s) {
		service := s[name]
		if err == nil {
			err = enc.EncodeString(name)
		}
		if err == nil {
			err = enc.Encode(&service)
		}
	}
	return err
}

// Healthcheck defines how to test whether a service is healthy, as Docker's health checks do.
type Healthcheck struct {
	// CMD and arguments, or CMD-SHELL and one line; NONE alone disables the image's health check
	Test          []string `json:"test"`
	Interval      Duration `json:"interval,omitempty"`       // default 30s
	Timeout       Duration `json:"timeout,omitempty"`        // limit of one test; default 30s
	Retries       int      `json:"retries,omitempty"`        // consecutive failures until unhealthy; default 3
	StartPeriod   Duration `json:"start_period,omitempty"`   // failures during this time do not count
	StartInterval Duration `json:"start_interval,omitempty"` // time between tests during the start period; default 5s
}

// ServiceState is the state of a service.
type ServiceState string

// The states of a service.
const (
	ServiceStateStarting ServiceState = "starting"
	ServiceStateReady    ServiceState = "ready"
	ServiceStateFailed   ServiceState = "failed"
)

// ServiceStatus is the state of a service as folded from the history.
type ServiceStatus struct {
	State    ServiceState `json:"state"`
	Required bool         `json:"required,omitempty"`
	Reason   string       `json:"reason,omitempty"`
	Error    *Error       `json:"error,omitempty"`
	Resumed  bool         `json:"resumed,omitempty"` // started by a resume, not by the create
	Hooks    int          `json:"hooks,omitempty"`   // how many post_start commands have ended since the service started
	Since    time.Time    `json:"since,omitempty,omitzero"`

	// Ends is how often the command has ended since the container start that Boot names, as far as events report it.
	// LastExit is the exit code of the last run.
	Ends     int    `json:"ends,omitempty"`
	Boot     string `json:"boot,omitempty"`
	LastExit *int   `json:"last_exit,omitempty"`
}

// Defaults of parts.
const (
	DefaultHookTimeout    = Duration(time.Minute)
	DefaultHealthInterval = Duration(30 * time.Second)
	DefaultHealthTimeout  = Duration(30 * time.Second)
	DefaultHealthRetries  = 3
	DefaultStartInterval  = Duration(5 * time.Second)
	MaxHookTimeout        = Duration(time.Hour)
)

var (
	// A service's name is its host name on the sandbox's network.
	servicePattern  = regexp.MustCompile(`\A[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\z`)
	hostnamePattern = regexp.MustCompile(`\A[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\z`)
	runtimePattern  = regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9._-]{0,63}\z`)
	toolPattern     = regexp.MustCompile(`\A[a-z0-9][a-z0-9-]{0,31}\z`)
)

func (s *SandboxSpec) resolveParts() {
	network := Network{}
	if s.Network != nil {
		network = *s.Network
	}
	setDefault(&network.Mode, NetworkInternet)
	s.Network = &network
	setDefault(&s.Profile, ProfileHardened)
	setDefault(&s.Pull, PullMissing)
	s.Ports = slices.Clone(s.Ports)
	for i := range s.Ports {
		setDefault(&s.Ports[i].Protocol, ProtocolTCP)
	}
	if s.OnDelete != nil {
		hook := *s.OnDelete
		setDefault(&hook.Timeout, DefaultHookTimeout)
		s.OnDelete = &hook
	}
	s.RequiredServices, s.OptionalServices = resolveServices(s.RequiredServices), resolveServices(s.OptionalServices)
}

// resolveServices returns a copy of the services with every default filled in. It does not change the map, which the
// caller of Resolve may share.
func resolveServices(services map[string]Service) map[string]Service {
	resolved := maps.Clone(services)
	for name, v := range resolved {
		v.resolve()
		resolved[name] = v
	}
	return resolved
}

func (v *Service) resolve() {
	setDefault(&v.CPU, DefaultCPU)
	setDefault(&v.Memory, DefaultMemory)
	setDefault(&v.PIDs, DefaultPIDs)
	setDefault(&v.Profile, ProfileStandard)
	v.PostStart = slices.Clone(v.PostStart)
	for i := range v.PostStart {
		setDefault(&v.PostStart[i].Timeout, DefaultHookTimeout)
	}
	if v.Healthcheck != nil {
		h := *v.Healthcheck
		h.Resolve()
		v.Healthcheck = &h
	}
}

// Disabled reports whether the test is NONE, which disables the image's health check.
func (h *Healthcheck) Disabled() bool { return len(h.Test) == 1 && h.Test[0] == "NONE" }

// Resolve fills in every default. A disabled health check has no defaults.
func (h *Healthcheck) Resolve() {
	if h.Disabled() {
		return
	}
	setDefault(&h.Interval, DefaultHealthInterval)
	setDefault(&h.Timeout, DefaultHealthTimeout)
	setDefault(&h.Retries, DefaultHealthRetries)
	setDefault(&h.StartInterval, DefaultStartInterval)
}

// Capabilities returns the capability profile of the service. Specs that were accepted before the field Profile existed
// have no profile, and get the standard profile.
func (v *Service) Capabilities() string {
	profile := v.Profile
	setDefault(&profile, ProfileStandard)
	return profile
}

// Services returns the sorted names of all services, and which of them are required for readiness.
func (s *SandboxSpec) Services() (names []string, required map[string]bool) {
	required = map[string]bool{}
	for name := range s.RequiredServices {
		required[name] = true
	}
	for name := range s.OptionalServices {
		required[name] = false
	}
	return sortedKeys(required), required
}

// Service returns the service with this name, required or optional.
func (s *SandboxSpec) Service(name string) (Service, bool) {
	v, ok := s.RequiredServices[name]
	if !ok {
		v, ok = s.OptionalServices[name]
	}
	return v, ok
}

// ServiceField returns the path of a service for an error, below "spec".
func (s *SandboxSpec) ServiceField(name string) string {
	if _, required := s.RequiredServices[name]; required {
		return "spec.required_services." + name
	}
	return "spec.optional_services." + name
}

// Totals is the sum of the resource limits of a sandbox's primary container and all of its services.
type Totals struct {
	CPU    float64
	Memory Bytes
	Disk   Bytes
	PIDs   int64
}

// Totals returns the sum of the limits of the primary container and all services.
func (s *SandboxSpec) Totals() Totals {
	t := Totals{CPU: s.CPU, Memory: s.Memory, Disk: s.Disk, PIDs: s.PIDs}
	for _, services := range []map[string]Service{s.RequiredServices, s.OptionalServices} {
		for _, v := range services {
			t = t.Plus(Totals{CPU: v.CPU, Memory: v.Memory, Disk: v.Disk, PIDs: v.PIDs})
		}
	}
	return t
}

// Plus returns the sum of two totals.
func (t Totals) Plus(u Totals) Totals {
	return Totals{CPU: t.CPU + u.CPU, Memory: t.Memory + u.Memory, Disk: t.Disk + u.Disk, PIDs: t.PIDs + u.PIDs}
}

// GPUCount returns how many GPUs a valid spec requests: -1 means all GPUs of the host.
func (s *SandboxSpec) GPUCount() int {
	if s.GPUs == "all" {
		return -1
	}
	n, _ := strconv.Atoi(s.GPUs) // validated
	return n
}

func (s *SandboxSpec) validateParts() error {
	for _, check := range []func() error{
		s.validateNetwork, s.validatePorts, s.validateContainer, s.validateTools, s.validateServices,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	if s.TTL < 0 {
		return Invalid("spec.ttl", "must not be negative, got %s", s.TTL)
	}
	if h := s.OnDelete; h != nil {
		if h.OnResume {
			return Invalid("spec.on_delete.on_resume", "is only valid for hooks that run on start")
		}
		return validateHook("spec.on_delete", h)
	}
	return nil
}

func (s *SandboxSpec) validateNetwork() error {
	n := s.Network
	if n == nil {
		return nil
	}
	switch {
	// An empty list is rejected below: it must not count as mode none.
	case n.Mode == NetworkAllow, n.Mode == "" && n.Allow != nil && len(n.Allow) == 0:
		if len(n.Allow) == 0 || len(n.Allow) > MaxAllow {
			return Invalid("spec.network.allow", "must have 1 to %d ranges, got %d", MaxAllow, len(n.Allow))
		}
	case n.Mode == "", n.Mode == NetworkInternet, n.Mode == NetworkNone:
		if len(n.Allow) > 0 {
			return Invalid("spec.network.allow", "is only valid with mode %s", NetworkAllow)
		}
	default:
		return Invalid("spec.network.mode",
			"must be %q, %q or %q, got %.40q", NetworkInternet, NetworkNone, NetworkAllow, n.Mode)
	}
	for i, r := range n.Allow {
		p, err := netip.ParsePrefix(r)
		if err != nil || p != p.Masked() {
			return Invalid(fmt.Sprintf("spec.network.allow[%d]", i),
				"must be a range such as 10.1.0.0/16 without host bits, got %.60q", r)
		}
		if !p.Addr().Is4() {
			return Invalid(fmt.Sprintf("spec.network.allow[%d]", i),
				"must be an IPv4 range, because sandboxes have no IPv6, got %.60q", r)
		}
		if IsWithinAny(p, neverReached) {
			e := Errorf(PermissionDenied, ReasonPolicyDenied, "is a range that no sandbox may reach on any host: %s", r)
			e.Field = fmt.Sprintf("spec.network.allow[%d]", i)
			return e
		}
	}
	return nil
}

func (s *SandboxSpec) validatePorts() error {
	if len(s.Ports) > MaxPorts {
		return Invalid("spec.ports", "has %d entries, at most %d are allowed", len(s.Ports), MaxPorts)
	}
	taken, chosen := map[string]string{}, map[string]string{}
	for i, p := range s.Ports {
		field := fmt.Sprintf("spec.ports[%d]", i)
		if p.Container < 1 || p.Container > 65535 {
			return Invalid(field+".container", "must be 1 to 65535, got %d", p.Container)
		}
		if p.Host < 0 || p.Host > 65535 {
			return Invalid(field+".host", "must be 1 to 65535, or 0 to let Docker choose, got %d", p.Host)
		}
		switch p.Protocol {
		case "", ProtocolTCP, ProtocolUDP, ProtocolSCTP:
		default:
			return Invalid(field+".protocol", "must be tcp, udp or sctp, got %.20q", p.Protocol)
		}
		protocol := p.Protocol
		setDefault(&protocol, ProtocolTCP)
		port, ports, part := p.Host, taken, ".host"
		if p.Host == 0 {
			port, ports, part = p.Container, chosen, ".container"
		}
		key := fmt.Sprintf("%d/%s", port, protocol)
		if other := ports[key]; other != "" {
			return Invalid(field+part, "is already used by %s: %s", strings.TrimPrefix(other, "spec."), key)
		}
		ports[key] = field
	}
	return nil
}

func (s *SandboxSpec) validateContainer() error {
	if s.Hostname != "" && !hostnamePattern.MatchString(s.Hostname) {
		return Invalid("spec.hostname",
			"must be 1 to %d characters of [A-Za-z0-9-], not starting or ending with -, got %.80q", MaxHostname, s.Hostname)
	}
	if s.Runtime != "" && !runtimePattern.MatchString(s.Runtime) {
		return Invalid("spec.runtime", "is not the name of an OCI runtime: %.80q", s.Runtime)
	}
	if err := validateProfile("spec.profile", s.Profile); err != nil {
		return err
	}
	switch s.Pull {
	case "", PullMissing, PullAlways, PullNever:
	default:
		return Invalid("spec.pull", "must be %q, %q or %q, got %.40q", PullMissing, PullAlways, PullNever, s.Pull)
	}
	if s.Disk != 0 && s.Disk < MinDisk {
		return Invalid("spec.disk", "must be at least %s, got %s", MinDisk, s.Disk)
	}
	if s.ShmSize != 0 && s.ShmSize < MinShm {
		return Invalid("spec.shm_size", "must be at least %s, got %s", MinShm, s.ShmSize)
	}
	if s.ReadOnly && slices.ContainsFunc(s.Copies, func(c Copy) bool { return c.Service == "" }) {
		return Invalid("spec.read_only", "copies need a writable root file system")
	}
	if s.GPUs != "" && s.GPUs != "all" {
		if n, err := strconv.Atoi(s.GPUs); err != nil || n < 1 || n > 64 || strconv.Itoa(n) != s.GPUs {
			return Invalid("spec.gpus", "must be \"all\" or a number from 1 to 64, got %.20q", s.GPUs)
		}
	}
	return nil
}

func validateProfile(field, profile string) error {
	switch profile {
	case "", ProfileHardened, ProfileStandard:
		return nil
	}
	return Invalid(field, "must be %q or %q, got %.40q", ProfileHardened, ProfileStandard, profile)
}

func (s *SandboxSpec) validateTools() error {
	if len(s.Tools) > MaxTools {
		return Invalid("spec.tools", "has %d entries, at most %d are allowed", len(s.Tools), MaxTools)
	}
	seen := map[string]bool{}
	for i, name := range s.Tools {
		field := fmt.Sprintf("spec.tools[%d]", i)
		if !toolPattern.MatchString(name) {
			return Invalid(field, "is not the name of a tool: %.60q", name)
		}
		if seen[name] {
			return Invalid(field, "is listed twice: %s", name)
		}
		seen[name] = true
	}
	return nil
}

func (s *SandboxSpec) validateServices() error {
	if n := len(s.RequiredServices) + len(s.OptionalServices); n > MaxServices {
		return Invalid("spec.required_services", "there are %d services, at most %d are allowed", n, MaxServices)
	}
	for name := range s.RequiredServices {
		if _, both := s.OptionalServices[name]; both {
			return Invalid("spec.optional_services."+name, "is also a required service")
		}
	}
	for _, group := range []struct {
		field    string
		services map[string]Service
	}{{"spec.required_services", s.RequiredServices}, {"spec.optional_services", s.OptionalServices}} {
		for _, name := range sortedKeys(group.services) {
			v := group.services[name]
			if !servicePattern.MatchString(name) || name == "localhost" {
				return Invalid(fmt.Sprintf("%s.%.80s", group.field, name),
					"the name must be 1 to 63 characters of [a-z0-9-], and not localhost, got %.80q", name)
			}
			if err := v.validate(group.field + "." + name); err != nil {
				return err
			}
		}
	}
	return nil
}

func (v *Service) validate(field string) error {
	if err := validateImage(field+".image", v.Image); err != nil {
		return err
	}
	if len(v.Command) > 0 {
		if err := validateCommand(field+".command", v.Command); err != nil {
			return err
		}
	}
	if err := validateEnv(field+".env", v.Env); err != nil {
		return err
	}
	if err := validateSecrets(field, v.Env, v.SensitiveEnv, v.Secrets); err != nil {
		return err
	}
	if err := validateUser(field+".user", v.User); err != nil {
		return err
	}
	if err := validateLimits(field, v.CPU, v.Memory, v.PIDs); err != nil {
		return err
	}
	if v.Disk != 0 && v.Disk < MinDisk {
		return Invalid(field+".disk", "must be at least %s, got %s", MinDisk, v.Disk)
	}
	if err := validateProfile(field+".profile", v.Profile); err != nil {
		return err
	}
	if err := v.Healthcheck.validate(field + ".healthcheck"); err != nil {
		return err
	}
	if len(v.PostStart) > MaxHooks {
		return Invalid(field+".post_start", "has %d entries, at most %d are allowed", len(v.PostStart), MaxHooks)
	}
	for i := range v.PostStart {
		if err := validateHook(fmt.Sprintf("%s.post_start[%d]", field, i), &v.PostStart[i]); err != nil {
			return err
		}
	}
	return nil
}

func (h *Healthcheck) validate(field string) error {
	if h == nil {
		return nil
	}
	switch {
	case h.Disabled():
		return h.validateOff(field)
	case len(h.Test) < 2 || h.Test[0] != "CMD" && h.Test[0] != "CMD-SHELL":
		return Invalid(field+".test", "must be CMD and a command, CMD-SHELL and one line, or NONE, got %.80q", h.Test)
	case h.Test[0] == "CMD-SHELL" && len(h.Test) != 2:
		return Invalid(field+".test", "CMD-SHELL takes a single argument, got %d", len(h.Test)-1)
	case strings.TrimSpace(h.Test[1]) == "": // an empty line always passes
		return Invalid(field+".test", "has an empty command")
	}
	if err := validateCommand(field+".test", h.Test); err != nil {
		return err
	}
	for _, d := range []struct {
		name  string
		value Duration
	}{
		{"interval", h.Interval}, {"timeout", h.Timeout},
		{"start_period", h.StartPeriod}, {"start_interval", h.StartInterval},
	} {
		if d.value < 0 || d.value > 0 && d.value < Duration(time.Millisecond) {
			return Invalid(field+"."+d.name, "must be 1ms or more, got %s", d.value)
		}
	}
	if h.Retries < 0 || h.Retries > 1000 {
		return Invalid(field+".retries", "must be 0 to 1000, got %d", h.Retries)
	}
	return nil
}

// validateOff rejects other fields of a disabled health check.
func (h *Healthcheck) validateOff(field string) error {
	for _, d := range []struct {
		name  string
		given bool
	}{
		{"interval", h.Interval != 0}, {"timeout", h.Timeout != 0}, {"retries", h.Retries != 0},
		{"start_period", h.StartPeriod != 0}, {"start_interval", h.StartInterval != 0},
	} {
		if d.given {
			return Invalid(field+"."+d.name, "is not valid when test is NONE")
		}
	}
	return nil
}

func validateHook(field string, h *Hook) error {
	if len(h.Command) == 0 {
		return Invalid(field+".command", "must not be empty")
	}
	if err := validateCommand(field+".command", h.Command); err != nil {
		return err
	}
	if h.Timeout < 0 || h.Timeout > MaxHookTimeout {
		return Invalid(field+".timeout", "must be 0 to %s, got %s", MaxHookTimeout, h.Timeout)
	}
	return nil
}

// targetGuard rejects targets of mounts, copies and in-memory file systems that are reserved or already used. It maps
// each used target to the field of the spec that uses it.
type targetGuard map[string]string

func (g targetGuard) add(field, target string) error {
	if err := ValidateTarget(field, target); err != nil {
		return err
	}
	clean := path.Clean(target)
	if other, taken := g[clean]; taken {
		return Invalid(field, "is the same target as %s: %s", strings.TrimPrefix(other, "spec."), clean)
	}
	g[clean] = field
	return nil
}

// ValidateTarget checks that a mount or copy may be placed at this absolute path of the sandbox: it is not the
// root and not in /.boxfleet, /proc, /sys or /dev. Errors: invalid_argument with the given field.
func ValidateTarget(field, target string) error {
	if err := validatePath(field, target); err != nil {
		return err
	}
	clean := path.Clean(target)
	reserved := clean == "/"
	for _, dir := range []string{"/.boxfleet", "/proc", "/sys", "/dev"} {
		reserved = reserved || isBelow(clean, dir)
	}
	if reserved {
		return Invalid(field, "must not be %s", clean)
	}
	return nil
}

// isBelow reports whether p, a clean path, is dir or below it.
func isBelow(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }
