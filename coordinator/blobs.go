package coordinator

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// keepBlobs keeps the uploaded trees of sandboxes that are still to be made. Uploads go by age, and
// a sandbox may wait for a host longer than that.
func (c *coordinator) keepBlobs(ctx context.Context, lease *jetstream.Lease) error {
	for {
		life, err := c.conn.BlobLife(ctx)
		if err == nil && life == 0 {
			return nil
		}
		if err != nil {
			c.log.Warn("how long uploads are kept is asked again", "error", err)
			life = time.Minute
		}
		// At once: the leader before this one may have been gone for most of a blob's life.
		for digest := range neededBlobs(append(c.projection.pendings(), c.projection.replaceable()...)) {
			if lease.Check() != nil {
				break
			}
			if err := c.conn.RenewBlob(ctx, digest); err != nil && ctx.Err() == nil {
				c.log.Warn("an upload that a sandbox waits with is renewed later", "digest", digest, "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(max(life/8, c.cfg.Timing.Scan)): // they are renewed from half of their life on
		}
	}
}

// unwantedLooks is how often the files of images are looked through while one grows old.
const unwantedLooks = 24

// dropImageFiles removes the files of images that nobody wants any more, now and from time to time.
func (c *coordinator) dropImageFiles(ctx context.Context, lease *jetstream.Lease) error {
	for {
		if lease.Check() == nil {
			if err := c.conn.RemoveUnwantedFiles(ctx, c.cfg.Timing.Unwanted); err != nil && ctx.Err() == nil {
				c.log.Warn("the files of images that nobody wants are removed later", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(c.cfg.Timing.Unwanted / unwantedLooks):
		}
	}
}

// neededBlobs are the digests of the trees that sandboxes will have copied into them, or would where their host is lost.
func neededBlobs(sandboxes []*protocol.Sandbox) map[string]bool {
	needed := map[string]bool{}
	for _, b := range sandboxes {
		again := b.State == protocol.StateReady && b.Spec.OnHostLoss == protocol.OnHostLossReplace
		if (b.State != protocol.StatePending || b.Resuming) && !again {
			continue
		}
		for _, tree := range b.Spec.Copies {
			needed[tree.Digest] = true
		}
	}
	return needed
}
