package coordinator

import (
	"context"
	"fmt"
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

// imageRefusal says which image a host lacks that nobody may pull, "" where there is none. A host
// may have it later: somebody imports it, or brings it there by hand.
func imageRefusal(s *protocol.SandboxSpec, h *protocol.Host, t imageTable) string {
	if s.Pull != protocol.PullNever || !h.Images { // an older worker finds out by trying
		return ""
	}
	told := t.names(h)
	if told == nil {
		return "spec.pull: never, and the host has not said yet which images it has"
	}
	for _, w := range wantedImages(s) {
		if !w.optional && !mayHave(told, w.ref) {
			return fmt.Sprintf("%s: the host has no image %s, and spec.pull is never", w.field, w.ref)
		}
	}
	return ""
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

// hostImages follows what workers say of the images of their hosts.
type hostImages struct {
	mu    sync.Mutex
	table imageTable
	wake  func() // when something changed
}

func newHostImages(wake func()) *hostImages { return &hostImages{table: imageTable{}, wake: wake} }

func (i *hostImages) follow(ctx context.Context, conn *jetstream.Conn) error {
	return conn.FollowHostImages(ctx, func(worker string, told *protocol.HostImages) {
		i.mu.Lock()
		defer i.mu.Unlock()
		if told == nil {
			delete(i.table, worker)
		} else {
			i.table[worker] = told
		}
		i.wake()
	})
}

func (i *hostImages) list() imageTable {
	i.mu.Lock()
	defer i.mu.Unlock()
	return maps.Clone(i.table)
}
