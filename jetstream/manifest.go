package jetstream

import (
	"context"
	"sort"
	"strings"

	"github.com/oklog/ulid/v2"

	"github.com/boxfleet/boxfleet/protocol"
)

// The manifest of a history says which segments hold what was moved out of the log. It is written with
// compare-and-set, after the segment that it names was stored and read back, and before anything leaves the
// log. So a crash leaves a message in both places at most, and of two coordinators one wins.
type manifest struct {
	Version  int            `json:"v"`
	Segments []segment      `json:"segments,omitempty"` // the newest, in their order
	Pages    []manifestPage `json:"pages,omitempty"`    // those before, in their order

	// Loose are objects that are no part of the history: one that is being stored, and those that were
	// dropped. Whoever changes the manifest next removes them first.
	Loose []string `json:"loose,omitempty"`

	conn            *Conn
	tenant, sandbox string
	revision        uint64 // 0: it is not stored
}

// manifestPage says where a full list of segments is, under a key of its own.
type manifestPage struct {
	Key         string `json:"key"`
	FirstEvent  uint64 `json:"first_event"`
	FirstRecord uint64 `json:"first_record"`
	LastRecord  uint64 `json:"last_record"`
}

// segmentList is the value of a page. It never changes.
type segmentList struct {
	Version  int       `json:"v"`
	Segments []segment `json:"segments"`
}

// segmentsInManifest is how many segments a manifest names itself at most: when it has twice as many, the older half
// becomes a page.
const segmentsInManifest = 512

func manifestKey(tenant, sandbox string) string { return tenant + "." + sandbox }
func baseKey(tenant, sandbox string) string     { return manifestKey(tenant, sandbox) + ".base" }

// manifest reads that of a history, from the leader; an empty one where there is none.
func (c *Conn) manifest(ctx context.Context, tenant, sandbox string) (*manifest, error) {
	m := &manifest{Version: protocol.Version, conn: c, tenant: tenant, sandbox: sandbox}
	value, revision, err := c.kv(protocol.BucketHistories).get(ctx, manifestKey(tenant, sandbox))
	// A deployment that no coordinator of this version has provisioned yet has no table of them.
	if protocol.CodeOf(err) == protocol.NotFound || isReason(err, protocol.ReasonNotProvisioned) {
		return m, nil
	}
	if err != nil {
		return nil, err
	}
	m.revision = revision
	if err := protocol.Decode(value, m); err != nil {
		return nil, protocol.Errorf(protocol.Internal, "", "the list of the segments of %s: %v", sandbox, err)
	}
	return m, protocol.CheckVersion(m.Version)
}

// write stores the manifest over the revision that was read. Error: [ErrConflict].
func (m *manifest) write(ctx context.Context) error {
	for len(m.Segments) >= 2*m.conn.segments.inManifest {
		if err := m.turnPage(ctx); err != nil {
			return err
		}
	}
	revision, err := m.conn.kv(protocol.BucketHistories).put(ctx, manifestKey(m.tenant, m.sandbox), protocol.Encode(m), int64(m.revision))
	if err == nil {
		m.revision = revision
	}
	return err
}

// turnPage moves the oldest segments of the list to a page. Its key is new: where the manifest is not written
// after that, nobody knows the page, and it goes with the history.
func (m *manifest) turnPage(ctx context.Context) error {
	full := m.Segments[:m.conn.segments.inManifest]
	value := protocol.Encode(&segmentList{Version: protocol.Version, Segments: full})
	key := manifestKey(m.tenant, m.sandbox) + "." + strings.ToLower(ulid.Make().String())
	if _, err := m.conn.kv(protocol.BucketHistories).put(ctx, key, value, 0); err != nil {
		return err
	}
	m.Pages = append(m.Pages, manifestPage{key, full[0].FirstEvent, full[0].FirstRecord, full[len(full)-1].LastRecord})
	m.Segments = append([]segment(nil), m.Segments[len(full):]...)
	return nil
}

// page reads a page.
func (m *manifest) page(ctx context.Context, key string) ([]segment, error) {
	value, _, err := m.conn.kv(protocol.BucketHistories).get(ctx, key)
	if err != nil {
		return nil, err
	}
	var l segmentList
	if err := protocol.Decode(value, &l); err != nil {
		return nil, err
	}
	return l.Segments, protocol.CheckVersion(l.Version)
}

// last is the newest record that a segment has; 0: there is none.
func (m *manifest) last() uint64 {
	if n := len(m.Segments); n > 0 {
		return m.Segments[n-1].LastRecord
	}
	if n := len(m.Pages); n > 0 {
		return m.Pages[n-1].LastRecord
	}
	return 0
}

// each visits the segments that have something behind a record, in their order, until visit returns false.
func (m *manifest) each(ctx context.Context, after uint64, visit func(s *segment) (bool, error)) error {
	over := func(list []segment) (bool, error) {
		for i := sort.Search(len(list), func(i int) bool { return list[i].LastRecord > after }); i < len(list); i++ {
			if goOn, err := visit(&list[i]); !goOn || err != nil {
				return true, err
			}
		}
		return false, nil
	}
	for _, p := range m.Pages {
		if p.LastRecord <= after {
			continue
		}
		list, err := m.page(ctx, p.Key)
		if err != nil {
			return err
		}
		if ended, err := over(list); ended || err != nil {
			return err
		}
	}
	_, err := over(m.Segments)
	return err
}

// historyBase reads the state that is kept in place of the segments which are kept no longer; nil: there
// is none.
func (c *Conn) historyBase(ctx context.Context, tenant, sandbox string) (*Snapshot, error) {
	value, _, err := c.kv(protocol.BucketHistories).get(ctx, baseKey(tenant, sandbox))
	if protocol.CodeOf(err) == protocol.NotFound || isReason(err, protocol.ReasonNotProvisioned) {
		return nil, nil
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
