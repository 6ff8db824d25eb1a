package coordinator

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/boxfleet/boxfleet/imageref"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
)

// imageTable is what workers say of the images of their hosts, by worker.
type imageTable map[string]*protocol.HostImages

// names are those of a host's images, nil where nobody has said them: what an earlier worker of the
// host said may be long over.
func (t imageTable) names(h *protocol.Host) *protocol.HostImages {
	told := t[h.Worker]
	if told == nil || !told.Listed || told.Instance != h.Instance {
		return nil
	}
	return told
}

// wantedImage is an image that a sandbox cannot be made without, or can.
type wantedImage struct {
	field, ref string
	optional   bool
}

func wantedImages(s *protocol.SandboxSpec) []wantedImage {
	all := []wantedImage{{field: "spec.image", ref: s.Image}}
	for _, name := range slices.Sorted(maps.Keys(s.RequiredServices)) {
		all = append(all, wantedImage{field: "spec.required_services." + name + ".image", ref: s.RequiredServices[name].Image})
	}
	for _, name := range slices.Sorted(maps.Keys(s.OptionalServices)) {
		all = append(all, wantedImage{ref: s.OptionalServices[name].Image, optional: true})
	}
	return all
}

// imageRefusal says which image a host lacks that nobody may pull, or that its operator lets it pull from
// nowhere; "" where there is none. A host may have it later: somebody imports it, or brings it there by hand.
func imageRefusal(s *protocol.SandboxSpec, h *protocol.Host, t imageTable) string {
	if !h.Images { // an older worker finds out by trying
		return ""
	}
	told := t.names(h)
	for _, w := range wantedImages(s) {
		if e := lacksImage(s, h, told, w); e != nil {
			return explained(e)
		}
	}
	return ""
}

// lacksImage is the error for an image that a host cannot have for a sandbox as it is, nil where it can. told
// is nil while the host has not said which images it has.
func lacksImage(s *protocol.SandboxSpec, h *protocol.Host, told *protocol.HostImages, w wantedImage) *protocol.Error {
	refused := s.Pull != protocol.PullNever && !mayPull(h, w.ref)
	switch {
	case w.optional, s.Pull != protocol.PullNever && !refused:
		return nil
	case refused && s.Pull == protocol.PullAlways:
	case told == nil && refused:
		return lack(protocol.PermissionDenied, protocol.ReasonPolicyDenied, w.field, "%s pulls nothing from the registry of %s, and has not said yet which images it has", h.Worker, w.ref)
	case told == nil:
		return lack(protocol.NotFound, protocol.ReasonImageNotFound, w.field, "spec.pull is never, and the host has not said yet which images it has")
	case mayHave(told, w.ref):
		return nil
	case !refused:
		return lack(protocol.NotFound, protocol.ReasonImageNotFound, w.field, "the host has no image %s, and spec.pull is never", w.ref)
	}
	return lack(protocol.PermissionDenied, protocol.ReasonPolicyDenied, w.field, "the operator of %s lets no image be pulled from the registry of %s (worker.images.registries)", h.Worker, w.ref)
}

// mayPull says whether a host's operator may let an image be pulled from its registry. An older worker does
// not say, and pulls from all.
func mayPull(h *protocol.Host, ref string) bool {
	full, err := imageref.Full("", ref)
	return err != nil || len(h.Registries) == 0 || imageref.TrustOf(h.Registries, full) != imageref.Refused
}

// nowhere returns the error for a sandbox whose images may not be pulled and no host has, and which
// nothing that is known brings to one: no import, and no worker's configuration. nil where waiting may
// help. What no operator lets be pulled is policy_denied.
func nowhere(b *protocol.Sandbox, hosts []*protocol.Host, t imageTable, imports []*protocol.WantedImage) *protocol.Error {
	var lacking *protocol.Error
	for _, h := range hosts {
		s, err := specOn(b, h)
		if err != nil {
			continue
		}
		told := t.names(h)
		if b.Resuming || !h.Images || told == nil {
			return nil
		}
		var e *protocol.Error
		for _, w := range wantedImages(s) {
			if e = lacksImage(s, h, told, w); e != nil && (s.Pull == protocol.PullAlways || !isBrought(w.ref, h, told, imports)) {
				break
			}
			e = nil
		}
		switch {
		case e == nil:
			return nil
		case e.Reason == protocol.ReasonImageNotFound:
			e.Message = strings.Replace(e.Message, "the host has no image", "no host has an image", 1)
			lacking = e
		case lacking == nil:
			lacking = e
		}
	}
	return lacking
}

