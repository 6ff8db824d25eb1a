package main

import (
	"strings"

	"github.com/spf13/pflag"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/spec"
)

// serviceFlags are the flags that give a sandbox services. What else there is to say of a service is
// said in a file.
type serviceFlags struct{ required, optional, env []string }

func (f *serviceFlags) add(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.required, "service", nil,
		"run a service `NAME=IMAGE` beside it, reached by its name; it is ready when the service is; replaces the file's service of that name; may be repeated")
	flags.StringArrayVar(&f.optional, "optional-service", nil,
		"run a service `NAME=IMAGE` beside it that blocks nothing; may be repeated")
	flags.StringArrayVar(&f.env, "service-env", nil,
		"environment variable `NAME.K=V` of the service NAME, also of one in the file; may be repeated")
}

// apply sets the services that were given.
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
			return usage("%s: %.80s is there twice", flag, name)
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
