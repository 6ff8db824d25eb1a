package worker

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// So much of its images a worker tells at most, so that it fits into a message.
const (
	maxTold      = 1000      // images that it looks after; names
	maxNameBytes = 128 << 10 // of all names
)

// table is what the worker says of its images.
func (m *images) table() []protocol.HostImage {
	m.mu.Lock()
	defer m.mu.Unlock()
	rows := maps.Clone(m.status)
	for name, r := range m.records {
		row, shown := rows[name]
		if !shown {
			row = protocol.HostImage{Ref: cmp.Or(r.Ref, name), Origin: r.Origin, State: protocol.ImageReady, ID: r.ID, Size: r.Size, File: r.File}
		}
		row.UsedAt = r.UsedAt
		rows[name] = row
	}
	all := slices.SortedFunc(maps.Values(rows), func(a, b protocol.HostImage) int {
		return cmp.Or(cmp.Compare(a.Ref, b.Ref), cmp.Compare(a.Origin, b.Origin), cmp.Compare(a.ID, b.ID))
	})
	return all[:min(len(all), maxTold)]
}

// called adds to the names of images on the host what specs call those that the worker gave a name of its own.
func (m *images) called(names []string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var refs []string
	for _, name := range names {
		if ref := m.ref(name); ref != name {
			refs = append(refs, ref)
		}
	}
	slices.Sort(refs)
	return append(refs, names...)
}

// boundedNames is what is told of the names of a host's images, in order; cut says whether there are
// more. The first ones are kept, and they are those that most people ask for.
func boundedNames(names []string) (told []string, cut bool) {
	size := 0
	for _, name := range names {
		if size += len(name); len(told) == maxTold || size > maxNameBytes {
			cut = true
			break
		}
		told = append(told, name)
	}
	slices.Sort(told)
	return slices.Compact(told), cut
}

// tellPause is the least time between two tellings.
const tellPause = 500 * time.Millisecond

// tell says what is on the host, now and at each change, until ctx ends. It looks at each sweep, too:
// the Engine's word that something changed may be lost.
func (m *images) tell(ctx context.Context) {
	var last []byte
	told := protocol.HostImages{Worker: m.w.cfg.Name, HostID: m.w.hostID, Instance: m.w.instance}
	look := time.NewTicker(m.cfg.Sweep)
	defer look.Stop()
	for {
		var again <-chan time.Time
		names, err := m.w.engine.ImageNames(ctx)
		if err == nil {
			told.Listed = true
			told.Names, told.Cut = boundedNames(m.called(names))
		} else if ctx.Err() == nil {
			m.w.log.Warn("the host's images are not listed", "error", err)
			again = time.After(time.Second)
		}
		told.Images = m.table()
		now := told
		if content := protocol.Encode(now); !bytes.Equal(content, last) {
			now.Time = m.w.conn.Now()
			if err := m.w.conn.TellImages(ctx, &now); err == nil {
				last = content
			} else if ctx.Err() == nil {
				m.w.log.Warn("the host's images are not told", "error", err)
				signal(m.changed)
			}
		}
		if !sleep(ctx, tellPause) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-m.changed:
		case <-again:
		case <-look.C:
		}
	}
}

// watchNames has the images looked at whenever the Engine says that some changed, until ctx ends.
func (m *images) watchNames(ctx context.Context) {
	for ctx.Err() == nil {
		err := m.w.engine.FollowImages(ctx, func() { signal(m.changed) })
		if ctx.Err() == nil {
			m.w.log.Debug("the engine does not say what becomes of images", "error", err)
		}
		if !sleep(ctx, time.Second) {
			return
		}
		signal(m.changed)
	}
}
