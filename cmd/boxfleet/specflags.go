package main

import (
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/spec"
	"github.com/boxfleet/boxfleet/worker/hostfiles"
)

// specFlags are the flags that set the spec of a sandbox.
type specFlags struct {
	file, name, image, user, cwd, memory, idleTTL, onHostLoss string
	cpu                                                       float64
	pids                                                      int64
	env, labels, mounts, copies, copyExclude, tools           []string
	placement                                                 []string
	copyOwner                                                 string
	secret                                                    secretFlags

	container containerFlags
	network   networkFlags
	services  serviceFlags

	all *pflag.FlagSet
}

func (f *specFlags) add(cmd *cobra.Command) {
	flags := pflag.NewFlagSet("spec", pflag.ContinueOnError)
	flags.StringVarP(&f.file, "file", "f", "", "YAML `file` with the spec, - for stdin; flags override it")
	flags.StringVar(&f.name, "name", "",
		"name of the sandbox; only one pending, ready or stopped sandbox of a tenant can have a given name "+
			"(default: the file's, else none)")
	flags.StringVar(&f.image, "image", "", "image of the sandbox")
	flags.StringArrayVarP(&f.env, "env", "e", nil, "environment variable `K=V`; may be repeated")
	f.secret.add(flags)
	flags.StringArrayVar(&f.labels, "label", nil, "label `K=V`; may be repeated")
	flags.Float64Var(&f.cpu, "cpu", 0, "CPU cores (default 1)")
	flags.StringVar(&f.memory, "memory", "", "memory, such as 512m or 4GiB (default 512MiB)")
	flags.Int64Var(&f.pids, "pids", 0, "maximum number of processes and threads (default 2048)")
	flags.StringVar(&f.user, "user", "", "user, uid, or either with :group (default: the image's)")
	flags.StringVar(&f.cwd, "cwd", "", "working directory (default: the image's)")
	f.container.add(flags)
	f.network.add(flags)
	f.services.add(flags)
	flags.StringVar(&f.idleTTL, "idle-ttl", "", "stop the sandbox after this `duration` without an exec (default: never)")
	flags.StringVar(&f.onHostLoss, "on-host-loss", "",
		"what to do when the host is lost: wait, fail or replace (default wait)")
	flags.StringArrayVar(&f.placement, "placement", nil,
		"only on hosts whose labels match `KEY=VALUE`, KEY!=VALUE or \"KEY in (VALUE, VALUE)\"; may be repeated, all "+
			"must match")
	flags.StringArrayVar(&f.mounts, "mount", nil,
		"mount `HOST:TARGET[:ro|rw]` from the host that runs the sandbox, read-only by default; may be repeated")
	flags.StringArrayVar(&f.copies, "copy", nil,
		"copy a local directory or file into the sandbox, or into a service's container, as `PATH:[SERVICE:]TARGET`; if "+
			"TARGET ends with a slash, a file is copied into that directory; may be repeated")
	flags.StringSliceVar(&f.tools, "tool", nil,
		"provide a built-in `tool` from the host that runs the sandbox: claude, codex, opencode, git, uv, npm, apt; may "+
			"be repeated")
	flags.StringArrayVar(&f.copyExclude, "copy-exclude", nil,
		"`pattern` of files that --copy excludes, as in .gitignore; may be repeated")
	flags.StringVar(&f.copyOwner, "copy-owner", "",
		"`UID[:GID]` that owns the files that --copy creates (default: their local owner)")
	f.all = flags
	cmd.Flags().AddFlagSet(flags)
	completeValues(cmd, "on-host-loss", protocol.OnHostLossWait, protocol.OnHostLossFail, protocol.OnHostLossReplace)
	completeValues(cmd, "profile", protocol.ProfileHardened, protocol.ProfileStandard)
	completeValues(cmd, "pull", protocol.PullMissing, protocol.PullAlways, protocol.PullNever)
	completeValues(cmd, "tool", hostfiles.ToolNames()...)
}

