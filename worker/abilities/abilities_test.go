package abilities

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
)

func TestSpecsThatTheHostCannotRunOrTheOperatorForbidsAreRefused(t *testing.T) {
	info := docker.Info{Runtimes: []string{"runc", "runsc"}, CanLimitCPU: true, CanLimitMemory: true, CanLimitPIDs: true}
	strict, err := New(Config{}, info)
	if err != nil {
		t.Fatal(err)
	}
	loose, err := New(Config{Profiles: []string{"hardened", "standard"}, Runtimes: []string{"runsc"}}, info)
	if err != nil {
		t.Fatal(err)
	}
	loose.GPUs = 2
	noServices, err := New(Config{ServiceProfiles: []string{"hardened"}}, info)
	if err != nil {
		t.Fatal(err)
	}
	services := func(required, optional protocol.Service) protocol.SandboxSpec {
		return protocol.SandboxSpec{RequiredServices: protocol.Services{"db": required},
			OptionalServices: protocol.Services{"cache": optional}}
	}
	const denied, unsupported = protocol.PermissionDenied, protocol.FailedPrecondition
	hardened, standard := protocol.Service{Profile: "hardened"}, protocol.Service{Profile: "standard"}
	blind, err := New(Config{}, docker.Info{CanLimitCPU: true, CanLimitPIDs: true})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		a     *Abilities
		spec  protocol.SandboxSpec
		field string
		code  protocol.Code
	}{
		"the default profile":     {strict, protocol.SandboxSpec{Profile: "hardened"}, "", ""},
		"a forbidden profile":     {strict, protocol.SandboxSpec{Profile: "standard"}, "spec.profile", denied},
		"an allowed profile":      {loose, protocol.SandboxSpec{Profile: "standard"}, "", ""},
		"a forbidden runtime":     {strict, protocol.SandboxSpec{Runtime: "runc"}, "spec.runtime", denied},
		"an allowed runtime":      {loose, protocol.SandboxSpec{Runtime: "runsc"}, "", ""},
		"GPUs on a host without":  {strict, protocol.SandboxSpec{GPUs: "all"}, "spec.gpus", unsupported},
		"too many GPUs":           {loose, protocol.SandboxSpec{GPUs: "3"}, "spec.gpus", unsupported},
		"all GPUs of the host":    {loose, protocol.SandboxSpec{GPUs: "2"}, "", ""},
		"too many processes":      {strict, protocol.SandboxSpec{PIDs: DefaultMostPIDs + 1}, "spec.pids", denied},
		"the allowed processes":   {strict, protocol.SandboxSpec{PIDs: DefaultMostPIDs}, "", ""},
		"no limits on the kernel": {blind, protocol.SandboxSpec{}, "spec.memory", unsupported},
		"a service with too many processes": {strict, services(standard, protocol.Service{PIDs: DefaultMostPIDs + 1}),
			"spec.optional_services.cache.pids", denied},
		"services with the default profiles": {strict, services(standard, hardened), "", ""},
		"a service with a forbidden profile": {noServices, services(standard, hardened),
			"spec.required_services.db.profile", denied},
		"an optional service with a forbidden profile": {noServices, services(hardened, standard),
			"spec.optional_services.cache.profile", denied},
		"a service whose default profile is forbidden": {noServices, services(protocol.Service{}, hardened),
			"spec.required_services.db.profile", denied},
		"services with an allowed profile": {noServices, services(hardened, hardened), "", ""},
	} {
		err := c.a.Check(&c.spec)
		e := protocol.AsError(err)
		if err == nil && c.field != "" || err != nil && (e.Field != c.field || e.Code != c.code) {
			t.Errorf("%s: got %v, want code %q for field %q", name, err, c.code, c.field)
		}
	}
	for name, cfg := range map[string]Config{"profile": {Profiles: []string{"root"}},
		"runtime": {Runtimes: []string{"kata"}}, "profile of services": {ServiceProfiles: []string{"root"}}} {
		if _, err := New(cfg, info); protocol.CodeOf(err) != protocol.InvalidArgument {
			t.Errorf("an unknown %s in the configuration: got %v, want invalid_argument", name, err)
		}
	}
}

func TestGPUsAreCountedByTheirDeviceFiles(t *testing.T) {
	dev := t.TempDir()
	for name, target := range map[string]string{"nvidia0": "/dev/null", "nvidia1": "/dev/zero", "nvidiactl": "/dev/null",
		"nvidia9": "/etc/hostname"} {
		if err := os.Symlink(target, filepath.Join(dev, name)); err != nil {
			t.Fatal(err)
		}
	}
	if n := countGPUs(dev); n != 2 {
		t.Errorf("counted %d GPUs, want 2", n)
	}
}
