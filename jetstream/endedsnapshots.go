package jetstream

import (
	"context"
	"strings"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// An ended sandbox has its snapshot under another key than a living one, and without execs. So a starting coordinator
// can read the snapshots of living sandboxes alone.

// endedSuffix ends the key of an ended sandbox. Ids have no dots, so patterns can select either kind of key.
const endedSuffix = ".over"

// endedSnapshot is the stored snapshot of an ended sandbox. It has no field "state", so that an earlier version takes
// it for an unusable snapshot.
type endedSnapshot struct {
	Version int             `json:"v"`
	Record  uint64          `json:"record"`
	Batch   string          `json:"batch,omitempty"`
	Fold    int             `json:"fold,omitempty"`
	Over    *protocol.State `json:"over"`
}

// EndedRecord is what a coordinator holds in memory of an ended sandbox.
type EndedRecord struct {
	Tenant, Sandbox    string
	Record             uint64 // 0: the snapshot is unusable, read the history
	CreatedAt, EndedAt time.Time
	Labels             map[string]string
	Name               string
}

// WriteEndedRecord stores the last snapshot of an ended sandbox in place of those from its life, unless a newer one is
// stored. It leaves out execs, and the state if it is larger than a message. It may change s.State.
func (sn *Snapshots) WriteEndedRecord(ctx context.Context, tenant, sandbox string, s *Snapshot) error {
	s.State.Trim(0)
	o := &endedSnapshot{Version: protocol.Version, Record: s.Record, Batch: s.Batch, Fold: s.Fold, Over: s.State}
	data := protocol.Encode(o)
	if len(data) > sn.maxBatch() {
		b := &s.State.Sandbox
		o.Fold, o.Over = 0, &protocol.State{Sandbox: protocol.Sandbox{
			Name: b.Name, CreatedAt: b.CreatedAt, StateChangedAt: b.StateChangedAt,
		}}
		data = protocol.Encode(o)
	}
	b, key := sn.kv(protocol.BucketSandboxes), tenant+"."+sandbox
	_, err := b.replace(ctx, key+endedSuffix, 0, func(old []byte) ([]byte, error) {
		newer, err := sn.storedIsNewer(ctx, tenant, sandbox, old, s)
		if newer || err != nil {
			return nil, err
		}
		return data, nil
	})
	if err != nil {
		return err
	}
	return sn.purge(ctx, b.stream(), b.subject(key), 0)
}

// endedSnapshot reads the snapshot of an ended sandbox. Error: not_found.
func (sn *Snapshots) endedSnapshot(ctx context.Context, tenant, sandbox string) (*Snapshot, error) {
	value, _, err := sn.kv(protocol.BucketSandboxes).get(ctx, tenant+"."+sandbox+endedSuffix)
	if err != nil {
		return nil, err
	}
	o := &endedSnapshot{}
	if err := protocol.Decode(value, o); err != nil {
		return nil, err
	}
	s := &Snapshot{Version: o.Version, Record: o.Record, Batch: o.Batch, Fold: o.Fold, State: o.Over}
	return s, protocol.CheckVersion(o.Version)
}

// ReadEndedRecord reads the records of all ended sandboxes, in no particular order. It visits nothing if
// [Snapshots.ReadSnapshots] visits nothing.
func (sn *Snapshots) ReadEndedRecord(ctx context.Context, visit func(*EndedRecord)) error {
	checkpoint, err := sn.checkpoint(ctx)
	if err != nil || checkpoint.Version == 0 {
		return err
	}
	last, err := sn.lastSequence(ctx, protocol.StreamEvents)
	if err != nil {
		return err
	}
	if held, err := sn.reaches(ctx, checkpoint.position(), last); !held {
		return err // the log is followed from its beginning
	}
	type late struct {
		record *EndedRecord
		at     Position
	}
	var newer []late
	err = sn.readKeys(ctx, sn.kv(protocol.BucketSandboxes), "*.*"+endedSuffix, func(key string, value []byte) {
		r, at := decodeOverRecord(key, value)
		if r.Record > checkpoint.Record { // the log up to the checkpoint does not have it
			newer = append(newer, late{r, at})
			return
		}
		visit(r)
	})
	for _, n := range newer {
		if err != nil {
			return err
		}
		var held bool
		if held, err = sn.segments.holds(ctx, n.record.Tenant, n.record.Sandbox, n.at); !held {
			n.record.Record = 0
		}
		if err == nil {
			visit(n.record)
		}
	}
	return err
}

// endedHead is the part of an endedSnapshot that a coordinator holds in memory.
type endedHead struct {
	Version int    `json:"v"`
	Record  uint64 `json:"record"`
	Batch   string `json:"batch"`
	Over    struct {
		Sandbox struct {
			Name           string    `json:"name"`
			CreatedAt      time.Time `json:"created_at"`
			StateChangedAt time.Time `json:"state_changed_at"`
			Spec           struct {
				Labels map[string]string `json:"labels"`
			} `json:"spec"`
		} `json:"sandbox"`
	} `json:"over"`
}

// decodeOverRecord returns the record of an ended sandbox and the position of its snapshot.
func decodeOverRecord(key string, value []byte) (*EndedRecord, Position) {
	tenant, rest, _ := strings.Cut(key, ".")
	r, s := &EndedRecord{Tenant: tenant, Sandbox: strings.TrimSuffix(rest, endedSuffix)}, &endedHead{}
	if protocol.Decode(value, s) == nil && protocol.CheckVersion(s.Version) == nil {
		b := &s.Over.Sandbox
		r.Record, r.CreatedAt, r.EndedAt = s.Record, b.CreatedAt, b.StateChangedAt
		r.Labels, r.Name = b.Spec.Labels, b.Name
	}
	return r, Position{s.Record, s.Batch}
}

// Purged reports whether nothing of an ended sandbox is stored except its tombstone.
func (sn *Snapshots) Purged(ctx context.Context, tenant, sandbox string) (bool, error) {
	if _, err := sn.Snapshot(ctx, tenant, sandbox); protocol.CodeOf(err) != protocol.NotFound {
		return false, err
	}
	last, err := sn.events.lastEntry(ctx, tenant, sandbox)
	if protocol.CodeOf(err) == protocol.NotFound {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	first, err := sn.events.historyNext(ctx, tenant, sandbox, 0)
	return err == nil && len(first) == 1 && first[0].record == last.record, err
}
