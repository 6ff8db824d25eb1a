package sdk

import (
	"context"
	"slices"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/spec"
)

// fromYAML is the spec of a call that gives YAML, with parameters over it. What it has of this
// machine is uploaded; the document's id goes to the call.
func (c *Client) fromYAML(ctx context.Context, call *call, parameters protocol.SandboxSpec) (protocol.SandboxSpec, error) {
	d, err := spec.Parse(call.yaml, spec.Options{Env: call.env})
	if err != nil {
		return parameters, err
	}
	d.Override(parameters)
	PlaceCopies(d)
	if err := d.Validate(); err != nil {
		return parameters, err
	}
	if d.ID != "" && !slices.Contains(call.given, "WithID") {
		call.id = d.ID
	}
	if d.Name != "" && !slices.Contains(call.given, "WithName") {
		call.name = d.Name
	}
	for _, l := range d.Copies {
		entry := &d.Spec.Copies[l.Index]
		copied, err := c.Upload(ctx, Tree{Source: l.Source, Target: entry.Target, Exclude: l.Exclude, Owner: entry.Owner})
		if err != nil {
			return parameters, err
		}
		entry.Digest, entry.Size, entry.Target = copied.Digest, copied.Size, copied.Target
	}
	return d.Spec, nil
}
