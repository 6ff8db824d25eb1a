package jetstream

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/protocol"
)

// Compaction says how much of a history stays in the event log.
type Compaction struct {
	Keep       int   // the newest messages always stay; at least 1
	MinBatches int   // older ones are moved when they are more than so many,
	MinBytes   int64 // or more than so many bytes
	// MaxAge is how long a segment is kept after its last message was stored; 0: as long as the history is.
	MaxAge time.Duration

	// Guard is asked before each step that changes something; an error ends the work. It may be nil.
	Guard func() error
	// IndexedThrough is up to which record the history's execs are found without reading it. It may be nil: all are.
	IndexedThrough func(ctx context.Context) (uint64, error)
	// Probe is called at named points of the work, for tests that crash there. It may be nil.
	Probe func(point string)
}

// Compacted says what a compaction did.
type Compacted struct {
	Segments int       // that were stored
	Messages int       // that they hold
	Dropped  int       // segments that were too old
	Purged   uint64    // the log has messages behind this record only; 0: nothing was purged
	Waits    bool      // messages are in segments and in the log, until a newer snapshot is stored
	DropAt   time.Time // when the oldest segment is too old; zero: there is none that will be
}

// compacting is one call of Compact.
type compacting struct {
	Compaction
	conn            *Conn
	tenant, sandbox string
	manifest        *manifest
	done            Compacted
}

// Compact moves the older part of a long history into segments, and drops segments that are too old. It
// goes in this order: a segment is stored, read back, and named in the manifest; and only what is in the
// manifest, and lies before the stored snapshot, leaves the log. So a crash anywhere leaves messages twice and none
// nowhere, and the next call goes on from there. When two compact the same history, one gets [ErrConflict].
func (c *Conn) Compact(ctx context.Context, tenant, sandbox string, cfg Compaction) (Compacted, error) {
	if cfg.Keep < 1 {
		return Compacted{}, protocol.Invalid("keep", "must be at least 1, got %d", cfg.Keep)
	}
	if cfg.Guard == nil {
		cfg.Guard = func() error { return nil }
	}
	if cfg.Probe == nil {
		cfg.Probe = func(string) {}
	}
	w := &compacting{Compaction: cfg, conn: c, tenant: tenant, sandbox: sandbox}
	var err error
	if w.manifest, err = c.manifest(ctx, tenant, sandbox); err != nil {
		return w.done, err
	}
	for _, step := range []func(context.Context) error{w.agree, w.tidy, w.move, w.purge, w.drop} {
		if err := step(ctx); err != nil {
			return w.done, err
		}
	}
	return w.done, nil
}

func (w *compacting) subject() string { return protocol.EventSubject(w.tenant, w.sandbox) }

// agree compares the manifest with the log: where the log was set back to a backup, segments may hold what
// is no longer its history. The log decides, as far as it goes.
func (w *compacting) agree(ctx context.Context) error {
	m, last := w.manifest, w.manifest.last()
	if last == 0 {
		return nil
	}
	first, err := w.conn.historyNext(ctx, w.tenant, w.sandbox, 0)
	if err != nil {
		return err
	}
	if len(first) == 0 || first[0].told && first[0].after == last {
		return nil
	}
	same := false
	if n := len(m.Segments); n > 0 && first[0].record <= last {
		s := m.Segments[n-1]
		if same, err = w.inLog(ctx, Position{s.LastRecord, s.LastBatch}); err != nil || same {
			return err
		}
	}
	return w.disown(ctx, &first[0])
}

// disown drops the segments that are not of the log's history: those that do not end before the log begins.
func (w *compacting) disown(ctx context.Context, first *entry) error {
	m := w.manifest
	kept, end := 0, uint64(0)
	for kept < len(m.Segments) && m.Segments[kept].LastRecord < first.record {
		kept++
	}
	dropped := m.Segments[kept:]
	switch {
	case kept > 0:
		end = m.Segments[kept-1].LastRecord
	case first.told && first.after == 0: // the log has all of it
		all := []segment{}
		if err := m.each(ctx, 0, func(s *segment) (bool, error) { all = append(all, *s); return true, nil }); err != nil {
			return err
		}
		dropped, m.Pages = all, nil
	case len(m.Pages) > 0:
		end = m.Pages[len(m.Pages)-1].LastRecord
	}
	if first.told && first.after != end {
		return protocol.Errorf(protocol.Internal, "", "the segments of the history of %s end at record %d, and the log begins after %d", w.sandbox, end, first.after)
	}
	w.conn.log.Warn("segments hold what is no longer a part of the log's history, and are dropped", "sandbox", w.sandbox, "segments", len(dropped))
	for _, s := range dropped {
		m.Loose = append(m.Loose, s.Object)
	}
	m.Segments = m.Segments[:kept]
	return w.write(ctx)
}

// inLog says whether the log itself has a position of the history.
func (w *compacting) inLog(ctx context.Context, p Position) (bool, error) {
	m, err := w.conn.leaderGet(ctx, protocol.StreamEvents, map[string]any{"seq": p.Record})
	if protocol.CodeOf(err) == protocol.NotFound {
		return false, nil
	}
	if err != nil || m.subject != w.subject() {
		return false, err
	}
	e, err := w.conn.entryOf(m)
	return e.isAt(p), err
}

