package jetstream

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/protocol"
)

// Compaction configures how much of a history stays in the event log.
type Compaction struct {
	Keep       int   // how many of the newest messages always stay; at least 1
	MinBatches int   // older messages are moved if their number exceeds MinBatches,
	MinBytes   int64 // or if their total size exceeds MinBytes
	// MaxAge is how long a segment is stored after its last message was written. 0: as long as the history.
	MaxAge time.Duration

	// Guard is called before each step that changes something; an error from Guard ends the compaction. Guard may be
	// nil.
	Guard func() error
	// IndexedThrough returns the record up to which the index of execs covers the history. If IndexedThrough is nil,
	// the index covers the whole history.
	IndexedThrough func(ctx context.Context) (uint64, error)
	// Probe is called at named points of the compaction, at which tests simulate a crash. Probe may be nil.
	Probe func(point string)
}

// Compacted is the result of a compaction.
type Compacted struct {
	Segments int       // number of segments that were stored
	Messages int       // number of messages in these segments
	Dropped  int       // number of expired segments that were dropped
	Purged   uint64    // messages up to this record were purged from the log; 0 if nothing was purged
	Waits    bool      // the log still has messages that are also in segments, see [Compactor.Compact]
	DropAt   time.Time // when the oldest segment expires; zero if no segment will expire
}

// compacting is one call of Compact.
type compacting struct {
	Compaction
	compactor       *Compactor
	tenant, sandbox string
	manifest        *manifest
	verdicts        verdicts
	done            Compacted
}

// Compactor moves older messages of histories from the event log to segments, and purges the histories of deleted
// sandboxes.
type Compactor struct {
	*streams

	events    *EventLog
	segments  *segments
	snapshots *Snapshots
	histories *Histories
}

// Compact moves the older part of a long history into segments and drops expired segments. A segment is stored and read
// back before the manifest lists it. Messages are purged from the log only after the manifest lists their segment, and
// after a stored snapshot and the index of execs cover them. A crash can leave messages both in the log and in a
// segment, but never loses messages. The next call finishes the work. If two processes compact the same history, one of
// them gets [ErrConflict].
func (c *Compactor) Compact(ctx context.Context, tenant, sandbox string, cfg Compaction) (Compacted, error) {
	if cfg.Keep < 1 {
		return Compacted{}, protocol.Invalid("keep", "must be at least 1, got %d", cfg.Keep)
	}
	if cfg.Guard == nil {
		cfg.Guard = func() error { return nil }
	}
	if cfg.Probe == nil {
		cfg.Probe = func(string) {}
	}
	w := &compacting{Compaction: cfg, compactor: c, tenant: tenant, sandbox: sandbox}
	w.verdicts = c.histories.verdicts(tenant, sandbox)
	var err error
	if w.manifest, err = c.segments.manifest(ctx, tenant, sandbox); err != nil {
		return w.done, err
	}
	for _, step := range []func(context.Context) error{w.reconcile, w.removeLoose, w.move, w.purge, w.drop} {
		if err := step(ctx); err != nil {
			return w.done, err
		}
	}
	return w.done, nil
}

func (w *compacting) subject() string { return protocol.EventSubject(w.tenant, w.sandbox) }

// reconcile compares the manifest with the log. After the log was restored from a backup, segments may hold messages
// that are no longer part of the history. If segments and the log differ, the log is right.
func (w *compacting) reconcile(ctx context.Context) error {
	m, last := w.manifest, w.manifest.last()
	if last == 0 {
		return nil
	}
	first, err := w.compactor.events.historyNext(ctx, w.tenant, w.sandbox, 0)
	if err != nil {
		return err
	}
	if len(first) == 0 || first[0].afterKnown && first[0].after == last {
		return nil
	}
	same := false
	if n := len(m.Segments); n > 0 && first[0].record <= last {
		s := m.Segments[n-1]
		if same, err = w.inLog(ctx, Position{s.LastRecord, s.LastBatch}); err != nil || same {
			return err
		}
	}
	return w.dropDiverged(ctx, &first[0])
}

