package worker

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// abilities is what this host can do and its operator allows, beyond what every host does.
type abilities struct {
	profiles []string // capability profiles of sandboxes
	services []string // capability profiles of services
	runtimes []string // OCI runtimes that a sandbox may choose
	gpus     int
	mostPIDs int64 // that a spec may give one container
	engine   docker.Info
}

// newAbilities checks what the operator allows against what the engine has.
func newAbilities(cfg *Config, info docker.Info) (*abilities, error) {
	a := &abilities{profiles: cfg.Profiles, services: cfg.ServiceProfiles, runtimes: cfg.Runtimes, gpus: countGPUs("/dev"), mostPIDs: cmp.Or(cfg.PIDs, DefaultMostPIDs), engine: info}
	if len(a.profiles) == 0 {
		a.profiles = []string{protocol.ProfileHardened}
	}
	if len(a.services) == 0 {
		a.services = []string{protocol.ProfileHardened, protocol.ProfileStandard}
	}
	for field, allowed := range map[string][]string{"profiles": a.profiles, "service_profiles": a.services} {
		for _, p := range allowed {
			if p != protocol.ProfileHardened && p != protocol.ProfileStandard {
				return nil, protocol.Invalid(field, "must be of %q and %q, got %.40q", protocol.ProfileHardened, protocol.ProfileStandard, p)
			}
		}
	}
	for _, r := range a.runtimes {
		if !slices.Contains(info.Runtimes, r) {
			return nil, protocol.Invalid("runtimes", "the engine has no runtime %.60q, it has %s", r, strings.Join(info.Runtimes, ", "))
		}
	}
	return a, nil
}

// countGPUs counts the device files of NVIDIA's driver, /dev/nvidia0 and so on.
func countGPUs(dev string) int {
	n := 0
	found, _ := filepath.Glob(filepath.Join(dev, "nvidia[0-9]*")) // the pattern is well-formed
	for _, path := range found {
		if info, err := os.Stat(path); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			n++
		}
	}
	return n
}

// check refuses what the host cannot do or its operator does not allow, whatever the coordinator
// let through.
func (a *abilities) check(s *protocol.SandboxSpec) error {
	unable := func(field, what string) error {
		return &protocol.Error{Code: protocol.FailedPrecondition, Reason: protocol.ReasonUnsupported, Field: field, Message: "the host's kernel cannot limit " + what}
	}
	switch {
	case !a.engine.CanLimitMemory:
		return unable("spec.memory", "memory")
	case !a.engine.CanLimitCPU:
		return unable("spec.cpu", "cpu")
	case !a.engine.CanLimitPIDs:
		return unable("spec.pids", "processes")
	}
	return a.allows(s)
}

// allows refuses what a spec may not choose here.
func (a *abilities) allows(s *protocol.SandboxSpec) error {
	unable := func(field, format string, args ...any) error {
		e := protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonUnsupported, format, args...)
		e.Field = field
		return e
	}
	switch {
	case s.Profile != "" && !slices.Contains(a.profiles, s.Profile):
		return denied("spec.profile", "the host's operator allows %s", strings.Join(a.profiles, ", "))
	case s.Runtime != "" && !slices.Contains(a.runtimes, s.Runtime):
		return denied("spec.runtime", "the host's operator does not allow to choose %s", s.Runtime)
	case s.PIDs > a.mostPIDs:
		return a.tooManyPIDs("spec", s.PIDs)
	case s.GPUs != "" && a.gpus == 0, s.GPUCount() > a.gpus:
		return unable("spec.gpus", "%s wanted, the host has %d", s.GPUs, a.gpus)
	}
	names, _ := s.Services()
	for _, name := range names {
		if err := a.checkService(s, name); err != nil {
			return err
		}
	}
	return nil
}

// checkService refuses a service that the host's operator does not allow.
func (a *abilities) checkService(s *protocol.SandboxSpec, name string) error {
	v, _ := s.Service(name)
	if v.PIDs > a.mostPIDs {
		return a.tooManyPIDs(s.ServiceField(name), v.PIDs)
	}
	if profile := v.Capabilities(); !slices.Contains(a.services, profile) {
		return denied(s.ServiceField(name)+".profile", "the host's operator allows services %s, and not %s", strings.Join(a.services, ", "), profile)
	}
	return nil
}

func (a *abilities) tooManyPIDs(field string, pids int64) error {
	return denied(field+".pids", "the host's operator gives one container %d at most (worker.pids), and not %d", a.mostPIDs, pids)
}

func denied(field, format string, args ...any) error {
	e := protocol.Errorf(protocol.PermissionDenied, protocol.ReasonPolicyDenied, format, args...)
	e.Field = field
	return e
}
