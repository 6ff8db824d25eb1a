package main

import (
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/spec"
)

// secretFlags are the flags for secrets and sensitive variables of a sandbox or an exec.
type secretFlags struct{ secrets, sensitive []string }

func (f *secretFlags) add(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.secrets, "secret", nil,
		"secret of the tenant, as a file below /run/secrets or a variable: "+
			"`NAME[,file=PATH|,env=VARIABLE][,version=N][,mask]`; may be repeated")
	flags.StringArrayVar(&f.sensitive, "sensitive-env", nil,
		"environment variable `NAME[=@FILE]` with the value of this client's variable NAME, or the content of FILE; the "+
			"value is sealed, and reads show ***; may be repeated")
}

// uses returns the secrets that the flags name.
func (f *secretFlags) uses() (uses []protocol.SecretUse, err error) {
	for _, arg := range f.secrets {
		u, err := spec.ParseSecret(arg)
		if err != nil {
			return nil, usage("--secret: %v", err)
		}
		uses = append(uses, u)
	}
	return uses, nil
}

// values returns the values of the sensitive variables. No error shows a value.
func (f *secretFlags) values() (map[string]string, error) {
	values := map[string]string{}
	for _, arg := range f.sensitive {
		name, from, given := strings.Cut(arg, "=")
		file, isFile := strings.CutPrefix(from, "@")
		if _, twice := values[name]; twice {
			return nil, usage("--sensitive-env: %.80s is given twice", name)
		}
		switch {
		case name == "" || given && !isFile:
			return nil, usage("--sensitive-env: want NAME or NAME=@FILE; other users of this machine could see a value")
		case given:
			content, err := os.ReadFile(file)
			if err != nil {
				return nil, usage("--sensitive-env: %v", err)
			}
			values[name] = string(content)
		default:
			value, set := os.LookupEnv(name)
			if !set {
				return nil, usage("--sensitive-env: the environment has no variable %.80s", name)
			}
			values[name] = value
		}
	}
	return values, nil
}