// dropDiverged drops each segment that reaches the log's first message or goes beyond it. Such segments belong to the
// history before the log was restored.
func (w *compacting) dropDiverged(ctx context.Context, first *entry) error {
	m := w.manifest
	kept, end := 0, uint64(0)
	for kept < len(m.Segments) && m.Segments[kept].LastRecord < first.record {
		kept++
	}
	dropped := m.Segments[kept:]
	switch {
	case kept > 0:
		end = m.Segments[kept-1].LastRecord
	case first.afterKnown && first.after == 0: // the log has the entire history
		all := []segment{}
		err := m.each(ctx, 0, func(s *segment) (bool, error) { all = append(all, *s); return true, nil })
		if err != nil {
			return err
		}
		dropped, m.Pages = all, nil
	case len(m.Pages) > 0:
		end = m.Pages[len(m.Pages)-1].LastRecord
	}
	if first.afterKnown && first.after != end {
		return protocol.Errorf(
			protocol.Internal,
			"",
			"the history of %s has a gap: its segments end at record %d, but its first message in the log follows record %d",
			w.sandbox,
			end,
			first.after,
		)
	}
	w.compactor.log.Warn("dropping segments that contradict the event log; the log may have been restored from a backup",
		"sandbox", w.sandbox, "segments", len(dropped))
	for _, s := range dropped {
		m.Loose = append(m.Loose, s.Object)
	}
	m.Segments = m.Segments[:kept]
	return w.write(ctx)
}

// inLog reports whether the log itself, not a segment, has the history's message at a position.
func (w *compacting) inLog(ctx context.Context, p Position) (bool, error) {
	m, err := w.compactor.leaderGet(ctx, protocol.StreamEvents, map[string]any{"seq": p.Record})
	if protocol.CodeOf(err) == protocol.NotFound {
		return false, nil
	}
	if err != nil || m.subject != w.subject() {
		return false, err
	}
	return w.compactor.events.isAt(m, p)
}

func (w *compacting) write(ctx context.Context) error {
	if err := w.Guard(); err != nil {
		return err
	}
	return w.manifest.write(ctx)
}

// removeLoose removes the objects that the manifest lists as loose: they are not part of the history.
func (w *compacting) removeLoose(ctx context.Context) error {
	if len(w.manifest.Loose) == 0 {
		return nil
	}
	if err := w.Guard(); err != nil {
		return err
	}
	for _, object := range w.manifest.Loose {
		if err := w.compactor.segments.removeSegment(ctx, object); err != nil {
			return err
		}
	}
	w.manifest.Loose = nil
	return w.write(ctx)
}

// move stores the log's older messages in segments.
func (w *compacting) move(ctx context.Context) error {
	older, err := w.older(ctx)
	if err != nil || older <= 0 {
		return err
	}
	moved := w.manifest.last()
	var part []segmentMessage
	size, seen, before := 0, 0, moved
	err = w.compactor.scan(ctx, protocol.StreamEvents, w.subject(), 0, func(m *stored) (bool, error) {
		seen++
		if m.sequence > moved {
			// Later, readers will rely on the headers that are stored in the segment, because no server can confirm
			// them any more. So if the headers do not name the message before this one, the leader confirms them now.
			if e := entryOf(m); e.afterKnown && e.after != before {
				var err error
				if m, err = w.compactor.confirm(ctx, protocol.StreamEvents, m); err != nil {
					return false, err
				}
			}
			before = m.sequence
			kept, err := segmentMessageOf(m)
			if err != nil {
				return false, err
			}
			part, size = append(part, kept), size+len(m.data)
		}
		if len(part) > 0 && (size >= w.compactor.segments.cache.full || seen == older) {
			if err := w.store(ctx, part); err != nil {
				return false, err
			}
			part, size = nil, 0
		}
		return seen < older, nil
	})
	return err
}