func (w *compacting) write(ctx context.Context) error {
	if err := w.Guard(); err != nil {
		return err
	}
	return w.manifest.write(ctx)
}

// tidy removes objects that are no part of the history.
func (w *compacting) tidy(ctx context.Context) error {
	if len(w.manifest.Loose) == 0 {
		return nil
	}
	if err := w.Guard(); err != nil {
		return err
	}
	for _, object := range w.manifest.Loose {
		if err := w.conn.removeSegment(ctx, object); err != nil {
			return err
		}
	}
	w.manifest.Loose = nil
	return w.write(ctx)
}

// move stores what is too much of the log in segments.
func (w *compacting) move(ctx context.Context) error {
	older, err := w.older(ctx)
	if err != nil || older <= 0 {
		return err
	}
	moved := w.manifest.last()
	var part []segmentMessage
	size, seen := 0, 0
	err = w.conn.scan(ctx, protocol.StreamEvents, w.subject(), 0, func(m *stored) (bool, error) {
		seen++
		if m.sequence > moved {
			kept, err := segmentMessageOf(m)
			if err != nil {
				return false, err
			}
			part, size = append(part, kept), size+len(m.data)
		}
		if len(part) > 0 && (size >= w.conn.segments.full || seen == older) {
			if err := w.store(ctx, part); err != nil {
				return false, err
			}
			part, size = nil, 0
		}
		return seen < older, nil
	})
	return err
}

