package images

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/imageref"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/wake"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/registry"
)

// Options are what [New] needs.
type Options struct {
	Config       Config // Config.Check must have been called
	Deployment   string
	Worker       string // the worker's name
	HostID       string
	Instance     string
	Dir          string   // the directory in which the record of images is stored
	DenyNetworks []string // valid IPv4 ranges; the worker connects to no public registry in these ranges
	Engine       *docker.Engine
	Log          Log
	Recovered    func() <-chan struct{} // returns a channel that is closed when the engine or NATS is back
	Logger       *slog.Logger
}

// Log is the part of the deployment's store that this package uses.
type Log interface {
	querier
	wantedSource
	reportSink
}

// Images manages the images of a host. Its methods may be called concurrently.
type Images struct {
	cfg        Config
	deployment string
	engine     *docker.Engine
	recovered  func() <-chan struct{}
	log        *slog.Logger

	inventory  *inventory
	remover    *remover
	importer   *importer
	reporter   *reporter
	registries *registry.Client // reads from registries that the operator does not name
	sweepNow   wake.Signal

	mu      sync.Mutex
	digests map[string]string // digests last read from a registry, by name on the host
	left    map[string]string // references by digest that a pull left on the engine, by name on the host
}

// New returns the manager of a host's images. It reads nothing yet: see [Images.Load].
func New(o Options) *Images {
	inv := newInventory(o.Dir, o.Logger)
	for _, ref := range o.Config.PrePull {
		inv.pins[ref] = protocol.ImagePrePull
	}
	remover := &remover{engine: o.Engine, inventory: inv, log: o.Logger, querier: o.Log}
	return &Images{
		cfg: o.Config, deployment: o.Deployment, engine: o.Engine, recovered: o.Recovered, log: o.Logger,
		inventory: inv, remover: remover,
		importer: &importer{worker: o.Worker, deployment: o.Deployment, engine: o.Engine, inventory: inv, remover: remover,
			source: o.Log, recovered: o.Recovered, log: o.Logger},
		reporter: &reporter{engine: o.Engine, inventory: inv, sink: o.Log, interval: o.Config.Sweep, log: o.Logger,
			identity: protocol.HostImages{Worker: o.Worker, HostID: o.HostID, Instance: o.Instance}},
		registries: registry.New(parseRanges(o.DenyNetworks)), sweepNow: wake.New(),
		digests: map[string]string{}, left: map[string]string{},
	}
}

// parseRanges parses valid ranges. It skips invalid ones.
func parseRanges(texts []string) (ranges []netip.Prefix) {
	for _, text := range texts {
		if r, err := netip.ParsePrefix(text); err == nil {
			ranges = append(ranges, r)
		}
	}
	return ranges
}

// Load reads the record of the host's images. Images without a record are never removed.
func (m *Images) Load() { m.inventory.load() }

// Get returns an image, and pulls it if the pull policy demands that. The image stays on the host until the caller
// calls release. Get calls report, which may be nil, with the progress of a pull.
func (m *Images) Get(ctx context.Context, ref, policy string, report func(protocol.PullProgress)) (
	_ docker.Image, release func(), err error) {
	full, err := imageref.Full("spec.image", ref)
	if err != nil {
		return docker.Image{}, nil, err
	}
	held := m.inventory.hold(full)
	defer func() {
		if err != nil {
			held()
		}
	}()
	found, err := m.find(ctx, full, ref)
	missing := errors.Is(err, docker.ErrImageNotFound)
	if err != nil && !missing {
		return found, nil, err
	}
	if missing && policy == protocol.PullNever {
		return found, nil, protocol.Errorf(protocol.NotFound, protocol.ReasonImageNotFound,
			"the host has no image %s, and spec.pull is never", ref)
	}
	recheck := m.cfg.CheckCached && found.Digest != "" && policy != protocol.PullNever
	if !missing && policy != protocol.PullAlways && !recheck {
		return found, held, nil
	}
	pulled, err := m.pull(ctx, full, report)
	return pulled, held, err
}

// Run pulls, imports, removes and reports images until ctx ends. dataDir is the path of the engine's data directory on
// the engine's machine.
func (m *Images) Run(ctx context.Context, dataDir string) error {
	defer m.registries.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, ref := range m.cfg.PrePull {
		wg.Go(func() { m.prePull(ctx, ref) })
	}
	wg.Go(func() { m.reporter.run(ctx) })
	wg.Go(func() { m.reporter.follow(ctx) })
	wg.Go(func() { m.importer.run(ctx) })
	sweeper := &sweeper{remover: m.remover, cfg: m.cfg, dataDir: localDataDir(m.engine.Address(), dataDir)}
	tick := time.NewTicker(m.cfg.Sweep)
	defer tick.Stop()
	for {
		if err := sweeper.sweep(ctx); err != nil && ctx.Err() == nil {
			m.log.Warn("could not find unused images, or could not remove one of them; retrying later", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-m.sweepNow:
		case <-tick.C:
		}
	}
}

// localDataDir returns the engine's data directory if the engine is on this machine, and "" otherwise.
func localDataDir(address, dataDir string) string {
	if !strings.HasPrefix(address, "unix://") {
		return ""
	}
	return dataDir
}

const (
	prePullFirst = 5 * time.Second
	prePullMost  = 5 * time.Minute // also the interval at which a pulled image is checked
)

// prePull pulls an image of Config.PrePull. It checks at intervals whether the image was removed, and then pulls it
// again.
func (m *Images) prePull(ctx context.Context, ref string) {
	name := ref
	if imageref.TrustOf(m.cfg.Registries, ref) == imageref.Checked {
		name = m.localName(protocol.ImagePulled, ref)
	}
	status := func(i protocol.HostImage) {
		i.Ref, i.Origin = ref, protocol.ImagePrePull
		m.inventory.setStatus(name, i)
	}
	pause := backoff.New(prePullFirst, prePullMost)
	for ctx.Err() == nil {
		recovered := m.recovered()
		image, release, err := m.Get(ctx, ref, protocol.PullMissing, func(protocol.PullProgress) {
			status(protocol.HostImage{State: protocol.ImageLoading})
		})
		if err == nil {
			release()
			status(protocol.HostImage{State: protocol.ImageReady, ID: image.ID, Size: protocol.Bytes(image.Size)})
			pause.Reset()
			if !backoff.Sleep(ctx, prePullMost) {
				return
			}
			continue
		}
		m.log.Warn("could not pull an image that worker.images.pre_pull lists; retrying", "image", ref, "error", err)
		status(protocol.HostImage{State: protocol.ImageFailed, Error: protocol.AsError(err)})
		select {
		case <-ctx.Done():
			return
		case <-recovered:
			pause.Reset()
		case <-time.After(pause.Next()):
		}
	}
}
