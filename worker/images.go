package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/imageref"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/registry"
)

// Images says how a worker treats the images of its host.
type Images struct {
	PullStall    time.Duration  // a pull that makes no progress for so long ends; default 2 min
	PrePull      []string       // got and kept, whether a sandbox wants them or not
	HighWater    int            // percent of the file system with the engine's data, in bytes or inodes, above which unused images go; default 85; 100: never
	LowWater     int            // ... until this; default 75
	MaxBytes     protocol.Bytes // of the images that the worker pulled; 0: no bound
	CheckCached  bool           // ask the registry before each use of an image of one, as pull: always does
	Registries   []string       // that images are pulled from: host or host:port as in references, and "public"; default docker.io and public
	DockerConfig string         // directory with credentials for registries; default DOCKER_CONFIG, or ~/.docker
	Sweep        time.Duration  // between two looks at the room that images take; default 1 min
}

func (c *Images) check() error {
	c.PullStall = cmp.Or(c.PullStall, docker.DefaultPullStall)
	c.HighWater, c.LowWater = cmp.Or(c.HighWater, 85), cmp.Or(c.LowWater, min(cmp.Or(c.HighWater, 85), 75))
	c.Sweep = cmp.Or(c.Sweep, time.Minute)
	switch {
	case c.PullStall < 0 || c.Sweep < 0:
		return protocol.Invalid("images.pull_stall", "must be more than 0")
	case c.HighWater < 1 || c.HighWater > 100:
		return protocol.Invalid("images.high_water", "must be 1 to 100 percent, got %d", c.HighWater)
	case c.LowWater < 1 || c.LowWater > c.HighWater:
		return protocol.Invalid("images.low_water", "must be 1 percent to images.high_water, %d, got %d", c.HighWater, c.LowWater)
	case c.MaxBytes < 0:
		return protocol.Invalid("images.max_bytes", "must not be negative")
	}
	if len(c.Registries) == 0 {
		c.Registries = []string{imageref.DockerHub, imageref.PublicRegistries}
	}
	var err error
	if c.Registries, err = imageref.CheckRegistries("images.registries", c.Registries); err != nil {
		return err
	}
	for i, ref := range c.PrePull {
		full, err := imageref.Full("images.pre_pull", ref)
		if err != nil {
			return err
		}
		if imageref.TrustOf(c.Registries, full) == imageref.Refused {
			return protocol.Invalid("images.pre_pull", "%.200s is of a registry that images.registries does not allow", full)
		}
		c.PrePull[i] = full
	}
	return nil
}

// images looks after the images that the worker brought to its host: those that it pulled for
// sandboxes, those of its configuration, and those that were imported. It owns names, not contents:
// what an image is called by somebody else stays. Only an image that the Engine pulled is called on the
// host what specs call it; the others have names of the worker's own, see imageref.Local.
//
//	want (a sandbox, the configuration, an import) → get → on the engine, and in the records
//	records, by name → sweep: what nobody uses or wants goes, when room is short
type images struct {
	w   *worker
	cfg Images

	registries *registry.Client // for those that the Engine is not sent to

	// gate keeps an image from going between the moment that it is found and the one that it is held.
	gate sync.Mutex

	mu      sync.Mutex
	records map[string]*imageRecord       // by name on the host
	holds   map[string]int                // full references that a create, or a pull, is about
	keep    map[string]string             // names on the host that are to stay, and their origin
	status  map[string]protocol.HostImage // of those in keep, as last seen
	digests map[string]string             // of what was last read of a registry, by name on the host
	left    map[string]string             // references that pulls beside somebody else's name left, by name on the host
	dirty   bool
	changed chan struct{} // has room for one
	full    chan struct{} // has room for one: look at the room now
}

// imageRecord is a name of an image that the worker gave. It is kept in a file.
type imageRecord struct {
	Ref    string         `json:"ref,omitempty"` // what specs call it; "": as the host does
	ID     string         `json:"id"`
	Size   protocol.Bytes `json:"size"`
	Origin string         `json:"origin"`
	Digest string         `json:"digest,omitempty"` // as its registry has it, of one whose name is the worker's own
	Left   string         `json:"left,omitempty"`   // a reference by digest that the Engine has, too, since the worker's pull
	File   string         `json:"file,omitempty"`   // digest of the imported file
	Others bool           `json:"others,omitempty"` // an import of an older version moved a name of somebody else's to it: it is never removed
	UsedAt time.Time      `json:"used_at"`
}

