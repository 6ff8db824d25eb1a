package main

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/spec"
)

// rendered is the JSON output of spec render.
type rendered struct {
	ID      string               `json:"id,omitempty"`
	Name    string               `json:"name,omitempty"`
	Spec    protocol.SandboxSpec `json:"spec"`
	Uploads []spec.LocalCopy     `json:"uploads,omitempty"` // entries of spec.copies without a digest
	Origins map[string]string    `json:"origins"`
}

func (cmds specCommands) renderCommand() *cobra.Command {
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
			d, err := flags.document(cmds.stdin, nil)
			if err != nil {
				return err
			}
			own := spec.Layer{Name: flags.origin(), Spec: d.Spec}
			if offline && worker != "" {
				return usage("--offline and --worker cannot be combined: the defaults of a worker come from the fleet")
			}
			if offline {
				return cmds.render(d, nil, own)
			}
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				defaults, err := c.Defaults(ctx)
				if err != nil {
					return err
				}
				tenant := spec.Layer{Name: "tenant " + c.Tenant(), Spec: *defaults}
				if worker == "" {
					return cmds.render(d, nil, tenant, own)
				}
				below, err := workerLayer(ctx, c, worker)
				if err != nil {
					return err
				}
				return cmds.render(d, &below, tenant, own)
			})
		},
	}
	flags.add(cmd)
	cmds.completeFlag(cmd, "image", imageRefs)
	cmd.Flags().BoolVar(&offline, "offline", false, "do not ask the fleet for the tenant's defaults; leave them out")
	cmd.Flags().StringVar(&worker, "worker", "", "print the spec as it would be on this worker")
	cmds.completeFlag(cmd, "worker", workerNames)
	return cmd
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

// render merges the layers; a later layer overrides the layers before it. It prints the spec that the fleet would
// accept or, if worker is not nil, that spec with the worker's defaults.
func (cmds specCommands) render(d *spec.Document, worker *spec.Layer, layers ...spec.Layer) error {
	merged := spec.Document{ID: d.ID, Name: d.Name, Copies: d.Copies}
	for _, layer := range layers {
		merged.Spec = spec.Merge(merged.Spec, layer.Spec)
	}
	if err := merged.Validate(); err != nil {
		return err
	}
	accepted, defaulted := spec.Resolve(merged.Spec)
	merged.Spec = accepted
	if worker != nil {
		merged.Spec = spec.OnWorker(accepted, defaulted, &worker.Spec)
		if err := merged.Validate(); err != nil {
			e := *protocol.AsError(err)
			e.Message = "with the defaults of " + worker.Name + ": " + e.Message
			return &e
		}
		layers = append([]spec.Layer{*worker}, layers...)
	}
	origins := spec.Origins(merged.Spec, layers...)
	return cmds.show(rendered{merged.ID, merged.Name, merged.Spec, merged.Copies, origins},
		func(w io.Writer) { fmt.Fprintf(w, "%s", merged.YAML(origins)) })
}
