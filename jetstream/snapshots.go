package jetstream

import (
	"context"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
)

// Snapshot is the fold of one sandbox's history at a record, kept so that a start need not replay
// everything. The log remains the truth: a snapshot may be lost. One without a state says that the
// sandbox has too much of it for a message, and is to be folded from its history.
type Snapshot struct {
	Version int             `json:"v"`
	Record  uint64          `json:"record"`
	State   *protocol.State `json:"state"`
	Batch   string          `json:"batch,omitempty"` // id of the batch at Record
	Fold    int             `json:"fold,omitempty"`  // [protocol.FoldVersion] of who folded State

	// Reserved is a revision of the registry of ids, in a checkpoint: all ids that were taken up to it have a
	// history. 0: not known.
	Reserved uint64 `json:"reserved,omitempty"`
}

func (s *Snapshot) position() Position { return Position{s.Record, s.Batch} }

// Usable says whether the state is one that this code would have folded.
func (s *Snapshot) Usable() bool { return s.State != nil && s.Fold == protocol.FoldVersion }

// checkpointKey holds the record up to which every sandbox's snapshot is current.
const checkpointKey = "_checkpoint"

// maxSnapshot is from how many bytes on a snapshot leaves the execs out that have ended.
const maxSnapshot = 512 << 10

// WriteSnapshot stores a sandbox's snapshot over the one of a revision, 0 where that is not known, and
// returns the new one, 0 where it is not known. A newer one that is there stands. What is larger than a message is stored
// without its state. The state may be changed.
func (c *Conn) WriteSnapshot(ctx context.Context, tenant, sandbox string, s *Snapshot, revision uint64) (uint64, error) {
	data := protocol.Encode(s)
	if len(data) > maxSnapshot {
		s.State.Trim(0)
		data = protocol.Encode(s)
	}
	if len(data) > c.maxBatch() {
		bare := *s
		bare.State = nil
		data = protocol.Encode(&bare)
	}
	return c.kv(protocol.BucketSandboxes).replace(ctx, tenant+"."+sandbox, revision, func(old []byte) ([]byte, error) {
		stands, err := c.stands(ctx, tenant, sandbox, old, s)
		if stands || err != nil {
			return nil, err
		}
		return data, nil
	})
}

// WriteCheckpoint says that every event up to a place of the log is in some snapshot, and every id that was taken
// up to a revision of the registry has a history; 0: as the stored checkpoint says. A newer one stands.
func (c *Conn) WriteCheckpoint(ctx context.Context, at Position, reserved uint64) error {
	s := &Snapshot{Version: protocol.Version, Record: at.Record, Batch: at.Batch, Fold: protocol.FoldVersion, Reserved: reserved}
	_, err := c.kv(protocol.BucketSandboxes).replace(ctx, checkpointKey, 0, func(old []byte) ([]byte, error) {
		var before Snapshot
		if old != nil && protocol.Decode(old, &before) == nil && s.Reserved == 0 {
			there, err := c.reachesNow(ctx, before.position())
			if err != nil {
				return nil, err
			}
			if there {
				s.Reserved = before.Reserved
			}
		}
		stands, err := c.stands(ctx, "", "", old, s)
		if err != nil || stands && (before.position() != s.position() || before.Reserved >= s.Reserved) {
			return nil, err
		}
		return protocol.Encode(s), nil
	})
	return err
}