func newImages(w *worker) *images {
	m := &images{w: w, cfg: w.cfg.Images, records: map[string]*imageRecord{}, holds: map[string]int{},
		keep: map[string]string{}, status: map[string]protocol.HostImage{}, digests: map[string]string{}, left: map[string]string{},
		registries: registry.New(deniedRanges(w.cfg.DenyNetworks)),
		changed:    make(chan struct{}, 1), full: make(chan struct{}, 1)}
	for _, ref := range m.cfg.PrePull {
		m.keep[ref] = protocol.ImagePrePull
	}
	return m
}

func (m *images) file() string { return filepath.Join(m.w.dir, "images.json") }

// load reads the records. Without them the worker owns no image, which costs room and harms nobody.
func (m *images) load() {
	data, err := os.ReadFile(m.file())
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	records := map[string]*imageRecord{}
	if err == nil {
		err = json.Unmarshal(data, &records)
	}
	if err != nil {
		m.w.log.Warn("the record of the host's images cannot be read: those that are there stay", "error", err)
		return
	}
	for ref, r := range records {
		if r == nil {
			continue
		}
		m.records[ref] = r
		if r.Origin == protocol.ImageImported { // until it is known that it is not wanted any more
			m.keep[ref] = protocol.ImageImported
		}
	}
}

// save writes the records; the caller holds the lock.
func (m *images) save() {
	data, err := json.MarshalIndent(m.records, "", "\t")
	if err == nil {
		err = errors.Join(os.WriteFile(m.file()+".tmp", data, 0o600), os.Rename(m.file()+".tmp", m.file()))
	}
	if err != nil {
		m.w.log.Warn("the record of the host's images is not written", "error", err)
		return
	}
	m.dirty = false
}

// get returns an image, pulled where the policy says so, and keeps it from being removed until
// release is called, which the caller must. report, which may be nil, hears of a pull's progress.
func (m *images) get(ctx context.Context, ref, policy string, report func(protocol.PullProgress)) (_ docker.Image, release func(), err error) {
	full, err := imageref.Full("spec.image", ref)
	if err != nil {
		return docker.Image{}, nil, err
	}
	held := m.hold(full)
	defer func() {
		if err != nil {
			held()
		}
	}()
	found, err := m.find(ctx, full, ref)
	missing := errors.Is(err, docker.ErrImageNotFound)
	switch {
	case err != nil && !missing:
		return found, nil, err
	case missing && policy == protocol.PullNever:
		return found, nil, protocol.Errorf(protocol.NotFound, protocol.ReasonImageNotFound, "the host has no image %s, and spec.pull is never", ref)
	case !missing && policy == protocol.PullAlways, !missing && policy != protocol.PullNever && m.cfg.CheckCached && found.Digest != "":
	case !missing:
		return found, held, nil
	}
	pulled, err := m.pull(ctx, full, report)
	return pulled, held, err
}

// image gets an image for a container of the sandbox, with a pull's progress in its history. The
// caller calls release once the container is made: from then on the container keeps the image.
func (s *sandbox) image(ctx context.Context, generation uint64, ref, policy string) (_ docker.Image, release func(), err error) {
	return s.w.images.get(ctx, ref, policy, func(p protocol.PullProgress) {
		b := &protocol.Sandbox{Generation: generation}
		err := s.afterPhases(ctx, b, func(st *protocol.State) []protocol.Event {
			if st.Sandbox.State != protocol.StatePending { // an optional service may come later
				return nil
			}
			phase := cmp.Or(s.phasesOf(b).Current(), st.Sandbox.Phase, "image")
			return []protocol.Event{{Kind: protocol.SandboxPreparing, Phase: &protocol.SandboxDetails{Phase: phase, Pull: &p}}}
		})
		if err != nil && !errors.Is(err, errSuperseded) && ctx.Err() == nil {
			s.log.Warn("the progress of a pull is not appended", "image", p.Image, "error", err)
		}
	})
}

// hold keeps an image until it is released. A release counts as a use of it.
func (m *images) hold(full string) (release func()) {
	m.gate.Lock()
	defer m.gate.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.holds[full]++
	return sync.OnceFunc(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.holds[full]--; m.holds[full] == 0 {
			delete(m.holds, full)
		}
		for name, r := range m.records {
			if cmp.Or(r.Ref, name) == full {
				r.UsedAt, m.dirty = time.Now().UTC(), true
			}
		}
	})
}

