package main

import (
	"context"

	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/spec"
)

// upload uploads the local files of a spec and shows the progress.
func (cl *client) upload(ctx context.Context, c *sdk.Client, d *spec.Document) error {
	tell, done := cl.progressing("uploading")
	defer done()
	return upload(ctx, c, d, tell)
}

func upload(ctx context.Context, c *sdk.Client, d *spec.Document, tell func(what string)) error {
	for _, l := range d.Copies {
		tell("reading " + l.Source)
		to := d.Spec.Copies[l.Index]
		copied, err := c.Upload(ctx, l.Source, to.Target, sdk.WithExclude(l.Exclude...), sdk.WithOwner(to.Owner),
			sdk.WithService(to.Service),
			sdk.WithProgress(func(sent, total int64) { tell("uploading " + l.Source + " " + bar(sent, total)) }))
		if err != nil {
			return err
		}
		entry := &d.Spec.Copies[l.Index]
		entry.Digest, entry.Size, entry.Target = copied.Digest, copied.Size, copied.Target
	}
	return nil
}
