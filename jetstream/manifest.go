package jetstream

import (
	"context"
	"sort"
	"strings"

	"github.com/oklog/ulid/v2"

	"github.com/boxfleet/boxfleet/protocol"
)

// manifest lists the segments that hold the messages of one history that were moved out of the log. It is written by
// compare-and-set, after a segment was stored and read back and before messages leave the log. A crash can therefore
// leave messages both in the log and in a segment, but never loses messages. If two coordinators compact a history, one
// of them gets [ErrConflict].
type manifest struct {
	Version  int            `json:"v"`
	Segments []segment      `json:"segments,omitempty"` // the newest segments, in order
	Pages    []manifestPage `json:"pages,omitempty"`    // lists of the older segments, in order

	// Loose are objects that are not part of the history: an object that is being stored, and the objects of dropped
	// segments. The next compaction removes them first.
	Loose []string `json:"loose,omitempty"`

	store           *segments
	tenant, sandbox string
	revision        uint64 // 0: not stored
}

// manifestPage refers to a full list of segments under a key of its own.
type manifestPage struct {
	Key         string `json:"key"`
	FirstEvent  uint64 `json:"first_event"`
	FirstRecord uint64 `json:"first_record"`
	LastRecord  uint64 `json:"last_record"`
}

// segmentList is the value of a page. A page never changes.
type segmentList struct {
	Version  int       `json:"v"`
	Segments []segment `json:"segments"`
}

// segmentsInManifest is the number of segments on a page. A manifest that lists twice as many moves the older half to a
// page.
const segmentsInManifest = 512

func manifestKey(tenant, sandbox string) string { return tenant + "." + sandbox }
func baseKey(tenant, sandbox string) string     { return manifestKey(tenant, sandbox) + ".base" }

// manifest reads a history's manifest from the leader. If no manifest is stored, it returns an empty manifest.
func (sg *segments) manifest(ctx context.Context, tenant, sandbox string) (*manifest, error) {
	m := &manifest{Version: protocol.Version, store: sg, tenant: tenant, sandbox: sandbox}
	value, revision, err := sg.kv(protocol.BucketHistories).get(ctx, manifestKey(tenant, sandbox))
	// The bucket of manifests does not exist until a coordinator of this version has provisioned the deployment.
	if protocol.CodeOf(err) == protocol.NotFound || isReason(err, protocol.ReasonNotProvisioned) {
		return m, nil
	}
	if err != nil {
		return nil, err
	}
	m.revision = revision
	if err := protocol.Decode(value, m); err != nil {
		return nil, protocol.Errorf(protocol.Internal, "", "decode the manifest of the history of %s: %v", sandbox, err)
	}
	return m, protocol.CheckVersion(m.Version)
}

// write replaces the stored manifest. Error: [ErrConflict] if the stored manifest no longer has the revision that was
// read.
func (m *manifest) write(ctx context.Context) error {
	for len(m.Segments) >= 2*m.store.cache.inManifest {
		if err := m.turnPage(ctx); err != nil {
			return err
		}
	}
	key := manifestKey(m.tenant, m.sandbox)
	revision, err := m.store.kv(protocol.BucketHistories).put(ctx, key, protocol.Encode(m), int64(m.revision))
	if err == nil {
		m.revision = revision
	}
	return err
}

// turnPage moves the oldest segments of the list to a page with a new key. If the manifest is not written afterwards,
// nothing refers to the page, and it is removed with the history.
func (m *manifest) turnPage(ctx context.Context) error {
	full := m.Segments[:m.store.cache.inManifest]
	value := protocol.Encode(&segmentList{Version: protocol.Version, Segments: full})
	key := manifestKey(m.tenant, m.sandbox) + "." + strings.ToLower(ulid.Make().String())
	if _, err := m.store.kv(protocol.BucketHistories).put(ctx, key, value, 0); err != nil {
		return err
	}
	page := manifestPage{key, full[0].FirstEvent, full[0].FirstRecord, full[len(full)-1].LastRecord}
	m.Pages = append(m.Pages, page)
	m.Segments = append([]segment(nil), m.Segments[len(full):]...)
	return nil
}

// page reads the segments of a page.
func (m *manifest) page(ctx context.Context, key string) ([]segment, error) {
	value, _, err := m.store.kv(protocol.BucketHistories).get(ctx, key)
	if err != nil {
		return nil, err
	}
	var l segmentList
	if err := protocol.Decode(value, &l); err != nil {
		return nil, err
	}
	return l.Segments, protocol.CheckVersion(l.Version)
}

// last returns the newest record that is in a segment, or 0 if there are no segments.
func (m *manifest) last() uint64 {
	if n := len(m.Segments); n > 0 {
		return m.Segments[n-1].LastRecord
	}
	if n := len(m.Pages); n > 0 {
		return m.Pages[n-1].LastRecord
	}
	return 0
}

// each visits the segments with messages after a record, in order, until visit returns false.
func (m *manifest) each(ctx context.Context, after uint64, visit func(s *segment) (bool, error)) error {
	visitAll := func(list []segment) (ended bool, err error) {
		for i := sort.Search(len(list), func(i int) bool { return list[i].LastRecord > after }); i < len(list); i++ {
			if more, err := visit(&list[i]); !more || err != nil {
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
		if ended, err := visitAll(list); ended || err != nil {
			return err
		}
	}
	_, err := visitAll(m.Segments)
	return err
}

// historyBase reads the state that replaces expired segments. It returns nil if no such state is stored.
func (sg *segments) historyBase(ctx context.Context, tenant, sandbox string) (*Snapshot, error) {
	value, _, err := sg.kv(protocol.BucketHistories).get(ctx, baseKey(tenant, sandbox))
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
