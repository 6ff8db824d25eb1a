package coordinator

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/boxfleet/boxfleet/coordinator/placement"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/wake"
)

// awaited answers which images the pending sandboxes of all tenants wait for. Workers do not remove these images. A
// user or viewer of one tenant must not learn which images other tenants use.
func (rd *reader) awaited(ctx context.Context, _ string, q *protocol.Query) (*protocol.Reply, error) {
	if user := jetstream.UserOf(ctx); user != "" && !strings.HasPrefix(user, "@") {
		return nil, protocol.Errorf(protocol.PermissionDenied, "",
			"only workers, operators and fleet viewers may ask which images are awaited; list your own sandboxes instead")
	}
	r := &protocol.Reply{}
	for _, b := range rd.projection.work.pendingSandboxes() {
		if b.State != protocol.StatePending || b.Resuming { // a sandbox that resumes still has its containers
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

// hostImages follows the workers' reports about the images of their hosts, and the imports in progress.
type hostImages struct {
	mu      sync.Mutex
	table   placement.Images
	changed map[string]bool // workers whose report changed since the last takeChanged
	imports map[string]*protocol.WantedImage
	wake    wake.Signal // wakes the scheduler
}

func newHostImages(wake wake.Signal) *hostImages {
	return &hostImages{table: placement.Images{}, changed: map[string]bool{},
		imports: map[string]*protocol.WantedImage{}, wake: wake}
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
	return conn.FollowHostImages(ctx, func(worker string, reported *protocol.HostImages) {
		i.mu.Lock()
		defer i.mu.Unlock()
		if reported == nil {
			delete(i.table, worker)
		} else {
			i.table[worker] = reported
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

// takeChanged returns the reports that changed since the last call, by worker; the report is nil if the worker no
// longer reports.
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

// markAllChanged makes the next takeChanged return all reports.
func (i *hostImages) markAllChanged() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for worker := range i.table {
		i.changed[worker] = true
	}
}
