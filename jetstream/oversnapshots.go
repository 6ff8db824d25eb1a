package jetstream

import (
	"context"
	"strings"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// A sandbox that is over has its snapshot under another key than a living one, and without execs, so that a
// coordinator which starts reads those of living sandboxes alone.

// overSuffix ends the key of a sandbox that is over. Ids have no dots, so that a pattern tells the two kinds of
// keys apart.
const overSuffix = ".over"

// overSnapshot is what is stored of a sandbox that is over. It has no field "state": an earlier version takes it
// for a snapshot that it cannot use.
type overSnapshot struct {
	Version int             `json:"v"`
	Record  uint64          `json:"record"`
	Batch   string          `json:"batch,omitempty"`
	Fold    int             `json:"fold,omitempty"`
	Over    *protocol.State `json:"over"`
}

// OverRecord is what a coordinator keeps in mind of a sandbox that is over.
type OverRecord struct {
	Tenant, Sandbox    string
	Record             uint64 // 0: what is stored cannot be used, and the history is to be read
	CreatedAt, EndedAt time.Time
	Labels             map[string]string
	Name               string
}

// WriteOver stores the last snapshot of a sandbox that is over, in the place of those that it had when it lived. A
// newer one that is there stands. Execs are left out, and the state where it is larger than a message. The state may be changed.
func (c *Conn) WriteOver(ctx context.Context, tenant, sandbox string, s *Snapshot) error {
	s.State.Trim(0)
	o := &overSnapshot{Version: protocol.Version, Record: s.Record, Batch: s.Batch, Fold: s.Fold, Over: s.State}
	data := protocol.Encode(o)
	if len(data) > c.maxBatch() {
		bare := &protocol.State{Sandbox: protocol.Sandbox{Name: s.State.Sandbox.Name, CreatedAt: s.State.Sandbox.CreatedAt, StateChangedAt: s.State.Sandbox.StateChangedAt}}
		o.Over, o.Fold = bare, 0
		data = protocol.Encode(o)
	}
	b, key := c.kv(protocol.BucketSandboxes), tenant+"."+sandbox
	_, err := b.replace(ctx, key+overSuffix, 0, func(old []byte) ([]byte, error) {
		stands, err := c.stands(ctx, tenant, sandbox, old, s)
		if stands || err != nil {
			return nil, err
		}
		return data, nil
	})
	if err != nil {
		return err
	}
	return c.purge(ctx, b.stream(), b.subject(key), 0)
}

// overSnapshot reads the snapshot of a sandbox that is over. Error: not_found.
func (c *Conn) overSnapshot(ctx context.Context, tenant, sandbox string) (*Snapshot, error) {
	value, _, err := c.kv(protocol.BucketSandboxes).get(ctx, tenant+"."+sandbox+overSuffix)
	if err != nil {
		return nil, err
	}
	o := &overSnapshot{}
	if err := protocol.Decode(value, o); err != nil {
		return nil, err
	}
	return &Snapshot{Version: o.Version, Record: o.Record, Batch: o.Batch, Fold: o.Fold, State: o.Over}, protocol.CheckVersion(o.Version)
}

// ReadOver reads what is stored of all sandboxes that are over, in no order. Where [Conn.ReadSnapshots] visits nothing,
// it does not either.
func (c *Conn) ReadOver(ctx context.Context, visit func(*OverRecord)) error {
	checkpoint, err := c.checkpoint(ctx)
	if err != nil || checkpoint.Version == 0 {
		return err
	}
	last, err := c.lastSequence(ctx, protocol.StreamEvents)
	if err != nil {
		return err
	}
	if there, err := c.reaches(ctx, checkpoint.position(), last); !there {
		return err // the log is followed from its beginning
	}
	type stub struct {
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
	type late struct {
		record *OverRecord
		at     Position
	}
	var newer []late
	err = c.readKeys(ctx, c.kv(protocol.BucketSandboxes), "*.*"+overSuffix, func(key string, value []byte) {
		tenant, rest, _ := strings.Cut(key, ".")
		sandbox := strings.TrimSuffix(rest, overSuffix)
		r, s := &OverRecord{Tenant: tenant, Sandbox: sandbox}, &stub{}
		if protocol.Decode(value, s) == nil && protocol.CheckVersion(s.Version) == nil {
			b := &s.Over.Sandbox
			r.Record, r.CreatedAt, r.EndedAt, r.Labels, r.Name = s.Record, b.CreatedAt, b.StateChangedAt, b.Spec.Labels, b.Name
		}
		if r.Record > checkpoint.Record { // the log up to the checkpoint says nothing of it
			newer = append(newer, late{r, Position{s.Record, s.Batch}})
			return
		}
		visit(r)
	})
	for _, n := range newer {
		if err != nil {
			return err
		}
		var there bool
		if there, err = c.holds(ctx, n.record.Tenant, n.record.Sandbox, n.at); !there {
			n.record.Record = 0
		}
		if err == nil {
			visit(n.record)
		}
	}
	return err
}

// Purged says whether nothing is kept any more of a sandbox that is over, but its tombstone.
func (c *Conn) Purged(ctx context.Context, tenant, sandbox string) (bool, error) {
	if _, err := c.Snapshot(ctx, tenant, sandbox); protocol.CodeOf(err) != protocol.NotFound {
		return false, err
	}
	last, err := c.lastEntry(ctx, tenant, sandbox)
	if protocol.CodeOf(err) == protocol.NotFound {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	first, err := c.historyNext(ctx, tenant, sandbox, 0)
	return err == nil && len(first) == 1 && first[0].record == last.record, err
}
