package jetstream

import (
	"context"
	"slices"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
)

// Snapshot is the fold of a sandbox's history at a record. A starting process reads it instead of the whole history. A
// snapshot may be lost: the log remains the source of truth. A snapshot without a state says that the state is too
// large for a message and must be folded from the history.
type Snapshot struct {
	Version int             `json:"v"`
	Record  uint64          `json:"record"`
	State   *protocol.State `json:"state"`
	Batch   string          `json:"batch,omitempty"` // id of the batch at Record
	Fold    int             `json:"fold,omitempty"`  // [protocol.FoldVersion] of the writer

	// Chain is the chain that the message after Record must continue; nil: an older version stored the snapshot.
	// Refused are the records of messages up to Record that are not part of the history.
	Chain   *snapshotChain `json:"chain,omitempty"`
	Refused recordRanges   `json:"refused,omitempty"`

	// Reserved is a revision of the registry of ids. Only checkpoints have it: all ids that were reserved up to this
	// revision have a history. 0: unknown.
	Reserved uint64 `json:"reserved,omitempty"`
}

// snapshotChain is the stored form of a [protocol.Chain].
type snapshotChain struct {
	Last   []byte `json:"last"`
	Signed bool   `json:"signed,omitempty"`
}

func (s *Snapshot) position() Position { return Position{s.Record, s.Batch} }

// fold returns the fold that continues from the snapshot.
func (s *Snapshot) fold() fold {
	f := fold{state: s.State, at: s.position(), refused: s.Refused, chain: protocol.Chain{Unknown: true}}
	if len(s.Refused) >= rangesKept { // the journal may have refused more messages than the snapshot lists
		f.forgotten = s.Refused[0][0] - 1
	}
	if c := s.Chain; c != nil && len(c.Last) == len(f.chain.Last) {
		f.chain = protocol.Chain{Last: protocol.Hash(c.Last), Signed: c.Signed}
	}
	return f
}

// chained adds the chain of a fold to its snapshot.
func (s *Snapshot) chained(f *fold) *Snapshot {
	if !f.chain.Unknown {
		last := f.chain.Last
		s.Chain = &snapshotChain{Last: last[:], Signed: f.chain.Signed}
	}
	s.Refused = slices.Clone(f.refused)
	return s
}

// Usable reports whether the snapshot has a state, and this version of the code would have folded the same state.
func (s *Snapshot) Usable() bool { return s.State != nil && s.Fold == protocol.FoldVersion }

// checkpointKey is the key of the checkpoint: the record up to which the snapshots of all sandboxes are current.
const checkpointKey = "_checkpoint"

// maxSnapshot is the size in bytes above which a snapshot leaves out ended execs.
const maxSnapshot = 512 << 10

// Snapshots stores and reads the snapshots of sandboxes and the coordinators' checkpoint.
type Snapshots struct {
	*streams

	events    *EventLog
	segments  *segments
	histories *Histories
}

// WriteSnapshot replaces a sandbox's snapshot and returns the new revision, or 0 if it wrote nothing. revision is the
// revision of the stored snapshot, or 0 if unknown. A newer snapshot is not replaced. A snapshot too large for a
// message is stored without its state. WriteSnapshot may change s.State.
func (sn *Snapshots) WriteSnapshot(ctx context.Context, tenant, sandbox string, s *Snapshot, revision uint64) (
	uint64, error) {
	data := protocol.Encode(s)
	if len(data) > maxSnapshot {
		s.State.Trim(0)
		data = protocol.Encode(s)
	}
	if len(data) > sn.maxBatch() {
		bare := *s
		bare.State = nil
		data = protocol.Encode(&bare)
	}
	b, key := sn.kv(protocol.BucketSandboxes), tenant+"."+sandbox
	return b.replace(ctx, key, revision, func(old []byte) ([]byte, error) {
		newer, err := sn.storedIsNewer(ctx, tenant, sandbox, old, s)
		if newer || err != nil {
			return nil, err
		}
		return data, nil
	})
}

// WriteCheckpoint records that snapshots have every event up to a position, and that every id reserved up to a revision
// of the registry has a history. If reserved is 0, the stored revision stays. A newer checkpoint is not replaced.
func (sn *Snapshots) WriteCheckpoint(ctx context.Context, at Position, reserved uint64) error {
	s := &Snapshot{
		Version: protocol.Version, Record: at.Record, Batch: at.Batch, Fold: protocol.FoldVersion, Reserved: reserved,
	}
	_, err := sn.kv(protocol.BucketSandboxes).replace(ctx, checkpointKey, 0, func(old []byte) ([]byte, error) {
		var before Snapshot
		if old != nil && protocol.Decode(old, &before) == nil && s.Reserved == 0 {
			held, err := sn.reachesNow(ctx, before.position())
			if err != nil {
				return nil, err
			}
			if held {
				s.Reserved = before.Reserved
			}
		}
		newer, err := sn.storedIsNewer(ctx, "", "", old, s)
		if err != nil || newer && (before.position() != s.position() || before.Reserved >= s.Reserved) {
			return nil, err
		}
		return protocol.Encode(s), nil
	})
	return err
}

// checkpoint reads the checkpoint. It returns the zero value if there is no usable checkpoint.
func (sn *Snapshots) checkpoint(ctx context.Context) (Snapshot, error) {
	value, _, err := sn.kv(protocol.BucketSandboxes).get(ctx, checkpointKey)
	if protocol.CodeOf(err) == protocol.NotFound {
		return Snapshot{}, nil
	}
	if err != nil {
		return Snapshot{}, err
	}
	var s Snapshot
	if protocol.Decode(value, &s) != nil || protocol.CheckVersion(s.Version) != nil {
		return Snapshot{}, nil
	}
	return s, nil
}