// older returns how many of the log's messages belong in segments, or 0 if they are too few to be worth moving.
func (w *compacting) older(ctx context.Context) (int, error) {
	count, err := w.compactor.messagesOn(ctx, protocol.StreamEvents, w.subject())
	older := count - w.Keep
	if err != nil || older <= 0 {
		return 0, err
	}
	// Messages that a crash left both in the log and in a segment are purged, not moved again.
	moved, seen, batches, bytes := w.manifest.last(), 0, 0, int64(0)
	err = w.compactor.scan(ctx, protocol.StreamEvents, w.subject(), 0, func(m *stored) (bool, error) {
		seen++
		if m.sequence > moved {
			batches, bytes = batches+1, bytes+int64(len(m.data))
		}
		return seen < older && batches <= w.MinBatches && bytes <= w.MinBytes, nil
	})
	if err != nil || batches <= w.MinBatches && bytes <= w.MinBytes {
		return 0, err
	}
	return older, nil
}

// store stores a segment and adds it to the manifest.
func (w *compacting) store(ctx context.Context, part []segmentMessage) error {
	content, s, err := w.compactor.segments.encodeSegment(w.tenant, w.sandbox, part,
		func(e *entry) (bool, error) { return w.verdicts.accepts(ctx, e) })
	if err != nil {
		return err
	}
	m := w.manifest
	m.Loose = append(m.Loose, s.Object)
	if err := w.write(ctx); err != nil {
		return err
	}
	w.Probe("compact-before-store")
	// storeSegment may fail because another compaction found that nothing refers to the object, and removed it.
	if err := w.compactor.segments.storeSegment(ctx, &s, content); err != nil {
		return errors.Join(err, w.compactor.segments.removeSegment(ctx, s.Object))
	}
	w.Probe("compact-before-manifest")
	m.Loose, m.Segments = m.Loose[:len(m.Loose)-1], append(m.Segments, s)
	if err := w.write(ctx); err != nil {
		if err == ErrConflict { // another process wrote the manifest first, and did not list this object as a segment
			return errors.Join(err, w.compactor.segments.removeSegment(ctx, s.Object))
		}
		return err
	}
	w.done.Segments, w.done.Messages = w.done.Segments+1, w.done.Messages+s.Messages
	return nil
}

// purge removes messages that are in segments from the log. It keeps the messages that the snapshot or the index of
// execs does not cover yet.
func (w *compacting) purge(ctx context.Context) error {
	last := w.manifest.last()
	if last == 0 {
		return nil
	}
	w.done.Waits = true
	s, err := w.compactor.snapshots.Snapshot(ctx, w.tenant, w.sandbox)
	if protocol.CodeOf(err) == protocol.NotFound {
		return nil // there is no snapshot yet; a later compaction will purge
	}
	if err != nil {
		return err
	}
	through := last
	if s.Record <= through {
		through = s.Record - min(s.Record, 1)
	}
	if w.IndexedThrough != nil {
		indexed, err := w.IndexedThrough(ctx)
		if err != nil {
			return err
		}
		through = min(through, indexed)
	}
	first, err := w.compactor.events.historyNext(ctx, w.tenant, w.sandbox, 0)
	if err != nil || len(first) == 0 {
		return err
	}
	if first[0].record > through {
		w.done.Waits = first[0].record <= last
		return nil
	}
	if held, err := w.inLog(ctx, s.position()); err != nil || !held {
		return err // the snapshot is older than the last restore of the log, and does not match the log
	}
	w.Probe("compact-before-purge")
	if err := w.Guard(); err != nil {
		return err
	}
	if err := w.compactor.purgeThrough(ctx, protocol.StreamEvents, w.subject(), through); err != nil {
		return err
	}
	w.done.Purged, w.done.Waits = through, through < last
	return nil
}