// own records a name. What it named before goes by its id. The caller holds the lock.
func (m *images) own(full string, r *imageRecord) {
	if old := m.records[full]; old != nil && old.ID != r.ID && !old.Others {
		old.Ref, old.Digest, old.Origin = "", "", protocol.ImagePulled
		m.records[old.ID] = old
	}
	m.records[full] = r
	m.save()
	signal(m.changed)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run looks after the images until ctx ends.
func (m *images) run(ctx context.Context) error {
	defer m.registries.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, ref := range m.cfg.PrePull {
		wg.Go(func() { m.prePull(ctx, ref) })
	}
	wg.Go(func() { m.tell(ctx) })
	wg.Go(func() { m.watchNames(ctx) })
	wg.Go(func() { m.importWanted(ctx) })
	tick := time.NewTicker(m.cfg.Sweep)
	defer tick.Stop()
	for {
		if err := m.sweep(ctx); err != nil && ctx.Err() == nil {
			m.w.log.Warn("the host's images are not looked after", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-m.full:
		case <-tick.C:
		}
	}
}

const (
	prePullFirst = 5 * time.Second
	prePullMost  = 5 * time.Minute
)

// prePull gets an image of the configuration, and gets it again where somebody removed it.
func (m *images) prePull(ctx context.Context, ref string) {
	pause, name := prePullFirst, ref
	if imageref.TrustOf(m.cfg.Registries, ref) == imageref.Checked {
		name = m.localName(protocol.ImagePulled, ref)
	}
	for ctx.Err() == nil {
		back := m.w.recovery.next()
		image, release, err := m.get(ctx, ref, protocol.PullMissing, func(protocol.PullProgress) {
			m.show(name, protocol.HostImage{Ref: ref, Origin: protocol.ImagePrePull, State: protocol.ImageLoading})
		})
		if err == nil {
			release()
			m.show(name, protocol.HostImage{Ref: ref, Origin: protocol.ImagePrePull, State: protocol.ImageReady, ID: image.ID, Size: protocol.Bytes(image.Size)})
			pause = prePullFirst
			if !sleep(ctx, prePullMost) {
				return
			}
			continue
		}
		m.w.log.Warn("an image is not pulled yet", "image", ref, "error", err)
		m.show(name, protocol.HostImage{Ref: ref, Origin: protocol.ImagePrePull, State: protocol.ImageFailed, Error: protocol.AsError(err)})
		awaitWake(ctx, back, pause)
		select {
		case <-back:
			pause = prePullFirst
		default:
			pause = min(2*pause, prePullMost)
		}
	}
}

// show says what became of an image that is to be there, by its name on the host.
func (m *images) show(name string, i protocol.HostImage) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.status[name] = i
	signal(m.changed)
}

// sweep removes unused images where they take too much room, until they do not.
func (m *images) sweep(ctx context.Context) error {
	used, err := m.w.engine.ImagesInUse(ctx)
	if err != nil {
		return err
	}
	m.touch(used)
	if err := m.forgetAbsent(ctx, used); err != nil {
		return err
	}
	if !m.over(m.cfg.HighWater) {
		return nil
	}
	for _, ref := range m.unused(used, time.Now()) {
		if !m.over(m.cfg.LowWater) {
			return nil
		}
		if err := m.remove(ctx, ref); err != nil {
			return err
		}
	}
	return nil
}

// touch notes that images are in use by containers.
func (m *images) touch(used map[string]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.records {
		if used[r.ID] {
			r.UsedAt, m.dirty = time.Now().UTC(), true
		}
	}
	if m.dirty {
		m.save()
	}
}

// forgetAbsent drops the records of names that somebody else removed or gave to another image.
func (m *images) forgetAbsent(ctx context.Context, used map[string]bool) error {
	m.mu.Lock()
	records := maps.Clone(m.records)
	m.mu.Unlock()
	for ref, r := range records {
		if used[r.ID] {
			continue
		}
		found, err := m.w.engine.FindImage(ctx, ref)
		if err != nil && !errors.Is(err, docker.ErrImageNotFound) {
			return err
		}
		if found.ID == r.ID {
			continue
		}
		m.mu.Lock()
		if m.records[ref] == r && !m.kept(ref) {
			delete(m.records, ref)
			m.save()
			signal(m.changed)
		}
		m.mu.Unlock()
	}
	return nil
}

// over says whether the images take too much room: so many percent of their file system are used, or
// their own bound is passed.
func (m *images) over(percent int) bool {
	if m.cfg.MaxBytes > 0 && m.bytes() > m.cfg.MaxBytes {
		return true
	}
	if !strings.HasPrefix(m.w.address, "unix://") {
		return false // its file system is not this one
	}
	used, ok := filesystemUse(m.w.info.RootDir)
	return ok && percent < 100 && used > percent
}

// bytes is what the images of sandboxes take that the worker pulled.
func (m *images) bytes() protocol.Bytes {
	m.mu.Lock()
	defer m.mu.Unlock()
	sizes := map[string]protocol.Bytes{}
	for _, r := range m.records {
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

// filesystemUse says how many percent of a file system are used, of its bytes or its inodes,
// whichever is more; ok is false where it cannot be seen from here.
func filesystemUse(dir string) (percent int, ok bool) {
	var s unix.Statfs_t
	if dir == "" || unix.Statfs(dir, &s) != nil || s.Blocks == 0 {
		return 0, false
	}
	share := func(used, free uint64) int { return int(100 * used / max(used+free, 1)) }
	percent = share(s.Blocks-s.Bfree, s.Bavail)
	if s.Files > 0 {
		percent = max(percent, share(s.Files-s.Ffree, s.Ffree))
	}
	return percent, true
}

// unused lists the names whose images may go, those first that are large and long unused.
func (m *images) unused(used map[string]bool, now time.Time) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var refs []string
	weight := map[string]float64{}
	for ref, r := range m.records {
		if r.Others || used[r.ID] || m.kept(ref) {
			continue
		}
		refs = append(refs, ref)
		weight[ref] = float64(r.Size) * now.Sub(r.UsedAt).Seconds()
	}
	slices.SortFunc(refs, func(a, b string) int { return cmp.Or(cmp.Compare(weight[b], weight[a]), cmp.Compare(a, b)) })
	return refs
}

// kept says whether a name is to stay. The caller holds the lock.
func (m *images) kept(name string) bool {
	ref := m.ref(name)
	return m.keep[name] != "" || m.holds[ref] > 0 || m.keep[ref] == protocol.ImagePrePull && m.records[name].Origin != protocol.ImageImported
}

// ref is what specs call an image, by its name on the host. The caller holds the lock.
func (m *images) ref(name string) string {
	if r := m.records[name]; r != nil && r.Ref != "" {
		return r.Ref
	}
	return name
}

// awaited says whether a pending sandbox, on this host, on another, or on none yet, waits for an image.
func (m *images) awaited(ctx context.Context, ref string) (bool, error) {
	m.mu.Lock()
	names := []string{m.ref(ref)}
	if r := m.records[ref]; r != nil && r.ID != ref {
		names = append(names, r.ID)
	}
	m.mu.Unlock()
	r, err := m.w.conn.Query(ctx, protocol.DefaultTenant, protocol.EndpointAwaited, &protocol.Query{Images: names})
	if err != nil {
		return false, err
	}
	return len(r.Awaited) > 0, nil
}

// remove takes a name of the worker's from its image, and with the last one the image, unless somebody
// waits for it, has begun to want it, or uses it, or has given the name to another image. Where no
// coordinator says whether somebody waits for it, it stays.
func (m *images) remove(ctx context.Context, ref string) error {
	if awaited, err := m.awaited(ctx, ref); err != nil || awaited {
		return err
	}
	m.gate.Lock()
	defer m.gate.Unlock()
	m.mu.Lock()
	r := m.records[ref]
	gone := r == nil || m.kept(ref)
	m.mu.Unlock()
	if gone {
		return nil
	}
	found, err := m.w.engine.FindImage(ctx, ref)
	switch {
	case errors.Is(err, docker.ErrImageNotFound):
	case err != nil:
		return err
	case r.Others, found.ID != r.ID, ref == r.ID && len(found.Tags) > 0: // it is not the worker's, or not any more
	default:
		err := m.w.engine.RemoveImage(ctx, ref)
		if err == nil && r.Left != "" {
			err = m.w.engine.RemoveImage(ctx, r.Left)
		}
		if protocol.CodeOf(err) == protocol.FailedPrecondition { // a container came in between
			return nil
		}
		if err != nil {
			return err
		}
		m.w.log.Info("removed an unused image", "image", ref, "id", r.ID, "size", r.Size, "used", r.UsedAt)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.records, ref)
	m.save()
	signal(m.changed)
	return nil
}
