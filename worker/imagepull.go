package worker

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/netip"
	"runtime"
	"strings"
	"time"

	"github.com/boxfleet/boxfleet/imageref"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/registry"
)

// localName is what the worker calls an image on the host that specs call full, by how it came.
func (m *images) localName(origin, full string) string {
	return imageref.Local(m.w.conn.Deployment(), origin, full)
}

// find finds an image on the host: what was imported under its name; what somebody else calls so there; or
// what the worker pulled.
func (m *images) find(ctx context.Context, full, ref string) (docker.Image, error) {
	if found, err := m.findLocal(ctx, protocol.ImageImported, full); !errors.Is(err, docker.ErrImageNotFound) {
		return found, err
	}
	byName, err := m.w.engine.FindImage(ctx, ref)
	if err != nil && !errors.Is(err, docker.ErrImageNotFound) || err == nil && !m.owns(full, byName.ID) {
		return byName, err
	}
	if found, err := m.findLocal(ctx, protocol.ImagePulled, full); !errors.Is(err, docker.ErrImageNotFound) {
		return found, err
	}
	return byName, err
}

// findLocal finds an image by the name that the worker gave it, by its record.
func (m *images) findLocal(ctx context.Context, origin, full string) (docker.Image, error) {
	name := m.localName(origin, full)
	m.mu.Lock()
	r := m.records[name]
	m.mu.Unlock()
	if r == nil {
		return docker.Image{}, docker.ErrImageNotFound
	}
	found, err := m.w.engine.FindImage(ctx, name)
	if found.ID == r.ID {
		found.Digest = r.Digest
	}
	return found, err
}

// owns says whether a name on the host is one that the worker gave to this image.
func (m *images) owns(name, id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.records[name]
	return r != nil && r.ID == id && !r.Others
}

// pull gets an image from its registry, as far as the operator lets the worker go there.
func (m *images) pull(ctx context.Context, full string, report func(protocol.PullProgress)) (docker.Image, error) {
	switch imageref.TrustOf(m.cfg.Registries, full) {
	case imageref.Refused:
		return docker.Image{}, denied("spec.image", "the host's operator lets no image be pulled from %s (worker.images.registries)", imageref.Registry(full))
	case imageref.Checked:
		return m.fetch(ctx, full, report)
	}
	before, err := m.w.engine.FindImage(ctx, full)
	if err != nil && !errors.Is(err, docker.ErrImageNotFound) {
		return docker.Image{}, err
	}
	if before.ID != "" && !m.owns(full, before.ID) && !strings.Contains(full, "@") {
		return m.pullAside(ctx, full, report)
	}
	now, err := m.w.engine.PullImage(ctx, full, report)
	if err == nil {
		m.pulled(full, before, now)
	}
	return now, err
}

// pullAside has the Engine pull an image whose name is somebody else's on the host, and leaves it theirs.
func (m *images) pullAside(ctx context.Context, full string, report func(protocol.PullProgress)) (docker.Image, error) {
	name := m.localName(protocol.ImagePulled, full)
	left := func(ref string) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.left[name] = ref
	}
	found, err := m.w.engine.PullAside(ctx, full, name, left, report)
	if err != nil {
		return found, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	record := &imageRecord{Ref: full, ID: found.ID, Size: protocol.Bytes(found.Size), Origin: cmp.Or(m.keep[full], protocol.ImagePulled), Digest: found.Digest, UsedAt: time.Now().UTC()}
	if old := m.records[name]; old != nil && old.ID == found.ID {
		record.Left = old.Left
	}
	record.Left = cmp.Or(m.left[name], record.Left)
	delete(m.left, name)
	m.own(name, record)
	signal(m.full)
	return found, nil
}

// fetch reads an image of its registry, where only addresses are asked that are public, and gives it to
// the Engine under a name of the worker's own. What is there already is not read again.
func (m *images) fetch(ctx context.Context, full string, report func(protocol.PullProgress)) (docker.Image, error) {
	name := m.localName(protocol.ImagePulled, full)
	open := func(ctx context.Context) (docker.Archive, error) {
		image, err := m.registries.Open(ctx, full, runtime.GOARCH, registry.Login(m.w.engine.LoginFor(ctx, full)))
		if err != nil {
			var e *protocol.Error
			if errors.As(err, &e) && e.Reason == protocol.ReasonPolicyDenied {
				e.Field = "spec.image"
			}
			return nil, err
		}
		m.mu.Lock()
		m.digests[name] = image.Digest
		r := m.records[name]
		m.mu.Unlock()
		if r != nil && r.Digest == image.Digest {
			if found, err := m.w.engine.FindImage(ctx, name); err == nil && found.ID == r.ID {
				return nil, nil
			}
		}
		return func(ctx context.Context, w io.Writer, moved func(string, int64, int64)) error {
			return image.Write(ctx, w, name, moved)
		}, nil
	}
	if err := m.w.engine.TakeImage(ctx, full, open, report); err != nil {
		return docker.Image{}, err
	}
	found, err := m.w.engine.FindImage(ctx, name)
	if err != nil {
		return found, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	found.Digest = m.digests[name]
	m.own(name, &imageRecord{Ref: full, ID: found.ID, Size: protocol.Bytes(found.Size), Origin: cmp.Or(m.keep[full], protocol.ImagePulled), Digest: found.Digest, UsedAt: time.Now().UTC()})
	signal(m.full)
	return found, nil
}

// pulled records a pull. A name that was there before, and is not the worker's, stays somebody
// else's, whatever it names now.
func (m *images) pulled(full string, before, now docker.Image) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.records[full]
	if old == nil && before.ID != "" {
		return
	}
	origin := cmp.Or(m.keep[full], protocol.ImagePulled)
	others := old != nil && old.Others && before.ID != ""
	m.own(full, &imageRecord{ID: now.ID, Size: protocol.Bytes(now.Size), Origin: origin, Others: others, UsedAt: time.Now().UTC()})
	signal(m.full)
}

// deniedRanges are the ranges that the operator keeps sandboxes from: their images are not read of there either.
func deniedRanges(texts []string) (ranges []netip.Prefix) {
	for _, text := range texts {
		if r, err := netip.ParsePrefix(text); err == nil { // others were refused before
			ranges = append(ranges, r)
		}
	}
	return ranges
}
