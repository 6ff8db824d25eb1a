package coordinator

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

// keepBlobs renews the uploaded trees that sandboxes still need. Uploads expire, and a sandbox may wait for a host for
// longer than an upload is kept.
func (l *leader) keepBlobs(ctx context.Context) error {
	for {
		life, err := l.conn.BlobLife(ctx)
		if err == nil && life == 0 {
			return nil
		}
		if err != nil {
			l.log.Warn("could not read how long uploads are kept; trying again soon", "error", err)
			life = time.Minute // assume a short life
		}
		// Renew without an initial pause: the previous leader may have been gone for most of a blob's life.
		read, work := l.projection.read, l.projection.work
		for upload := range neededBlobs(append(work.pendingSandboxes(), read.replaceableWithCopies()...)) {
			if l.lease.Check() != nil {
				break
			}
			if err := l.conn.RenewBlob(ctx, upload.tenant, upload.digest); err != nil && ctx.Err() == nil {
				l.log.Warn("could not renew an upload that a sandbox needs; trying again later",
					"tenant", upload.tenant, "digest", upload.digest, "error", err)
			}
		}
		if !backoff.Sleep(ctx, max(life/8, l.cfg.Timing.Scan)) { // uploads are renewed in the second half of their life
			return ctx.Err()
		}
	}
}

// imageFileChecks is how many times the leader looks for files of unwanted images within Timing.Unwanted, which is how
// long such a file is kept.
const imageFileChecks = 24

// removeImageFiles removes the files of imported images that are no longer wanted.
func (l *leader) removeImageFiles(ctx context.Context) error {
	for {
		if l.lease.Check() == nil {
			if err := l.conn.RemoveUnwantedFiles(ctx, l.cfg.Timing.Unwanted); err != nil && ctx.Err() == nil {
				l.log.Warn("could not remove the files of unwanted images; trying again later", "error", err)
			}
		}
		if !backoff.Sleep(ctx, l.cfg.Timing.Unwanted/imageFileChecks) {
			return ctx.Err()
		}
	}
}

// partsChecks is how many times the leader looks for interrupted uploads within Timing.Parts.
const partsChecks = 4

// removeUploadParts removes the chunks of uploads that ended because their coordinator died.
func (l *leader) removeUploadParts(ctx context.Context) error {
	for {
		if l.lease.Check() == nil {
			if err := l.conn.RemoveUploadParts(ctx, l.cfg.Timing.Parts); err != nil && ctx.Err() == nil {
				l.log.Warn("could not remove the chunks of interrupted uploads; trying again later", "error", err)
			}
		}
		if !backoff.Sleep(ctx, l.cfg.Timing.Parts/partsChecks) {
			return ctx.Err()
		}
	}
}

// uploadKey identifies an uploaded tree.
type uploadKey struct{ tenant, digest string }

// neededBlobs returns the trees that sandboxes still need. A pending sandbox needs its trees for its container. A
// sandbox with on_host_loss replace needs its trees again if its host is lost.
func neededBlobs(sandboxes []*protocol.Sandbox) map[uploadKey]bool {
	needed := map[uploadKey]bool{}
	for _, b := range sandboxes {
		replaceable := b.State == protocol.StateReady && b.Spec.OnHostLoss == protocol.OnHostLossReplace
		if (b.State != protocol.StatePending || b.Resuming) && !replaceable {
			continue
		}
		for _, tree := range b.Spec.Copies {
			needed[uploadKey{b.Tenant, tree.Digest}] = true
		}
	}
	return needed
}
