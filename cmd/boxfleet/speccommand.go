package main

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v4"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/spec"
)

func (p *program) specCommand() *cobra.Command {
	return group("spec", "Write and check sandbox specs", p.specValidate(), p.specRender(),
		p.specText("example", "Print an example spec with every field", spec.Example),
		p.specText("schema", "Print the JSON Schema of specs for editors", spec.Schema))
}

func (p *program) specText(name, short string, text func() []byte) *cobra.Command {
	return &cobra.Command{
		Use: name, Short: short, Args: takes(),
		Example: "  boxfleet spec " + name,
		RunE: func(*cobra.Command, []string) error {
			var value any
			if err := yaml.Unmarshal(text(), &value); err != nil {
				return protocol.Errorf(protocol.Internal, "", "parse the built-in document: %v", err)
			}
			return p.show(value, func(w io.Writer) { fmt.Fprintf(w, "%s", text()) })
		},
	}
}

func (p *program) specValidate() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "validate -f FILE", Short: "Check a file of one or more specs without a fleet", Args: takes(),
		Long: "Check a file of one or more specs without a fleet. The check covers everything that does not depend " +
			"on a host\nor on the tenant's defaults. Variables come from the environment.",
		Example: "  boxfleet spec validate -f spec.yaml",
		RunE: func(*cobra.Command, []string) error {
			documents, err := readSpecs(file, p.stdin)
			if err != nil {
				return err
			}
			ids, names, wrong := make([]string, len(documents)), make([]string, len(documents)), make([]error, len(documents))
			for i, d := range documents {
				ids[i], names[i], wrong[i] = d.ID, d.Name, check(d)
			}
			if err := spec.Join(wrong...); err != nil {
				return err
			}
			return p.show(map[string]any{"file": file, "documents": len(documents), "ids": ids, "names": names},
				func(w io.Writer) {
					for i, d := range documents {
						fmt.Fprintf(w, "%s: document %d is valid", specOptions(file).Name, i+1)
						if called(d) != "" {
							fmt.Fprintf(w, ": %s", called(d))
						}
						fmt.Fprintln(w)
					}
				})
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "YAML `file`, - for stdin")
	return cmd
}

// rendered is the JSON output of spec render.
type rendered struct {
	ID      string               `json:"id,omitempty"`
	Name    string               `json:"name,omitempty"`
	Spec    protocol.SandboxSpec `json:"spec"`
	Uploads []spec.LocalCopy     `json:"uploads,omitempty"` // entries of spec.copies without a digest
	Origins map[string]string    `json:"origins"`
}

func (p *program) specRender() *cobra.Command {
	var flags specFlags
	var offline bool
	var worker string
	cmd := &cobra.Command{
		Use: "render [-f FILE] [flags]", Short: "Print a spec with all defaults and where each field comes from",
		Args: takes(),
		Long: `Print a spec as a create would store it, with the origin of each field: flags override the file, which
overrides the tenant's defaults, which override the built-in defaults. With --worker, print it as it would be on
that worker, with the worker's defaults. Nothing is created or uploaded.`,
		Example: `  boxfleet spec render -f spec.yaml --memory 1GiB
  boxfleet spec render -f spec.yaml --worker build-7
  boxfleet spec render --image boxfleet/demo:busybox --offline -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := flags.document(p.stdin, nil)
			if err != nil {
				return err
			}
			own := spec.Layer{Name: flags.origin(), Spec: d.Spec}
			if offline && worker != "" {
				return usage("--offline and --worker cannot be combined: the defaults of a worker come from the fleet")
			}
			if offline {
				return p.render(d, nil, own)
			}
			return p.client(cmd, func(ctx context.Context, c *sdk.Client) error {
				defaults, err := c.Defaults(ctx)
				if err != nil {
					return err
				}
				tenant := spec.Layer{Name: "tenant " + p.config.Tenant, Spec: *defaults}
				if worker == "" {
					return p.render(d, nil, tenant, own)
				}
				below, err := workerLayer(ctx, c, worker)
				if err != nil {
					return err
				}
				return p.render(d, &below, tenant, own)
			})
		},
	}
	flags.add(cmd)
	p.completeFlag(cmd, "image", imageRefs)
	cmd.Flags().BoolVar(&offline, "offline", false, "do not ask a fleet for the tenant's defaults")
	cmd.Flags().StringVar(&worker, "worker", "", "print the spec as it would be on this worker")
	p.completeFlag(cmd, "worker", workerNames)
	return cmd
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

// workerLayer returns the defaults of a worker.
func workerLayer(ctx context.Context, c *sdk.Client, name string) (spec.Layer, error) {
	layer := spec.Layer{Name: "worker " + name}
	hosts, err := sdk.ReadAll(c.Hosts().List(ctx))
	if err != nil {
		return layer, err
	}
	i := slices.IndexFunc(hosts, func(h *protocol.Host) bool { return h.Worker == name })
	if i < 0 {
		return layer, &protocol.Error{Code: protocol.NotFound, Field: "--worker",
			Message: fmt.Sprintf("there is no worker %.80s", name)}
	}
	if hosts[i].Defaults != nil {
		layer.Spec = *hosts[i].Defaults
	}
	return layer, nil
}

// render merges the layers, lowest first, and prints the resulting spec: as it would be accepted, or as it would be on
// a worker.
func (p *program) render(d *spec.Document, worker *spec.Layer, layers ...spec.Layer) error {
	whole := spec.Document{ID: d.ID, Name: d.Name, Copies: d.Copies}
	for _, layer := range layers {
		whole.Spec = spec.Merge(whole.Spec, layer.Spec)
	}
	if err := whole.Validate(); err != nil {
		return err
	}
	accepted, builtIn := spec.Resolve(whole.Spec)
	whole.Spec = accepted
	if worker != nil {
		whole.Spec = spec.OnWorker(accepted, builtIn, &worker.Spec)
		if err := whole.Validate(); err != nil {
			e := *protocol.AsError(err)
			e.Message = "with the defaults of " + worker.Name + ": " + e.Message
			return &e
		}
		layers = append([]spec.Layer{*worker}, layers...)
	}
	origins := spec.Origins(whole.Spec, layers...)
	return p.show(rendered{whole.ID, whole.Name, whole.Spec, whole.Copies, origins},
		func(w io.Writer) { fmt.Fprintf(w, "%s", whole.YAML(origins)) })
}
