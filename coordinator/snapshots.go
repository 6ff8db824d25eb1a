package coordinator

import (
	"context"
	"time"

	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// snapshotWriter stores, in rounds, snapshots of the sandboxes that have changed. It then stores a checkpoint, which
// says up to which record of the log the snapshots are complete. A new leader starts with the sandboxes that have
// changed since the last checkpoint of the previous leader.
type snapshotWriter struct {
	*leader
	stored map[key]*storedSnapshot
}

// storedSnapshot is the last snapshot of a sandbox that this leader stored. Each write names the revision that it
// replaces, so that a late write of a previous leader fails.
type storedSnapshot struct {
	at       jetstream.Position // position of the snapshot in the log
	revision uint64             // revision of the snapshot; 0: unknown
}

func newSnapshotWriter(l *leader) *snapshotWriter {
	return &snapshotWriter{leader: l, stored: map[key]*storedSnapshot{}}
}

func (w *snapshotWriter) run(ctx context.Context) error {
	ticker := time.NewTicker(w.cfg.Timing.Snapshot)
	defer ticker.Stop()
	defer w.projection.stopSaving()
	restored := -1
	w.projection.unsaved.start()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		if now, _ := w.projection.generation(); restored != now { // if the log was rewound, snapshots may be lost too
			clear(w.stored)
			checkpoint, _, err := w.conn.Checkpoint(ctx)
			if err != nil {
				w.log.Warn("could not read the checkpoint of snapshots; trying again later", "error", err)
				continue
			}
			w.projection.addUnsavedSince(checkpoint.Record)
			restored = now
		}
		if err := w.round(ctx); err != nil {
			w.log.Warn("could not write snapshots; trying again later", "error", err)
		}
	}
}

// round stores the snapshots of one round. The checkpoint promises that every event up to it is in some snapshot. If a
// sandbox's snapshot could not be stored, the checkpoint therefore goes no further than that sandbox's last stored
// snapshot.
func (w *snapshotWriter) round(ctx context.Context) error {
	changed, covered := w.projection.takeUnsaved()
	defer func() { w.projection.unsaved.put(changed) }()
	for k := range changed {
		if err := w.lease.Check(); err != nil { // the next leader stores newer snapshots
			return err
		}
		if w.stored[k] == nil {
			w.stored[k] = &storedSnapshot{}
		}
		err := w.store(ctx, k, w.stored[k])
		if unavailable(err) {
			return err
		}
		if err != nil {
			w.log.Warn("could not write a snapshot; trying again later", "sandbox", k.ID, "error", err)
			if at := w.stored[k].at; at.Record < covered.Record {
				covered = at
			}
			continue
		}
		delete(changed, k)
		if w.projection.read.get(k) == nil {
			delete(w.stored, k)
		}
	}
	if covered.Record == 0 {
		return nil
	}
	reserved := uint64(0)
	restored, _ := w.projection.generation()
	if r := w.reserved.Load(); r != nil && r.restored == restored {
		reserved = r.revision
	}
	return w.conn.WriteCheckpoint(ctx, covered, reserved)
}

// unavailable reports whether an error means that NATS does not answer now. Further attempts are then pointless.
func unavailable(err error) bool {
	switch protocol.CodeOf(err) {
	case protocol.Unavailable, protocol.DeadlineExceeded, protocol.Cancelled:
		return true
	}
	return false
}

// store stores a sandbox's snapshot if the sandbox has changed. It stores nothing if the sandbox has been purged by
// now: a snapshot that is written after the purge would never be removed. It stores the index of execs first, since the
// snapshot may omit execs.
func (w *snapshotWriter) store(ctx context.Context, k key, last *storedSnapshot) error {
	w.storing.Lock()
	defer w.storing.Unlock()
	if w.projection.read.isDeleted(k) {
		return w.storeDeleted(ctx, k, last)
	}
	if w.projection.read.get(k) == nil {
		return nil
	}
	j := w.projection.journal(k)
	if j.Position() == last.at {
		return nil
	}
	s := j.Snapshot()
	switch {
	case !s.State.Exists():
		return nil
	case s.State.Sandbox.State == protocol.StateDeleted: // deleted since the check above
		return w.storeDeleted(ctx, k, last)
	}
	w.cfg.Probe("snapshot-before-write")
	if err := w.projection.execs.Store(ctx, k); err != nil {
		return err
	}
	revision, err := w.conn.WriteSnapshot(ctx, k.Tenant, k.ID, s, last.revision)
	if err != nil {
		last.revision = 0
		return err
	}
	last.at, last.revision = jetstream.Position{Record: s.Record, Batch: s.Batch}, revision
	return nil
}

// storeDeleted stores the last snapshot of a deleted sandbox. Memory then holds only the sandbox's entry in the read
// model. The caller holds c.storing.
func (w *snapshotWriter) storeDeleted(ctx context.Context, k key, last *storedSnapshot) error {
	j, err := w.projection.openDeleted(ctx, k)
	if err != nil {
		return err
	}
	s := j.Snapshot()
	if s.State.Sandbox.State != protocol.StateDeleted || s.State.Sandbox.HistoryPurged {
		w.projection.forgetDeleted(k) // the log has another history of the sandbox, or no history
		return nil
	}
	w.cfg.Probe("snapshot-before-write")
	if err := w.projection.execs.StoreThrough(ctx, k, s); err != nil {
		return err
	}
	if err := w.conn.WriteEndedRecord(ctx, k.Tenant, k.ID, s); err != nil {
		return err
	}
	last.at = jetstream.Position{Record: s.Record, Batch: s.Batch}
	w.projection.deletedSaved(k, s.Record)
	w.projection.execs.Forget(k)
	return nil
}