// document returns the document of the file. Flags override fields of the document. No file is uploaded.
func (f *specFlags) document(stdin io.Reader, command []string) (*spec.Document, error) {
	d := &spec.Document{}
	if f.file != "" {
		var err error
		if d, err = readSpec(f.file, stdin); err != nil {
			return nil, err
		}
	}
	given, err := f.given(command, d.Spec.OnDelete)
	if err != nil {
		return nil, err
	}
	f.all.VisitAll(func(flag *pflag.Flag) {
		if flag.Changed {
			d.Clear(strings.TrimPrefix(strings.ReplaceAll(flag.Name, "-", "_"), "stop_"))
		}
	})
	d.Override(*given)
	values, err := f.secret.values()
	if err != nil {
		return nil, err
	}
	for name, value := range values {
		if err := d.AddSensitive("--sensitive-env", name, value); err != nil {
			return nil, err
		}
	}
	if f.all.Changed("name") {
		if strings.HasPrefix(f.name, "-") { // the value is probably the next flag
			return nil, usage("--name: must not begin with a dash, got %.40q; the name may be missing", f.name)
		}
		if err := protocol.ValidateName("--name", f.name); err != nil {
			return nil, err
		}
		d.Name = f.name
	}
	if err := f.services.addEnv(d); err != nil {
		return nil, err
	}
	if err := f.addCopies(d); err != nil {
		return nil, err
	}
	if f.file == "" && d.Spec.Image == "" {
		return nil, usage("--image is missing; give --image, or a --file with spec.image")
	}
	return d, check(d)
}

// addCopies adds the --copy flags to a document.
func (f *specFlags) addCopies(d *spec.Document) error {
	for _, name := range []string{"copy-exclude", "copy-owner"} {
		if f.all.Changed(name) && len(f.copies) == 0 {
			return usage("--%s needs --copy", name)
		}
	}
	for _, arg := range f.copies {
		source, to, err := spec.ReadCopy(arg)
		if err != nil {
			return usage("--copy: %v", err)
		}
		to.Owner = f.copyOwner
		d.AddCopy(source, to, f.copyExclude...)
	}
	return nil
}

// given returns a spec with the fields that the flags set. onDelete is the on_delete command of the spec file, if any.
func (f *specFlags) given(command []string, onDelete *protocol.Hook) (*protocol.SandboxSpec, error) {
	s := &protocol.SandboxSpec{Image: f.image, User: f.user, Cwd: f.cwd, OnHostLoss: f.onHostLoss, Placement: f.placement,
		CPU: f.cpu, PIDs: f.pids, Command: command, Tools: f.tools}
	err := size("--memory", &s.Memory, f.memory)
	if err != nil {
		return nil, err
	}
	if f.idleTTL != "" {
		if err := s.IdleTTL.UnmarshalText([]byte(f.idleTTL)); err != nil {
			return nil, usage("--idle-ttl: %v", err)
		}
	}
	if err := addPairs("--env", &s.Env, f.env); err != nil {
		return nil, err
	}
	if s.Secrets, err = f.secret.uses(); err != nil {
		return nil, err
	}
	if err := addPairs("--label", &s.Labels, f.labels); err != nil {
		return nil, err
	}
	if err := f.container.apply(s, onDelete); err != nil {
		return nil, err
	}
	if err := f.network.apply(s); err != nil {
		return nil, err
	}
	if err := f.services.apply(s); err != nil {
		return nil, err
	}
	for _, m := range f.mounts {
		mount, err := spec.ParseMount(m)
		if err != nil {
			return nil, usage("--mount: %v", err)
		}
		s.Mounts = append(s.Mounts, mount)
	}
	return s, nil
}

// origin names the source of the fields that the file and the flags set.
func (f *specFlags) origin() string {
	flags := 0
	f.all.VisitAll(func(flag *pflag.Flag) {
		if flag.Changed && flag.Name != "file" {
			flags++
		}
	})
	switch {
	case f.file == "":
		return "flags"
	case flags == 0:
		return specOptions(f.file).Name
	}
	return specOptions(f.file).Name + " and flags"
}
