package abilities

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// Config says what the operator allows sandboxes to use.
type Config struct {
	Profiles        []string // capability profiles that sandboxes may choose; default hardened
	ServiceProfiles []string // capability profiles that services may choose; default hardened and standard
	Runtimes        []string // OCI runtimes that a spec may choose; default none
	PIDs            int64    // maximum processes and threads that a spec may give a container; default DefaultMostPIDs
}

// DefaultMostPIDs is the default of [Config].PIDs.
const DefaultMostPIDs = 16384

// Abilities checks specs against what a host can do and what its operator allows.
type Abilities struct {
	Config // with the defaults filled in
	GPUs   int
	engine docker.Info
}

// New checks the configuration against the abilities of the engine. Error: invalid_argument.
func New(cfg Config, engine docker.Info) (*Abilities, error) {
	a := &Abilities{Config: cfg, GPUs: countGPUs("/dev"), engine: engine}
	if len(a.Profiles) == 0 {
		a.Profiles = []string{protocol.ProfileHardened}
	}
	if len(a.ServiceProfiles) == 0 {
		a.ServiceProfiles = []string{protocol.ProfileHardened, protocol.ProfileStandard}
	}
	if a.PIDs == 0 {
		a.PIDs = DefaultMostPIDs
	}
	for field, allowed := range map[string][]string{"profiles": a.Profiles, "service_profiles": a.ServiceProfiles} {
		for _, p := range allowed {
			if p != protocol.ProfileHardened && p != protocol.ProfileStandard {
				return nil, protocol.Invalid(
					field,
					"must be %q or %q, got %.40q",
					protocol.ProfileHardened,
					protocol.ProfileStandard,
					p,
				)
			}
		}
	}
	for _, r := range a.Runtimes {
		if !slices.Contains(engine.Runtimes, r) {
			return nil, protocol.Invalid(
				"runtimes",
				"the engine has no runtime %.60q, only %s",
				r,
				strings.Join(engine.Runtimes, ", "),
			)
		}
	}
	return a, nil
}

// countGPUs counts the device files of NVIDIA's driver, /dev/nvidia0 and so on.
func countGPUs(dev string) int {
	n := 0
	found, _ := filepath.Glob(filepath.Join(dev, "nvidia[0-9]*")) // the pattern is well-formed, so there is no error
	for _, path := range found {
		if info, err := os.Stat(path); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			n++
		}
	}
	return n
}

// Check refuses a spec that the host cannot run or its operator does not allow. The coordinators make the same checks
// with the table of hosts, but that table may be outdated.
func (a *Abilities) Check(s *protocol.SandboxSpec) error {
	unable := func(field, what string) error {
		return &protocol.Error{Code: protocol.FailedPrecondition, Reason: protocol.ReasonUnsupported, Field: field,
			Message: "the host's kernel cannot limit " + what}
	}
	switch {
	case !a.engine.CanLimitMemory:
		return unable("spec.memory", "memory")
	case !a.engine.CanLimitCPU:
		return unable("spec.cpu", "cpu")
	case !a.engine.CanLimitPIDs:
		return unable("spec.pids", "processes")
	}
	return a.CheckChoices(s)
}

// CheckChoices refuses a spec whose profile, runtime, GPUs, number of processes or services this host lacks or its
// operator does not allow.
func (a *Abilities) CheckChoices(s *protocol.SandboxSpec) error {
	switch {
	case s.Profile != "" && !slices.Contains(a.Profiles, s.Profile):
		return denied("spec.profile", "the host's operator allows only %s", strings.Join(a.Profiles, ", "))
	case s.Runtime != "" && !slices.Contains(a.Runtimes, s.Runtime):
		return denied("spec.runtime", "the host's operator does not allow the runtime %s", s.Runtime)
	case s.PIDs > a.PIDs:
		return a.tooManyPIDs("spec", s.PIDs)
	case s.GPUs != "" && a.GPUs == 0, s.GPUCount() > a.GPUs:
		e := protocol.Errorf(
			protocol.FailedPrecondition,
			protocol.ReasonUnsupported,
			"%s GPUs are wanted, the host has %d",
			s.GPUs,
			a.GPUs,
		)
		e.Field = "spec.gpus"
		return e
	}
	names, _ := s.Services()
	for _, name := range names {
		if err := a.CheckService(s, name); err != nil {
			return err
		}
	}
	return nil
}

// CheckService refuses a service that the host's operator does not allow.
func (a *Abilities) CheckService(s *protocol.SandboxSpec, name string) error {
	v, _ := s.Service(name)
	if v.PIDs > a.PIDs {
		return a.tooManyPIDs(s.ServiceField(name), v.PIDs)
	}
	if profile := v.Capabilities(); !slices.Contains(a.ServiceProfiles, profile) {
		return denied(
			s.ServiceField(name)+".profile",
			"the host's operator does not allow services with the profile %s, only %s",
			profile,
			strings.Join(a.ServiceProfiles, ", "),
		)
	}
	return nil
}

func (a *Abilities) tooManyPIDs(field string, pids int64) error {
	return denied(
		field+".pids",
		"the host's operator allows at most %d processes for one container (worker.pids), got %d",
		a.PIDs,
		pids,
	)
}

func denied(field, format string, args ...any) error {
	e := protocol.Errorf(protocol.PermissionDenied, protocol.ReasonPolicyDenied, format, args...)
	e.Field = field
	return e
}
