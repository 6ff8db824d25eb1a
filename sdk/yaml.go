package sdk

import (
	"context"

	"github.com/boxfleet/boxfleet/spec"
)

// specFromYAML returns the spec of a create with [WithYAML]: the document with parameters merged over it. It uploads
// the files of this machine that the document copies. It takes the id and the name from the document unless options set
// them.
func specFromYAML(ctx context.Context, c *Client, o *settings, parameters SandboxSpec) (SandboxSpec, error) {
	d, err := spec.Parse(o.yaml, spec.Options{Env: o.env})
	if err != nil {
		return parameters, err
	}
	d.Override(parameters)
	PlaceCopies(d)
	if err := d.Validate(); err != nil {
		return parameters, err
	}
	if d.ID != "" && !o.idGiven {
		o.id = &d.ID
	}
	if d.Name != "" && o.name == nil {
		o.name = &d.Name
	}
	for _, l := range d.Copies {
		entry := &d.Spec.Copies[l.Index]
		copied, err := c.Upload(ctx, l.Source, entry.Target, WithExclude(l.Exclude...), WithOwner(entry.Owner))
		if err != nil {
			return parameters, err
		}
		entry.Digest, entry.Size, entry.Target = copied.Digest, copied.Size, copied.Target
	}
	return c.SealDocument(ctx, d)
}