// older is how many of the log's messages are to be in segments, 0 where they are few.
func (w *compacting) older(ctx context.Context) (int, error) {
	count, err := w.conn.messagesOn(ctx, protocol.StreamEvents, w.subject())
	older := count - w.Keep
	if err != nil || older <= 0 {
		return 0, err
	}
	// What a crash left in both places is not to be moved, only to be purged.
	moved, seen, batches, bytes := w.manifest.last(), 0, 0, int64(0)
	err = w.conn.scan(ctx, protocol.StreamEvents, w.subject(), 0, func(m *stored) (bool, error) {
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

// store stores a segment and names it in the manifest.
func (w *compacting) store(ctx context.Context, part []segmentMessage) error {
	content, s, err := w.conn.encodeSegment(w.tenant, w.sandbox, part)
	if err != nil {
		return err
	}
	m := w.manifest
	m.Loose = append(m.Loose, s.Object)
	if err := w.write(ctx); err != nil {
		return err
	}
	w.Probe("compact-before-store")
	if err := w.conn.storeSegment(ctx, &s, content); err != nil { // perhaps somebody else took it for a part of a crash
		return errors.Join(err, w.conn.removeSegment(ctx, s.Object))
	}
	w.Probe("compact-before-manifest")
	m.Loose, m.Segments = m.Loose[:len(m.Loose)-1], append(m.Segments, s)
	if err := w.write(ctx); err != nil {
		if err == ErrConflict { // the writer that won takes it for an abandoned one, or does not know it
			return errors.Join(err, w.conn.removeSegment(ctx, s.Object))
		}
		return err
	}
	w.done.Segments, w.done.Messages = w.done.Segments+1, w.done.Messages+s.Messages
	return nil
}

// purge removes from the log what is in segments and no reader needs to begin with.
func (w *compacting) purge(ctx context.Context) error {
	last := w.manifest.last()
	if last == 0 {
		return nil
	}
	w.done.Waits = true
	s, err := w.conn.Snapshot(ctx, w.tenant, w.sandbox)
	if protocol.CodeOf(err) == protocol.NotFound {
		return nil // it will be
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
	first, err := w.conn.historyNext(ctx, w.tenant, w.sandbox, 0)
	if err != nil || len(first) == 0 {
		return err
	}
	if first[0].record > through {
		w.done.Waits = first[0].record <= last
		return nil
	}
	if held, err := w.inLog(ctx, s.position()); err != nil || !held {
		return err // the snapshot is of another history of the log
	}
	w.Probe("compact-before-purge")
	if err := w.Guard(); err != nil {
		return err
	}
	if err := w.conn.purgeThrough(ctx, protocol.StreamEvents, w.subject(), through); err != nil {
		return err
	}
	w.done.Purged, w.done.Waits = through, through < last
	return nil
}

// drop forgets segments that are too old, and not in the log, too. The state as of a newer message is kept in their place.
func (w *compacting) drop(ctx context.Context) error {
	m, now := w.manifest, w.conn.Now()
	if w.MaxAge <= 0 {
		return nil
	}
	first, err := w.conn.historyNext(ctx, w.tenant, w.sandbox, 0)
	if err != nil || len(first) == 0 {
		return err
	}
	over := func(s *segment) bool { return now.Sub(s.Until) > w.MaxAge && s.LastRecord < first[0].record }
	var old []segment
	pages, kept := 0, 0
	for pages < len(m.Pages) {
		list, err := m.page(ctx, m.Pages[pages].Key)
		if err != nil {
			return err
		}
		if len(list) > 0 && !over(&list[len(list)-1]) {
			break
		}
		old = append(old, list...)
		pages++
	}
	if pages == len(m.Pages) {
		for kept < len(m.Segments) && over(&m.Segments[kept]) {
			kept++
		}
		old = append(old, m.Segments[:kept]...)
	}
	if len(old) == 0 {
		return w.dropAt(ctx)
	}
	if ok, err := w.keepBase(ctx, old[len(old)-1].LastRecord); err != nil || !ok {
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
		if err := w.conn.purge(ctx, "KV_"+protocol.BucketHistories, "$KV."+protocol.BucketHistories+"."+key, 0); err != nil {
			return err
		}
	}
	if err := w.tidy(ctx); err != nil {
		return err
	}
	return w.dropAt(ctx)
}

// dropAt notes when the oldest segment will be too old.
func (w *compacting) dropAt(ctx context.Context) error {
	return w.manifest.each(ctx, 0, func(s *segment) (bool, error) {
		w.done.DropAt = s.Until.Add(w.MaxAge)
		return false, nil
	})
}

// keepBase keeps the stored snapshot, if it goes beyond a record and has a state, for those who cannot read from
// the beginning any more.
func (w *compacting) keepBase(ctx context.Context, beyond uint64) (bool, error) {
	s, err := w.conn.Snapshot(ctx, w.tenant, w.sandbox)
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
	_, err = w.conn.kv(protocol.BucketHistories).replace(ctx, baseKey(w.tenant, w.sandbox), 0, func(old []byte) ([]byte, error) {
		var there Snapshot
		if old != nil && protocol.Decode(old, &there) == nil && there.Record >= s.Record && there.Fold >= s.Fold {
			return nil, nil
		}
		return protocol.Encode(s), nil
	})
	return err == nil, err
}

// messagesOn is how many messages a subject has, as the stream's leader says.
func (c *Conn) messagesOn(ctx context.Context, name, subject string) (int, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	stream, err := c.js.Stream(ctx, name)
	if err != nil {
		return 0, translate(err, "look at "+name)
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(subject))
	if err != nil {
		return 0, translate(err, "look at "+name)
	}
	return int(info.State.Subjects[subject]), nil
}

// purgeThrough removes the messages of a subject up to a sequence.
func (c *Conn) purgeThrough(ctx context.Context, name, subject string, through uint64) error {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	stream, err := c.js.Stream(ctx, name)
	if err != nil {
		return translate(err, "purge "+name)
	}
	return translate(stream.Purge(ctx, jetstream.WithPurgeSubject(subject), jetstream.WithPurgeSequence(through+1)), "purge "+name)
}

// PurgeHistory removes a deleted sandbox's history but its last message, its segments, its output, its exec ids
// and its snapshot. Its own id stays reserved for ever. The last message, which says that it was
// deleted, is the tombstone: it tells an id whose history is no longer kept from one that never
// had any.
func (c *Conn) PurgeHistory(ctx context.Context, tenant, sandbox string) error {
	if err := c.purgeSegments(ctx, tenant, sandbox); err != nil {
		return err
	}
	histories := "$KV." + protocol.BucketHistories + "." + manifestKey(tenant, sandbox)
	// The last snapshot goes last: while it is there, the rest is found again and purged again.
	for _, p := range []struct {
		stream, subject string
		keep            uint64
	}{
		{"KV_" + protocol.BucketHistories, histories + ".*", 0},
		{"KV_" + protocol.BucketHistories, histories, 0},
		{protocol.StreamLogs, protocol.LogSubject(tenant, sandbox, "*"), 0},
		{"KV_" + protocol.BucketExecIDs, "$KV." + protocol.BucketExecIDs + "." + tenant + "." + sandbox + ".>", 0},
		{"KV_" + protocol.BucketSandboxes, "$KV." + protocol.BucketSandboxes + "." + tenant + "." + sandbox, 0},
		{protocol.StreamEvents, protocol.EventSubject(tenant, sandbox), 1},
		{"KV_" + protocol.BucketSandboxes, "$KV." + protocol.BucketSandboxes + "." + tenant + "." + sandbox + overSuffix, 0},
	} {
		if err := c.purge(ctx, p.stream, p.subject, p.keep); err != nil {
			return err
		}
	}
	return nil
}

// purgeSegments removes the segments of a history, and whatever was to be one.
func (c *Conn) purgeSegments(ctx context.Context, tenant, sandbox string) error {
	m, err := c.manifest(ctx, tenant, sandbox)
	if err != nil || m.revision == 0 {
		return err
	}
	for _, object := range m.Loose {
		if err := c.removeSegment(ctx, object); err != nil {
			return err
		}
	}
	segments := m.Segments
	for _, p := range m.Pages {
		list, err := m.page(ctx, p.Key)
		if err != nil && protocol.CodeOf(err) != protocol.NotFound { // an earlier purge has removed it
			return err
		}
		segments = append(segments, list...)
	}
	for i := range segments {
		if err := c.removeSegment(ctx, segments[i].Object); err != nil {
			return err
		}
	}
	return nil
}
