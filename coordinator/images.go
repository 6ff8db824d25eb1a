package coordinator

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/boxfleet/boxfleet/coordinator/placement"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/wake"
)

// awaited says which images pending sandboxes wait for, so that no worker removes one. It is of every
// tenant: a worker's images are.
func (rd *reader) awaited(_ context.Context, _ string, q *protocol.Query) (*protocol.Reply, error) {
	r := &protocol.Reply{}
	for _, b := range rd.projection.work.pendingSandboxes() {
		if b.State != protocol.StatePending || b.Resuming { // the containers of a stopped one are there
			continue
		}
		for _, ref := range placement.ImageRefs(&b.Spec) {
			for _, image := range q.Images {
				if placement.MayMean(image, ref) && !slices.Contains(r.Awaited, image) {
					r.Awaited = append(r.Awaited, image)
				}
			}
		}
	}
	return r, nil
}

// hostImages follows what workers say of the images of their hosts, and what is imported.
type hostImages struct {
	mu      sync.Mutex
	table   placement.Images
	changed map[string]bool // workers, since the scheduler looked
	imports map[string]*protocol.WantedImage
	wake    wake.Signal // the scheduler's
}

func newHostImages(wake wake.Signal) *hostImages {
	return &hostImages{table: placement.Images{}, changed: map[string]bool{}, imports: map[string]*protocol.WantedImage{}, wake: wake}
}

func (i *hostImages) followImports(ctx context.Context, conn *jetstream.Conn, caughtUp func()) error {
	return conn.FollowWantedImages(ctx, func(key string, want *protocol.WantedImage) {
		i.mu.Lock()
		defer i.mu.Unlock()
		if want == nil {
			delete(i.imports, key)
		} else {
			i.imports[key] = want
		}
	}, caughtUp)
}

func (i *hostImages) importing() []*protocol.WantedImage {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Collect(maps.Values(i.imports))
}

func (i *hostImages) follow(ctx context.Context, conn *jetstream.Conn) error {
	return conn.FollowHostImages(ctx, func(worker string, told *protocol.HostImages) {
		i.mu.Lock()
		defer i.mu.Unlock()
		if told == nil {
			delete(i.table, worker)
		} else {
			i.table[worker] = told
		}
		i.changed[worker] = true
		i.wake.Wake()
	})
}

func (i *hostImages) list() placement.Images {
	i.mu.Lock()
	defer i.mu.Unlock()
	return maps.Clone(i.table)
}

// takeChanged returns what was told since the last call, nil for a worker that tells nothing any more.
func (i *hostImages) takeChanged() placement.Images {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.changed) == 0 {
		return nil
	}
	changed := make(placement.Images, len(i.changed))
	for worker := range i.changed {
		changed[worker] = i.table[worker]
	}
	clear(i.changed)
	return changed
}

// markAllChanged has the next call of takeChanged return everything.
func (i *hostImages) markAllChanged() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for worker := range i.table {
		i.changed[worker] = true
	}
}
