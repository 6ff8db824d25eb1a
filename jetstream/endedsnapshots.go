package jetstream

import (
	"context"
	"strings"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// The snapshot of an ended sandbox has no execs, and its key differs from the key of a living sandbox's snapshot. A
// starting coordinator can therefore skip the snapshots of ended sandboxes.

// endedSuffix is the end of the key of an ended sandbox's snapshot. Ids have no dots, so a pattern can select either
// the ended sandboxes or the living ones.
const endedSuffix = ".over"

// endedSnapshot is the stored snapshot of an ended sandbox. It has no field "state", so that earlier versions of
// Boxfleet treat it as an unusable snapshot.
type endedSnapshot struct {
	Version int             `json:"v"`
	Record  uint64          `json:"record"`
	Batch   string          `json:"batch,omitempty"`
	Fold    int             `json:"fold,omitempty"`
	Over    *protocol.State `json:"over"`
	Chain   *snapshotChain  `json:"chain,omitempty"`
	Refused recordRanges    `json:"refused,omitempty"`
}

// EndedRecord is what a coordinator keeps in memory about an ended sandbox.
type EndedRecord struct {
	Tenant, Sandbox    string
	Record             uint64 // 0 if the snapshot is unusable and the history must be read
	CreatedAt, EndedAt time.Time
	Labels             map[string]string
	Name               string
}

// WriteEndedRecord stores the last snapshot of an ended sandbox, unless a newer snapshot is stored. It then removes the
// snapshot that was stored while the sandbox was living. The stored snapshot has no execs. If the snapshot's state does
// not fit into a message, only the name and the times are stored. WriteEndedRecord may change s.State.
func (sn *Snapshots) WriteEndedRecord(ctx context.Context, tenant, sandbox string, s *Snapshot) error {
	s.State.Trim(0)
	o := &endedSnapshot{Version: protocol.Version, Record: s.Record, Batch: s.Batch, Fold: s.Fold, Over: s.State,
		Chain: s.Chain, Refused: s.Refused}
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
	s := &Snapshot{Version: o.Version, Record: o.Record, Batch: o.Batch, Fold: o.Fold, State: o.Over,
		Chain: o.Chain, Refused: o.Refused}
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
		return err // without a valid checkpoint, the caller follows the log from its beginning
	}
	type late struct {
		record *EndedRecord
		at     Position
	}
	var newer []late
	err = sn.readKeys(ctx, sn.kv(protocol.BucketSandboxes), "*.*"+endedSuffix, func(key string, value []byte) {
		r, at := decodeOverRecord(key, value)
		if r.Record > checkpoint.Record { // newer than the checkpoint: the code below compares it with the log
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

// endedHead is the part of an endedSnapshot that a coordinator keeps in memory.
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

// Purged reports whether an ended sandbox was purged, so that only its tombstone is still stored.
func (sn *Snapshots) Purged(ctx context.Context, tenant, sandbox string) (bool, error) {
	if _, err := sn.Snapshot(ctx, tenant, sandbox); protocol.CodeOf(err) != protocol.NotFound {
		return false, err
	}
	last, err := sn.histories.LastBatch(ctx, tenant, sandbox)
	if protocol.CodeOf(err) == protocol.NotFound {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	first, err := sn.histories.FirstBatch(ctx, tenant, sandbox)
	if protocol.CodeOf(err) == protocol.NotFound {
		return false, nil // the log has only refused messages, and segments have the history
	}
	return err == nil && first.Record == last.Record, err
}
