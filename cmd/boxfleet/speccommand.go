package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/spec"
)

func (p *program) specCommand() *cobra.Command {
	return group("spec", "Write and check specs of sandboxes", p.specValidate(), p.specRender(),
		p.specText("example", "Print a spec with every field", spec.Example), p.specText("schema", "Print the JSON Schema of specs, for editors", spec.Schema))
}

func (p *program) specText(name, short string, text func() []byte) *cobra.Command {
	return &cobra.Command{
		Use: name, Short: short, Args: takes(),
		Example: "  boxfleet spec " + name,
		RunE: func(*cobra.Command, []string) error {
			_, err := p.stdout.Write(text())
			return err
		},
	}
}

func (p *program) specValidate() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "validate -f FILE", Short: "Check a file of one or more specs, without a fleet", Args: takes(),
		Long:    "Check a file of one or more specs, without a fleet: everything that can be known without a host and\nwithout the defaults of the tenant. Variables come from the environment.",
		Example: "  boxfleet spec validate -f spec.yaml",
		RunE: func(*cobra.Command, []string) error {
			documents, err := readSpecs(file, p.stdin)
			if err != nil {
				return err
			}
			ids := make([]string, len(documents))
			for i, d := range documents {
				if err := d.Validate(); err != nil {
					return err
				}
				ids[i] = d.ID
			}
			return p.show(map[string]any{"file": file, "documents": len(documents), "ids": ids}, func(w io.Writer) {
				for i, id := range ids {
					fmt.Fprintf(w, "%s: document %d holds", specOptions(file).Name, i+1)
					if id != "" {
						fmt.Fprintf(w, ": %s", id)
					}
					fmt.Fprintln(w)
				}
			})
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "YAML `file`, - for stdin")
	return cmd
}

// rendered is a spec with everything that will be done, and where it comes from.
type rendered struct {
	ID      string               `json:"id,omitempty"`
	Spec    protocol.SandboxSpec `json:"spec"`
	Uploads []spec.LocalCopy     `json:"uploads,omitempty"` // entries of spec.copies without a digest
	Origins map[string]string    `json:"origins"`
}

func (p *program) specRender() *cobra.Command {
	var flags specFlags
	var offline bool
	cmd := &cobra.Command{
		Use: "render [-f FILE] [flags]", Short: "Print a spec with every default, and where each field comes from", Args: takes(),
		Long: "Print a spec as a create would keep it: the file, the flags over it, the defaults of the tenant and the\nbuilt-in ones below, and behind each field where it comes from. Nothing is made or uploaded.",
		Example: `  boxfleet spec render -f spec.yaml --memory 1GiB
  boxfleet spec render --image boxfleet/demo:busybox --offline -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := flags.document(p.stdin, nil)
			if err != nil {
				return err
			}
			if offline {
				return p.render(d, flags.origin(), protocol.SandboxSpec{})
			}
			return p.client(cmd, func(ctx context.Context, c *sdk.Client) error {
				defaults, err := c.Defaults(ctx)
				if err != nil {
					return err
				}
				return p.render(d, flags.origin(), *defaults)
			})
		},
	}
	flags.add(cmd)
	cmd.Flags().BoolVar(&offline, "offline", false, "do not ask a fleet for the defaults of the tenant")
	return cmd
}

// origin is what people call what the file and the flags say.
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

func (p *program) render(d *spec.Document, origin string, defaults protocol.SandboxSpec) error {
	whole := spec.Document{ID: d.ID, Spec: spec.Merge(defaults, d.Spec), Copies: d.Copies}
	if err := whole.Validate(); err != nil {
		return err
	}
	whole.Spec.Resolve()
	origins := spec.Origins(whole.Spec, spec.Layer{Name: "tenant " + p.config.Tenant, Spec: defaults}, spec.Layer{Name: origin, Spec: d.Spec})
	return p.show(rendered{whole.ID, whole.Spec, whole.Copies, origins}, func(w io.Writer) { fmt.Fprintf(w, "%s", whole.YAML(origins)) })
}
