package images

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/wake"
)

// inventory records the names that the worker gave to images on the host, and which of these names are needed.
type inventory struct {
	file    string
	log     *slog.Logger
	changed wake.Signal // set when the report of images is outdated

	// removal is locked while an image is removed, and while hold counts a use of an image. A removal therefore knows
	// of every use that was counted before.
	removal sync.Mutex

	mu      sync.Mutex
	records map[string]*record            // by name on the host
	holds   map[string]int                // number of creates and pulls that use an image, by full reference
	pins    map[string]string             // origins of the images that must stay, by name on the host
	status  map[string]protocol.HostImage // status to report instead of the record, by name on the host
	dirty   bool                          // records have changed since they were saved
}

// record is a name that the worker gave to an image. Records are kept in a file.
type record struct {
	Ref    string         `json:"ref,omitempty"` // the image's reference in specs; "": the same as the name on the host
	ID     string         `json:"id"`
	Size   protocol.Bytes `json:"size"`
	Origin string         `json:"origin"`
	Digest string         `json:"digest,omitempty"` // the digest in the registry, if only the worker uses the name
	Left   string         `json:"left,omitempty"`   // reference by digest that the worker's pull left on the engine
	File   string         `json:"file,omitempty"`   // digest of the imported file

	// Others is true if the name belonged to an image of another client of the engine, and then a pull, or an import by
	// an older version, gave the name to another image. The worker never removes such a name.
	Others bool      `json:"others,omitempty"`
	UsedAt time.Time `json:"used_at"`
}

// specRef returns the reference by which specs name the image. name is the image's name on the host.
func (r *record) specRef(name string) string { return cmp.Or(r.Ref, name) }

func newInventory(dir string, log *slog.Logger) *inventory {
	return &inventory{file: filepath.Join(dir, "images.json"), log: log, changed: wake.New(),
		records: map[string]*record{}, holds: map[string]int{}, pins: map[string]string{},
		status: map[string]protocol.HostImage{}}
}

// load reads the records. If they cannot be read, the worker never removes the images that are already on the host.
// That wastes disk space, but does no other harm.
func (v *inventory) load() {
	data, err := os.ReadFile(v.file)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	records := map[string]*record{}
	if err == nil {
		err = json.Unmarshal(data, &records)
	}
	if err != nil {
		v.log.Warn("could not read the record of the host's images; the images that the host has now will not be removed",
			"error", err)
		return
	}
	for name, r := range records {
		if r == nil {
			continue
		}
		v.records[name] = r
		if r.Origin == protocol.ImageImported { // keep it until the importer knows whether it is still wanted
			v.pins[name] = protocol.ImageImported
		}
	}
}

// save writes the records. The caller holds the lock.
func (v *inventory) save() {
	data, err := json.MarshalIndent(v.records, "", "\t")
	if err == nil {
		err = os.WriteFile(v.file+".tmp", data, 0o600)
	}
	if err == nil { // after a failed write, as on a full disk, a rename would replace the old file by half a file
		err = os.Rename(v.file+".tmp", v.file)
	}
	if err != nil {
		v.log.Warn("could not write the record of the host's images", "error", err)
		return
	}
	v.dirty = false
}

// get returns the record of a name on the host, or nil.
func (v *inventory) get(name string) *record {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.records[name]
}

// all returns a copy of the map of records.
func (v *inventory) all() map[string]*record {
	v.mu.Lock()
	defer v.mu.Unlock()
	return maps.Clone(v.records)
}

// put records that the worker gave a name to an image. If another image of the worker had the name before, that image
// is now recorded under its id.
func (v *inventory) put(name string, r *record) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if old := v.records[name]; old != nil && old.ID != r.ID && !old.Others {
		old.Ref, old.Digest, old.Origin = "", "", protocol.ImagePulled
		v.records[old.ID] = old
	}
	v.records[name] = r
	v.save()
	v.changed.Wake()
}

// drop removes the record of a name, unless the name has another record by now.
func (v *inventory) drop(name string, r *record) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.records[name] == r {
		delete(v.records, name)
		v.save()
		v.changed.Wake()
	}
}

// dropUnneeded is like drop, but keeps the record of a name that is needed.
func (v *inventory) dropUnneeded(name string, r *record) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.records[name] == r && !v.needed(name) {
		delete(v.records, name)
		v.save()
		v.changed.Wake()
	}
}

// owns reports whether the worker gave this name to this image.
func (v *inventory) owns(name, id string) bool {
	r := v.get(name)
	return r != nil && r.ID == id && !r.Others
}

// hold keeps the image of a full reference on the host until the caller calls release. release also sets the image's
// time of last use.
func (v *inventory) hold(full string) (release func()) {
	v.removal.Lock()
	defer v.removal.Unlock()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.holds[full]++
	return sync.OnceFunc(func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.holds[full]--; v.holds[full] == 0 {
			delete(v.holds, full)
		}
		for name, r := range v.records {
			if r.specRef(name) == full {
				r.UsedAt, v.dirty = time.Now().UTC(), true
			}
		}
	})
}

// pin keeps a name on the host until [inventory.unpinUnwanted] unpins the name, and returns the record of the name.
func (v *inventory) pin(name, origin string) *record {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.pins[name] = origin
	return v.records[name]
}