// drop removes expired segments whose messages are no longer in the log. Before that, drop stores a state from which
// readers can start instead of the beginning of the history.
func (w *compacting) drop(ctx context.Context) error {
	m, now := w.manifest, w.compactor.Now()
	if w.MaxAge <= 0 {
		return nil
	}
	first, err := w.compactor.events.historyNext(ctx, w.tenant, w.sandbox, 0)
	if err != nil || len(first) == 0 {
		return err
	}
	expired := func(s *segment) bool { return now.Sub(s.Until) > w.MaxAge && s.LastRecord < first[0].record }
	var old []segment
	pages, kept := 0, 0
	for pages < len(m.Pages) {
		list, err := m.page(ctx, m.Pages[pages].Key)
		if err != nil {
			return err
		}
		if len(list) > 0 && !expired(&list[len(list)-1]) {
			break
		}
		old = append(old, list...)
		pages++
	}
	if pages == len(m.Pages) {
		for kept < len(m.Segments) && expired(&m.Segments[kept]) {
			kept++
		}
		old = append(old, m.Segments[:kept]...)
	}
	if len(old) == 0 {
		return w.dropAt(ctx)
	}
	if ok, err := w.storeBase(ctx, old[len(old)-1].LastRecord); err != nil || !ok {
		return err
	}
	w.Probe("compact-before-drop")
	var gone []string
	for _, p := range m.Pages[:pages] {
		gone = append(gone, p.Key)
	}
	m.Pages, m.Segments = m.Pages[pages:], m.Segments[kept:]
	for _, s := range old {
		m.Loose = append(m.Loose, s.Object)
	}
	w.done.Dropped = len(old)
	if err := w.write(ctx); err != nil {
		return err
	}
	for _, key := range gone {
		subject := "$KV." + protocol.BucketHistories + "." + key
		if err := w.compactor.purge(ctx, "KV_"+protocol.BucketHistories, subject, 0); err != nil {
			return err
		}
	}
	if err := w.removeLoose(ctx); err != nil {
		return err
	}
	return w.dropAt(ctx)
}

// dropAt sets [Compacted.DropAt].
func (w *compacting) dropAt(ctx context.Context) error {
	return w.manifest.each(ctx, 0, func(s *segment) (bool, error) {
		w.done.DropAt = s.Until.Add(w.MaxAge)
		return false, nil
	})
}