// checkpoint reads the checkpoint; the zero value where there is none that can be used.
func (c *Conn) checkpoint(ctx context.Context) (Snapshot, error) {
	value, _, err := c.kv(protocol.BucketSandboxes).get(ctx, checkpointKey)
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

// Checkpoint returns up to where every event is in some snapshot, and up to which revision of the registry every
// id has a history; 0: not known. One that is of another history of the log says neither.
func (c *Conn) Checkpoint(ctx context.Context) (at Position, reserved uint64, err error) {
	s, err := c.checkpoint(ctx)
	if err != nil || s.Version == 0 {
		return Position{}, 0, err
	}
	if there, err := c.reachesNow(ctx, s.position()); !there {
		return Position{}, 0, err
	}
	return s.position(), s.Reserved, nil
}

// Snapshot reads the snapshot of a sandbox, as it is stored, living or over. Error: not_found.
func (c *Conn) Snapshot(ctx context.Context, tenant, sandbox string) (*Snapshot, error) {
	value, _, err := c.kv(protocol.BucketSandboxes).get(ctx, tenant+"."+sandbox)
	if protocol.CodeOf(err) == protocol.NotFound {
		return c.overSnapshot(ctx, tenant, sandbox)
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

// stands says whether what is stored is at least as new as a snapshot that is to be written, and of the
// log as it is.
func (c *Conn) stands(ctx context.Context, tenant, sandbox string, stored []byte, s *Snapshot) (bool, error) {
	var old Snapshot
	if stored == nil || protocol.Decode(stored, &old) != nil || protocol.CheckVersion(old.Version) != nil || old.Record < s.Record {
		return false, nil
	}
	if old.Record == s.Record {
		return old.Batch == s.Batch && old.Fold >= s.Fold, nil
	}
	return c.holds(ctx, tenant, sandbox, old.position())
}

// ReadSnapshots reads the snapshot of every living sandbox, and returns the record that the log must be followed from. s is
// nil for a sandbox that is to be folded from its history: its snapshot cannot be used. Without a
// checkpoint, and with one that the log does not reach or that is of another history of it, nothing is
// visited, and the log is followed from 1.
func (c *Conn) ReadSnapshots(ctx context.Context, visit func(tenant, sandbox string, s *Snapshot)) (from uint64, err error) {
	b := c.kv(protocol.BucketSandboxes)
	checkpoint, err := c.checkpoint(ctx)
	if err != nil {
		return 0, err
	}
	if checkpoint.Version == 0 {
		return 1, nil
	}
	last, err := c.lastSequence(ctx, protocol.StreamEvents)
	if err != nil {
		return 0, err
	}
	if there, err := c.reaches(ctx, checkpoint.position(), last); err != nil {
		return 0, err
	} else if !there {
		c.log.Warn("the log does not have what the snapshots were made of: it is read from its beginning", "checkpoint", checkpoint.Record, "log", last)
		return 1, nil
	}
	type late struct {
		tenant, sandbox string
		snapshot        *Snapshot
	}
	var newer []late
	err = c.readKeys(ctx, b, "*.*", func(key string, value []byte) {
		tenant, sandbox, _ := strings.Cut(key, ".")
		s := &Snapshot{}
		switch {
		case protocol.Decode(value, s) != nil || protocol.CheckVersion(s.Version) != nil || !s.Usable() || s.Record > last:
			visit(tenant, sandbox, nil)
		case s.Record > checkpoint.Record:
			newer = append(newer, late{tenant, sandbox, s})
		default:
			visit(tenant, sandbox, s)
		}
	})
	for _, n := range newer { // the log up to the checkpoint says nothing of these
		if err != nil {
			break
		}
		var there bool
		if there, err = c.holds(ctx, n.tenant, n.sandbox, n.snapshot.position()); !there {
			n.snapshot = nil
		}
		if err == nil {
			visit(n.tenant, n.sandbox, n.snapshot)
		}
	}
	return checkpoint.Record + 1, err
}

// reaches says whether the log, whose last message is known, has a position, as far as can be told: what
// was purged since cannot be looked at.
func (c *Conn) reaches(ctx context.Context, p Position, last uint64) (bool, error) {
	if p.Record > last {
		return false, nil
	}
	m, err := c.leaderGet(ctx, protocol.StreamEvents, map[string]any{"seq": p.Record})
	if protocol.CodeOf(err) == protocol.NotFound {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	e, err := c.entryOf(m)
	return e.isAt(p), err
}

// reachesNow is reaches for the log as it is now.
func (c *Conn) reachesNow(ctx context.Context, p Position) (bool, error) {
	last, err := c.lastSequence(ctx, protocol.StreamEvents)
	if err != nil {
		return false, err
	}
	return c.reaches(ctx, p, last)
}

// readAll reads every key that has a value now.
func (c *Conn) readAll(ctx context.Context, b kv, visit func(key string, value []byte)) error {
	return c.readKeys(ctx, b, ">", visit)
}

// readKeys reads every key of a pattern that has a value now.
func (c *Conn) readKeys(ctx context.Context, b kv, pattern string, visit func(key string, value []byte)) error {
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