// pulledAs returns the origin to record for a pulled image.
func (v *inventory) pulledAs(full string) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return cmp.Or(v.pins[full], protocol.ImagePulled)
}

// setStatus sets the reported status of a pinned name.
func (v *inventory) setStatus(name string, i protocol.HostImage) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.status[name] = i
	v.changed.Wake()
}

// clearStatus removes the status of a name, so that its record is reported.
func (v *inventory) clearStatus(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, set := v.status[name]; set {
		delete(v.status, name)
		v.changed.Wake()
	}
}

// touch records that containers use the images with these ids.
func (v *inventory) touch(used map[string]bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, r := range v.records {
		if used[r.ID] {
			r.UsedAt, v.dirty = time.Now().UTC(), true
		}
	}
	if v.dirty {
		v.save()
	}
}

// bytes returns the size of all recorded images. An image with several names counts once.
func (v *inventory) bytes() protocol.Bytes {
	v.mu.Lock()
	defer v.mu.Unlock()
	sizes := map[string]protocol.Bytes{}
	for _, r := range v.records {
		if !r.Others {
			sizes[r.ID] = r.Size
		}
	}
	var sum protocol.Bytes
	for _, size := range sizes {
		sum += size
	}
	return sum
}

// unused lists the names whose images may be removed. Large images, and images that were not used for a long time, are
// first.
func (v *inventory) unused(used map[string]bool, now time.Time) []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	var names []string
	weight := map[string]float64{}
	for name, r := range v.records {
		if r.Others || used[r.ID] || v.needed(name) {
			continue
		}
		names = append(names, name)
		weight[name] = float64(r.Size) * now.Sub(r.UsedAt).Seconds()
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(weight[b], weight[a]), cmp.Compare(a, b))
	})
	return names
}

// removable returns the record of a name, or nil if the name has no record or is needed.
func (v *inventory) removable(name string) *record {
	v.mu.Lock()
	defer v.mu.Unlock()
	if r := v.records[name]; r != nil && !v.needed(name) {
		return r
	}
	return nil
}

// needed reports whether a recorded name must stay: it is pinned, or its image is held or pre-pulled. The caller holds
// the lock.
func (v *inventory) needed(name string) bool {
	ref := v.ref(name)
	prePulled := v.pins[ref] == protocol.ImagePrePull && v.records[name].Origin != protocol.ImageImported
	return v.pins[name] != "" || v.holds[ref] > 0 || prePulled
}

// ref returns the reference by which specs name the image that has this name on the host. The caller holds the lock.
func (v *inventory) ref(name string) string {
	if r := v.records[name]; r != nil {
		return r.specRef(name)
	}
	return name
}

// awaitedAs returns the references under which sandboxes may wait for the image of a name.
func (v *inventory) awaitedAs(name string) []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	refs := []string{v.ref(name)}
	if r := v.records[name]; r != nil && r.ID != name {
		refs = append(refs, r.ID)
	}
	return refs
}

// older returns the record of an import by an older version, or nil. Older versions gave an imported image the name
// that specs use.
func (v *inventory) older(ref string) *record {
	r := v.get(ref)
	if r != nil && r.Origin == protocol.ImageImported && r.Ref == "" {
		return r
	}
	return nil
}

// dropOlder drops a record that [inventory.older] returned.
func (v *inventory) dropOlder(ref string, r *record) {
	v.mu.Lock()
	if v.records[ref] == r && v.pins[ref] == protocol.ImageImported {
		delete(v.pins, ref)
		delete(v.status, ref)
	}
	v.mu.Unlock()
	v.drop(ref, r)
}

// unpinUnwanted unpins the names of imports that are not wanted, and lists them for removal. An image that is still in
// use is listed again the next time.
func (v *inventory) unpinUnwanted(wanted map[string]bool) (unwanted []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for name, r := range v.records {
		if r.Origin == protocol.ImageImported && !wanted[name] {
			unwanted = append(unwanted, name)
		}
	}
	for name, origin := range v.pins {
		if origin == protocol.ImageImported && !wanted[name] {
			delete(v.pins, name)
			delete(v.status, name)
			v.changed.Wake()
		}
	}
	return unwanted
}

// rows returns the worker's images for the report.
func (v *inventory) rows() []protocol.HostImage {
	v.mu.Lock()
	defer v.mu.Unlock()
	rows := maps.Clone(v.status)
	for name, r := range v.records {
		row, set := rows[name]
		if !set {
			row = protocol.HostImage{Ref: r.specRef(name), Origin: r.Origin, State: protocol.ImageReady,
				ID: r.ID, Size: r.Size, File: r.File}
		}
		row.UsedAt = r.UsedAt
		rows[name] = row
	}
	return slices.SortedFunc(maps.Values(rows), func(a, b protocol.HostImage) int {
		return cmp.Or(cmp.Compare(a.Ref, b.Ref), cmp.Compare(a.Origin, b.Origin), cmp.Compare(a.ID, b.ID))
	})
}

// withRefs returns the names, and before them further references: for each name that only the worker uses, the
// reference by which specs name the image.
func (v *inventory) withRefs(names []string) []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	var refs []string
	for _, name := range names {
		if ref := v.ref(name); ref != name {
			refs = append(refs, ref)
		}
	}
	slices.Sort(refs)
	return append(refs, names...)
}
