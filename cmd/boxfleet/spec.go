package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// specFlags are the flags that say what a sandbox is made of.
type specFlags struct {
	file, image, user, cwd, memory, idleTTL, onHostLoss string
	cpu                                                 float64
	pids                                                int64
	env, labels, mounts, copies                         []string

	container containerFlags
}

func (f *specFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVarP(&f.file, "file", "f", "", "YAML `file` with the spec, - for stdin; flags go over it")
	flags.StringVar(&f.image, "image", "", "image to run")
	flags.StringArrayVar(&f.env, "env", nil, "environment variable `K=V`; may be repeated")
	flags.StringArrayVar(&f.labels, "label", nil, "label `K=V`; may be repeated")
	flags.Float64Var(&f.cpu, "cpu", 0, "cores (default 1)")
	flags.StringVar(&f.memory, "memory", "", "memory, such as 512m or 4GiB (default 512MiB)")
	flags.Int64Var(&f.pids, "pids", 0, "processes and threads (default 4096)")
	flags.StringVar(&f.user, "user", "", "user, uid, or either with :group (default: the image's)")
	flags.StringVar(&f.cwd, "cwd", "", "working directory (default: the image's)")
	f.container.add(flags)
	flags.StringVar(&f.idleTTL, "idle-ttl", "", "stop after so `long` without an exec (default: never)")
	flags.StringVar(&f.onHostLoss, "on-host-loss", "", "wait or fail (default wait)")
	flags.StringArrayVar(&f.mounts, "mount", nil, "mount `HOST:TARGET` of the host that runs the sandbox, read-only; may be repeated")
	flags.StringArrayVar(&f.copies, "copy", nil, "copy the local directory or file `PATH:TARGET` in; may be repeated")
}

// spec puts the spec together: the file, and the flags over it. Nothing is uploaded yet.
func (f *specFlags) spec(cmd *cobra.Command, stdin io.Reader, command []string) (*protocol.SandboxSpec, error) {
	spec := &protocol.SandboxSpec{}
	if f.file != "" {
		if err := readSpec(f.file, stdin, spec); err != nil {
			return nil, err
		}
	}
	set := func(field *string, value string) {
		if value != "" {
			*field = value
		}
	}
	set(&spec.Image, f.image)
	set(&spec.User, f.user)
	set(&spec.Cwd, f.cwd)
	set(&spec.OnHostLoss, f.onHostLoss)
	if cmd.Flags().Changed("cpu") {
		spec.CPU = f.cpu
	}
	if cmd.Flags().Changed("pids") {
		spec.PIDs = f.pids
	}
	if len(command) > 0 {
		spec.Command = command
	}
	var err error
	if f.memory != "" {
		if spec.Memory, err = protocol.ParseBytes(f.memory); err != nil {
			return nil, usage("--memory: %v", err)
		}
	}
	if f.idleTTL != "" {
		if err := spec.IdleTTL.UnmarshalText([]byte(f.idleTTL)); err != nil {
			return nil, usage("--idle-ttl: %v", err)
		}
	}
	if err := addPairs("--env", &spec.Env, f.env); err != nil {
		return nil, err
	}
	if err := addPairs("--label", &spec.Labels, f.labels); err != nil {
		return nil, err
	}
	if err := f.container.apply(spec); err != nil {
		return nil, err
	}
	for _, m := range f.mounts {
		mount, err := parseMount(m)
		if err != nil {
			return nil, err
		}
		spec.Mounts = append(spec.Mounts, mount)
	}
	return spec, spec.Validate()
}

// upload uploads the trees of --copy and adds them to the spec.
func (f *specFlags) upload(ctx context.Context, c *sdk.Client, spec *protocol.SandboxSpec) error {
	for _, arg := range f.copies {
		source, target, ok := strings.Cut(arg, ":")
		if !ok || source == "" || target == "" {
			return usage("--copy: want PATH:TARGET, got %.200q", arg)
		}
		copied, err := c.CopyTree(ctx, source, target)
		if err != nil {
			return err
		}
		spec.Copies = append(spec.Copies, copied)
	}
	return nil
}

// parseMount reads HOST:TARGET, with an optional :ro. Only read-only mounts are supported.
func parseMount(arg string) (protocol.Mount, error) {
	parts := strings.Split(strings.TrimSuffix(arg, ":ro"), ":")
	if len(parts) != 2 || parts[0] == "" || parts[1] == "" {
		return protocol.Mount{}, usage("--mount: want HOST:TARGET or HOST:TARGET:ro, got %.200q", arg)
	}
	source, err := filepath.Abs(parts[0])
	if err != nil {
		return protocol.Mount{}, usage("--mount: %v", err)
	}
	return protocol.Mount{Source: source, Target: parts[1]}, nil
}

// addPairs adds K=V arguments to a map.
func addPairs(flag string, into *map[string]string, args []string) error {
	for _, arg := range args {
		k, v, ok := strings.Cut(arg, "=")
		if !ok {
			return usage("%s: want K=V, got %.80q", flag, arg)
		}
		if *into == nil {
			*into = map[string]string{}
		}
		(*into)[k] = v
	}
	return nil
}

// readSpec reads one YAML document. A field that is not known is refused by name and line.
func readSpec(file string, stdin io.Reader, spec *protocol.SandboxSpec) error {
	data, err := readAll(file, stdin)
	if err != nil {
		return usage("read the spec: %v", err)
	}
	if len(data) > protocol.MaxSpecBytes {
		return usage("%s: has more than %d bytes", file, protocol.MaxSpecBytes)
	}
	var document yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&document); err != nil && !errors.Is(err, io.EOF) {
		return usage("%s: %v", file, err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return usage("%s: holds more than one document", file)
	}
	if len(document.Content) == 0 {
		return nil
	}
	if err := fill(document.Content[0], reflect.ValueOf(spec).Elem(), ""); err != nil {
		return usage("%s: %v", file, err)
	}
	return nil
}

func readAll(file string, stdin io.Reader) ([]byte, error) {
	if file == "-" {
		return io.ReadAll(io.LimitReader(stdin, protocol.MaxSpecBytes+1))
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, protocol.MaxSpecBytes+1))
}