// storeBase stores a copy of the snapshot, for readers that can no longer read the history from its beginning. The
// snapshot must have a state and cover the history up to the record in beyond. Otherwise storeBase returns false and
// stores nothing.
func (w *compacting) storeBase(ctx context.Context, beyond uint64) (bool, error) {
	s, err := w.compactor.snapshots.Snapshot(ctx, w.tenant, w.sandbox)
	if protocol.CodeOf(err) == protocol.NotFound {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if s.State == nil || s.Record < beyond {
		return false, nil
	}
	if held, err := w.inLog(ctx, s.position()); err != nil || !held {
		return false, err
	}
	if err := w.Guard(); err != nil {
		return false, err
	}
	histories, key := w.compactor.kv(protocol.BucketHistories), baseKey(w.tenant, w.sandbox)
	_, err = histories.replace(ctx, key, 0, func(old []byte) ([]byte, error) {
		var stored Snapshot
		if old != nil && protocol.Decode(old, &stored) == nil && stored.Record >= s.Record && stored.Fold >= s.Fold {
			return nil, nil
		}
		return protocol.Encode(s), nil
	})
	return err == nil, err
}

// messagesOn returns the number of messages on a subject according to the stream's leader.
func (s *streams) messagesOn(ctx context.Context, name, subject string) (int, error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	stream, err := s.js.Stream(ctx, name)
	if err != nil {
		return 0, translate(err, "read the state of "+name)
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(subject))
	if err != nil {
		return 0, translate(err, "read the state of "+name)
	}
	return int(info.State.Subjects[subject]), nil
}

// purgeThrough removes the messages of a subject up to a sequence.
func (s *streams) purgeThrough(ctx context.Context, name, subject string, through uint64) error {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	stream, err := s.js.Stream(ctx, name)
	if err != nil {
		return translate(err, "purge "+name)
	}
	err = stream.Purge(ctx, jetstream.WithPurgeSubject(subject), jetstream.WithPurgeSequence(through+1))
	return translate(err, "purge "+name)
}

// PurgeHistory removes everything that is stored of a deleted sandbox: its history, segments, output, exec ids and
// snapshots. Only the reserved id and the last message of the history stay. That message is the tombstone: it
// distinguishes the id of a deleted sandbox from an id that never had a history.
func (c *Compactor) PurgeHistory(ctx context.Context, tenant, sandbox string) error {
	if err := c.purgeSegments(ctx, tenant, sandbox); err != nil {
		return err
	}
	last, err := c.lastAccepted(ctx, tenant, sandbox)
	if err != nil {
		return err
	}
	histories := "$KV." + protocol.BucketHistories + "." + manifestKey(tenant, sandbox)
	snapshot := "$KV." + protocol.BucketSandboxes + "." + tenant + "." + sandbox
	// The snapshot of the ended sandbox is removed last: while it exists, an interrupted purge is found and repeated.
	for _, p := range []struct {
		stream, subject string
		keep            uint64
	}{
		{"KV_" + protocol.BucketHistories, histories + ".*", 0},
		{"KV_" + protocol.BucketHistories, histories, 0},
		{protocol.StreamLogs, protocol.OutputSubject("*", tenant, sandbox, "*"), 0},
		{protocol.StreamLogs, protocol.LogSubject(tenant, sandbox, "*"), 0},
		{"KV_" + protocol.BucketExecIDs, "$KV." + protocol.BucketExecIDs + "." + tenant + "." + sandbox + ".>", 0},
		{"KV_" + protocol.BucketSandboxes, snapshot, 0},
		{protocol.StreamEvents, protocol.EventSubject(tenant, sandbox), 1},
		{"KV_" + protocol.BucketSandboxes, snapshot + endedSuffix, 0},
	} {
		var err error
		if p.stream == protocol.StreamEvents && last != 0 {
			err = c.purgeThrough(ctx, p.stream, p.subject, last-1)
		} else {
			err = c.purge(ctx, p.stream, p.subject, p.keep)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// lastAccepted returns the record of the last message that is part of a history. Messages that readers refuse may
// follow that message. lastAccepted returns 0 if the deployment requires no signatures. In this case the last message
// of the subject is part of the history.
func (c *Compactor) lastAccepted(ctx context.Context, tenant, sandbox string) (uint64, error) {
	rules, err := c.histories.writers.currentRules(ctx)
	if err != nil || !rules.Signed {
		return 0, err
	}
	judged, err := c.histories.judgeByFolding(ctx, tenant, sandbox, 0)
	if err != nil {
		return 0, err
	}
	return judged.Last, nil
}

// purgeSegments removes all segments of a history, including those that a crash left unfinished.
func (c *Compactor) purgeSegments(ctx context.Context, tenant, sandbox string) error {
	m, err := c.segments.manifest(ctx, tenant, sandbox)
	if err != nil || m.revision == 0 {
		return err
	}
	for _, object := range m.Loose {
		if err := c.segments.removeSegment(ctx, object); err != nil {
			return err
		}
	}
	segments := m.Segments
	for _, p := range m.Pages {
		list, err := m.page(ctx, p.Key)
		if err != nil && protocol.CodeOf(err) != protocol.NotFound { // not_found: an earlier purge removed the page
			return err
		}
		segments = append(segments, list...)
	}
	for i := range segments {
		if err := c.segments.removeSegment(ctx, segments[i].Object); err != nil {
			return err
		}
	}
	return nil
}
