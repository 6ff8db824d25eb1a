package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/spec"
)

// serviceRows returns the rows about the services of a sandbox.
func serviceRows(s *protocol.Sandbox) [][]any {
	names, required := s.Spec.Services()
	slices.Sort(names)
	var rows [][]any
	for _, name := range names {
		v, _ := s.Spec.Service(name)
		status := s.Services[name]
		text := fmt.Sprintf("%s, %s, image %s", name, status.State, v.Image)
		if required[name] {
			text += ", required"
		}
		if v.Profile == protocol.ProfileHardened {
			text += ", hardened"
		}
		if status.Reason != "" {
			text += ", " + status.Reason
		}
		rows = append(rows, []any{"service", text})
	}
	return rows
}

// serviceFlags are the flags that add services to a sandbox. Only a spec file can set other properties of a service.
type serviceFlags struct{ required, optional, env []string }

func (f *serviceFlags) add(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.required, "service", nil,
		"run a service `NAME=IMAGE` in its own container, reachable by its name; the sandbox becomes ready only after "+
			"the service; replaces the file's service of that name; may be repeated")
	flags.StringArrayVar(&f.optional, "optional-service", nil,
		"run a service `NAME=IMAGE` that the sandbox does not wait for; may be repeated")
	flags.StringArrayVar(&f.env, "service-env", nil,
		"environment variable K=V of service NAME, as `NAME.K=V`, also for services in the file; may be repeated")
}

// apply sets the given services.
func (f *serviceFlags) apply(s *protocol.SandboxSpec) error {
	if err := addServices("--service", &s.RequiredServices, f.required); err != nil {
		return err
	}
	return addServices("--optional-service", &s.OptionalServices, f.optional)
}

func addServices(flag string, into *protocol.Services, args []string) error {
	for _, arg := range args {
		name, image, ok := strings.Cut(arg, "=")
		if !ok || name == "" || image == "" {
			return usage("%s: want NAME=IMAGE, got %.200q", flag, arg)
		}
		if _, twice := (*into)[name]; twice {
			return usage("%s: service %.80s is given twice", flag, name)
		}
		if *into == nil {
			*into = protocol.Services{}
		}
		(*into)[name] = protocol.Service{Image: image}
	}
	return nil
}

// addEnv adds environment variables to the services of a document.
func (f *serviceFlags) addEnv(d *spec.Document) error {
	for _, arg := range f.env {
		name, pair, dotted := strings.Cut(arg, ".")
		key, value, ok := strings.Cut(pair, "=")
		if !ok || !dotted || name == "" || key == "" {
			return usage("--service-env: want NAME.K=V, got %.80q", arg)
		}
		of := d.Spec.RequiredServices
		if _, required := of[name]; !required {
			of = d.Spec.OptionalServices
		}
		v, there := of[name]
		if !there {
			return usage("--service-env: there is no service %.80s", name)
		}
		if v.Env == nil {
			v.Env = map[string]string{}
		}
		v.Env[key] = value
		of[name] = v
	}
	return nil
}
