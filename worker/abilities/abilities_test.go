package abilities

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
)

func TestRefusesWhatTheHostCannotDoOrItsOperatorForbids(t *testing.T) {
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
		return protocol.SandboxSpec{RequiredServices: protocol.Services{"db": required}, OptionalServices: protocol.Services{"cache": optional}}
	}
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
		"no choices":                   {strict, protocol.SandboxSpec{Profile: "hardened"}, "", ""},
		"profile":                      {strict, protocol.SandboxSpec{Profile: "standard"}, "spec.profile", protocol.PermissionDenied},
		"allowed profile":              {loose, protocol.SandboxSpec{Profile: "standard"}, "", ""},
		"runtime":                      {strict, protocol.SandboxSpec{Runtime: "runc"}, "spec.runtime", protocol.PermissionDenied},
		"allowed runtime":              {loose, protocol.SandboxSpec{Runtime: "runsc"}, "", ""},
		"gpus without any":             {strict, protocol.SandboxSpec{GPUs: "all"}, "spec.gpus", protocol.FailedPrecondition},
		"more gpus than it has":        {loose, protocol.SandboxSpec{GPUs: "3"}, "spec.gpus", protocol.FailedPrecondition},
		"processes":                    {strict, protocol.SandboxSpec{PIDs: DefaultMostPIDs + 1}, "spec.pids", protocol.PermissionDenied},
		"as many processes as allowed": {strict, protocol.SandboxSpec{PIDs: DefaultMostPIDs}, "", ""},
		"processes of a service":       {strict, services(standard, protocol.Service{PIDs: DefaultMostPIDs + 1}), "spec.optional_services.cache.pids", protocol.PermissionDenied},
		"gpus":                         {loose, protocol.SandboxSpec{GPUs: "2"}, "", ""},
		"services":                     {strict, services(standard, hardened), "", ""},
		"a service":                    {noServices, services(standard, hardened), "spec.required_services.db.profile", protocol.PermissionDenied},
		"an optional service":          {noServices, services(hardened, standard), "spec.optional_services.cache.profile", protocol.PermissionDenied},
		"a service without a profile":  {noServices, services(protocol.Service{}, hardened), "spec.required_services.db.profile", protocol.PermissionDenied},
		"hardened services":            {noServices, services(hardened, hardened), "", ""},
		"memory without limits":        {blind, protocol.SandboxSpec{}, "spec.memory", protocol.FailedPrecondition},
	} {
		err := c.a.Check(&c.spec)
		if e := protocol.AsError(err); err == nil && c.field != "" || err != nil && (e.Field != c.field || e.Code != c.code) {
			t.Errorf("%s: got %v, want %s in %q", name, err, c.code, c.field)
		}
	}
	for name, cfg := range map[string]Config{"profile": {Profiles: []string{"root"}}, "runtime": {Runtimes: []string{"kata"}}, "profile of services": {ServiceProfiles: []string{"root"}}} {
		if _, err := New(cfg, info); protocol.CodeOf(err) != protocol.InvalidArgument {
			t.Errorf("accepts an unknown %s in the configuration: %v", name, err)
		}
	}
}

func TestGPUsAreCountedByTheirDeviceFiles(t *testing.T) {
	dev := t.TempDir()
	for name, target := range map[string]string{"nvidia0": "/dev/null", "nvidia1": "/dev/zero", "nvidiactl": "/dev/null", "nvidia9": "/etc/hostname"} {
		if err := os.Symlink(target, filepath.Join(dev, name)); err != nil {
			t.Fatal(err)
		}
	}
	if n := countGPUs(dev); n != 2 {
		t.Errorf("counted %d GPUs, want 2", n)
	}
}