// isBrought says whether a host is to get an image, by an import or by its worker's configuration.
func isBrought(ref string, h *protocol.Host, told *protocol.HostImages, imports []*protocol.WantedImage) bool {
	full, err := imageref.Full("", ref)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(imports, func(w *protocol.WantedImage) bool {
		return w.Ref == full && (len(w.Workers) == 0 || slices.Contains(w.Workers, h.Worker))
	}) || slices.ContainsFunc(told.Images, func(i protocol.HostImage) bool { return i.Ref == full })
}

// imagesThere is which part of a sandbox's images a host has, from 0 to 1. Of a host that says
// nothing of them, nothing is held against it.
func imagesThere(s *protocol.SandboxSpec, h *protocol.Host, t imageTable) float64 {
	told := t.names(h)
	if told == nil {
		return 1
	}
	wanted, there := wantedImages(s), 0
	for _, w := range wanted {
		if mayHave(told, w.ref) {
			there++
		}
	}
	return float64(there) / float64(len(wanted))
}

// awaited says which images pending sandboxes wait for, so that no worker removes one. It is of every
// tenant: a worker's images are.
func (c *coordinator) awaited(_ context.Context, _ string, q *protocol.Query) (*protocol.Reply, error) {
	r := &protocol.Reply{}
	for _, b := range c.projection.pendings() {
		if b.State != protocol.StatePending || b.Resuming { // the containers of a stopped one are there
			continue
		}
		for _, w := range wantedImages(&b.Spec) {
			for _, image := range q.Images {
				if isNamed(image, w.ref) && !slices.Contains(r.Awaited, image) {
					r.Awaited = append(r.Awaited, image)
				}
			}
		}
	}
	return r, nil
}

// isNamed says whether a reference of a spec may mean an image, which is given by its full reference or
// by its id.
func isNamed(image, ref string) bool {
	if id, isID := strings.CutPrefix(image, "sha256:"); isID {
		image = idPrefix + id
	}
	return mayHave(&protocol.HostImages{Names: []string{image}}, ref)
}

// idPrefix begins the full form of an image's id.
const idPrefix = "docker.io/library/sha256:"

// mayHave says whether a host has an image, by a name or by (the beginning of) its id, as its Engine
// would look for it; and also whether it may have it among those that it does not tell of.
func mayHave(told *protocol.HostImages, ref string) bool {
	full, err := imageref.Full("", ref)
	if err != nil || told.Cut { // the worker refuses what is no reference
		return true
	}
	if _, found := slices.BinarySearch(told.Names, full); found {
		return true
	}
	id := idPrefix + strings.TrimPrefix(ref, "sha256:")
	i, _ := slices.BinarySearch(told.Names, id)
	return i < len(told.Names) && strings.HasPrefix(told.Names[i], id)
}

// hostImages follows what workers say of the images of their hosts, and what is imported.
type hostImages struct {
	mu      sync.Mutex
	table   imageTable
	changed map[string]bool // workers, since the scheduler looked
	imports map[string]*protocol.WantedImage
	wake    func() // when something changed
}

func newHostImages(wake func()) *hostImages {
	return &hostImages{table: imageTable{}, changed: map[string]bool{}, imports: map[string]*protocol.WantedImage{}, wake: wake}
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

func (i *hostImages) imported() []*protocol.WantedImage {
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
		i.wake()
	})
}

func (i *hostImages) list() imageTable {
	i.mu.Lock()
	defer i.mu.Unlock()
	return maps.Clone(i.table)
}

// takeChanged returns what was told since the last call, nil for a worker that tells nothing any more.
func (i *hostImages) takeChanged() imageTable {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.changed) == 0 {
		return nil
	}
	changed := make(imageTable, len(i.changed))
	for worker := range i.changed {
		changed[worker] = i.table[worker]
	}
	clear(i.changed)
	return changed
}

// tellAll has the next call of takeChanged return everything.
func (i *hostImages) tellAll() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for worker := range i.table {
		i.changed[worker] = true
	}
}