// Checkpoint returns the position up to which snapshots have every event, and the revision of the registry up to which
// every id has a history; 0: unknown. It ignores a checkpoint of another history of the log.
func (sn *Snapshots) Checkpoint(ctx context.Context) (at Position, reserved uint64, err error) {
	s, err := sn.checkpoint(ctx)
	if err != nil || s.Version == 0 {
		return Position{}, 0, err
	}
	if held, err := sn.reachesNow(ctx, s.position()); !held {
		return Position{}, 0, err
	}
	return s.position(), s.Reserved, nil
}

// Snapshot reads the stored snapshot of a sandbox, living or ended. Error: not_found.
func (sn *Snapshots) Snapshot(ctx context.Context, tenant, sandbox string) (*Snapshot, error) {
	value, _, err := sn.kv(protocol.BucketSandboxes).get(ctx, tenant+"."+sandbox)
	if protocol.CodeOf(err) == protocol.NotFound {
		return sn.endedSnapshot(ctx, tenant, sandbox)
	}
	if err != nil {
		return nil, err
	}
	s := &Snapshot{}
	if err := protocol.Decode(value, s); err != nil {
		return nil, err
	}
	return s, protocol.CheckVersion(s.Version)
}

// storedIsNewer reports whether the stored snapshot is at least as new as s, and belongs to the log's current history.
func (sn *Snapshots) storedIsNewer(
	ctx context.Context, tenant, sandbox string, stored []byte, s *Snapshot,
) (bool, error) {
	var old Snapshot
	if stored == nil || protocol.Decode(stored, &old) != nil || protocol.CheckVersion(old.Version) != nil ||
		old.Record < s.Record {
		return false, nil
	}
	if old.Record == s.Record {
		return old.Batch == s.Batch && old.Fold >= s.Fold, nil
	}
	return sn.segments.holds(ctx, tenant, sandbox, old.position())
}

// ReadSnapshots reads the snapshot of every living sandbox and returns the record to follow the log from. If a
// sandbox's snapshot is unusable, s is nil, and the caller must fold the history. ReadSnapshots visits nothing and
// returns 1 if there is no checkpoint, or if the log ends before the checkpoint or has another history.
func (sn *Snapshots) ReadSnapshots(ctx context.Context, visit func(tenant, sandbox string, s *Snapshot)) (
	from uint64, err error) {
	b := sn.kv(protocol.BucketSandboxes)
	checkpoint, err := sn.checkpoint(ctx)
	if err != nil {
		return 0, err
	}
	if checkpoint.Version == 0 {
		return 1, nil
	}
	last, err := sn.lastSequence(ctx, protocol.StreamEvents)
	if err != nil {
		return 0, err
	}
	if held, err := sn.reaches(ctx, checkpoint.position(), last); err != nil {
		return 0, err
	} else if !held {
		sn.log.Warn("the event log lacks messages that the snapshots include; reading the event log from its beginning",
			"checkpoint", checkpoint.Record, "log", last)
		return 1, nil
	}
	type late struct {
		tenant, sandbox string
		snapshot        *Snapshot
	}
	var newer []late
	err = sn.readKeys(ctx, b, "*.*", func(key string, value []byte) {
		tenant, sandbox, _ := strings.Cut(key, ".")
		s := &Snapshot{}
		switch {
		case protocol.Decode(value, s) != nil || protocol.CheckVersion(s.Version) != nil,
			!s.Usable() || s.Record > last:
			visit(tenant, sandbox, nil)
		case s.Record > checkpoint.Record:
			newer = append(newer, late{tenant, sandbox, s})
		default:
			visit(tenant, sandbox, s)
		}
	})
	for _, n := range newer { // the checkpoint does not cover these snapshots
		if err != nil {
			break
		}
		var held bool
		if held, err = sn.segments.holds(ctx, n.tenant, n.sandbox, n.snapshot.position()); !held {
			n.snapshot = nil
		}
		if err == nil {
			visit(n.tenant, n.sandbox, n.snapshot)
		}
	}
	return checkpoint.Record + 1, err
}

// reaches reports whether the log contains a position. last is the log's last record. A purged message cannot be
// checked and counts as contained.
func (sn *Snapshots) reaches(ctx context.Context, p Position, last uint64) (bool, error) {
	if p.Record > last {
		return false, nil
	}
	m, err := sn.leaderGet(ctx, protocol.StreamEvents, map[string]any{"seq": p.Record})
	if protocol.CodeOf(err) == protocol.NotFound {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return sn.events.isAt(m, p)
}

// reachesNow is like reaches, but reads the log's last record itself.
func (sn *Snapshots) reachesNow(ctx context.Context, p Position) (bool, error) {
	last, err := sn.lastSequence(ctx, protocol.StreamEvents)
	if err != nil {
		return false, err
	}
	return sn.reaches(ctx, p, last)
}

// readAll reads every key that has a value.
func (s *streams) readAll(ctx context.Context, b kv, visit func(key string, value []byte)) error {
	return s.readKeys(ctx, b, ">", visit)
}

// readKeys reads every key that matches a pattern and has a value.
func (s *streams) readKeys(ctx context.Context, b kv, pattern string, visit func(key string, value []byte)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := false
	err := b.followKeys(ctx, pattern, func(key string, value []byte, _ uint64) {
		if value != nil {
			visit(key, value)
		}
	}, func() { done = true; cancel() })
	if done {
		return nil
	}
	return err
}
