package images

import (
	"cmp"
	"context"
	"errors"
	"io"
	"runtime"
	"strings"
	"time"

	"github.com/boxfleet/boxfleet/imageref"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
	"github.com/boxfleet/boxfleet/worker/registry"
)

// localName returns the name that only the worker uses for an image on the host. full is the image's full reference in
// specs.
func (m *Images) localName(origin, full string) string {
	return imageref.Local(m.deployment, origin, full)
}

// find finds an image on the host. It prefers an import, then an image to which another client of the engine gave the
// name, then an image that the worker pulled.
func (m *Images) find(ctx context.Context, full, ref string) (docker.Image, error) {
	imported, err := m.findLocal(ctx, protocol.ImageImported, full)
	if !errors.Is(err, docker.ErrImageNotFound) {
		return imported, err
	}
	byName, err := m.engine.FindImage(ctx, ref)
	if err != nil && !errors.Is(err, docker.ErrImageNotFound) || err == nil && !m.inventory.owns(full, byName.ID) {
		return byName, err
	}
	if pulled, err := m.findLocal(ctx, protocol.ImagePulled, full); !errors.Is(err, docker.ErrImageNotFound) {
		return pulled, err
	}
	return byName, err
}

// findLocal finds an image by the name that only the worker uses.
func (m *Images) findLocal(ctx context.Context, origin, full string) (docker.Image, error) {
	name := m.localName(origin, full)
	r := m.inventory.get(name)
	if r == nil {
		return docker.Image{}, docker.ErrImageNotFound
	}
	found, err := m.engine.FindImage(ctx, name)
	if found.ID == r.ID {
		found.Digest = r.Digest
	}
	return found, err
}

// pull pulls an image if the operator allows its registry.
func (m *Images) pull(ctx context.Context, full string, report func(protocol.PullProgress)) (docker.Image, error) {
	switch imageref.TrustOf(m.cfg.Registries, full) {
	case imageref.Refused:
		e := protocol.Errorf(protocol.PermissionDenied, protocol.ReasonPolicyDenied,
			"the host's operator does not allow images from %s (worker.images.registries)", imageref.Registry(full))
		e.Field = "spec.image"
		return docker.Image{}, e
	case imageref.Checked:
		return m.pullPublic(ctx, full, report)
	}
	before, err := m.engine.FindImage(ctx, full)
	if err != nil && !errors.Is(err, docker.ErrImageNotFound) {
		return docker.Image{}, err
	}
	if before.ID != "" && !m.inventory.owns(full, before.ID) && !strings.Contains(full, "@") {
		return m.pullAside(ctx, full, report)
	}
	now, err := m.engine.PullImage(ctx, full, report)
	if err == nil {
		m.recordPull(full, before, now)
	}
	return now, err
}

// recordPull records a pull by the engine. If another client of the engine had given the name to its own image before
// the pull, the name still belongs to that client, even if the pull gave the name to another image.
func (m *Images) recordPull(full string, before, now docker.Image) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.inventory.get(full)
	if old == nil && before.ID != "" {
		return
	}
	others := old != nil && old.Others && before.ID != ""
	m.inventory.put(full, &record{ID: now.ID, Size: protocol.Bytes(now.Size), Origin: m.inventory.pulledAs(full),
		Others: others, UsedAt: time.Now().UTC()})
	m.sweepNow.Wake()
}

// pullAside makes the engine pull an image whose name on the host belongs to another client of the engine. The client's
// image keeps that name. The pulled image gets a name that only the worker uses.
func (m *Images) pullAside(ctx context.Context, full string, report func(protocol.PullProgress)) (docker.Image, error) {
	name := m.localName(protocol.ImagePulled, full)
	left := func(ref string) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.left[name] = ref
	}
	found, err := m.engine.PullAside(ctx, full, name, left, report)
	if err != nil {
		return found, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r := &record{Ref: full, ID: found.ID, Size: protocol.Bytes(found.Size), Origin: m.inventory.pulledAs(full),
		Digest: found.Digest, UsedAt: time.Now().UTC()}
	if old := m.inventory.get(name); old != nil && old.ID == found.ID {
		r.Left = old.Left
	}
	r.Left = cmp.Or(m.left[name], r.Left)
	delete(m.left, name)
	m.inventory.put(name, r)
	m.sweepNow.Wake()
	return found, nil
}

// pullPublic reads an image from a registry that the operator does not name, and connects only to public addresses. It
// loads the image into the engine under a name that only the worker uses. If the host already has the image, pullPublic
// does not read it again.
func (m *Images) pullPublic(ctx context.Context, full string, report func(protocol.PullProgress)) (docker.Image,
	error) {
	name := m.localName(protocol.ImagePulled, full)
	open := func(ctx context.Context) (docker.Archive, error) {
		login := registry.Login(m.engine.LoginFor(ctx, full))
		image, err := m.registries.Open(ctx, full, runtime.GOARCH, login)
		if err != nil {
			var e *protocol.Error
			if errors.As(err, &e) && e.Reason == protocol.ReasonPolicyDenied {
				e.Field = "spec.image"
			}
			return nil, err
		}
		m.mu.Lock()
		m.digests[name] = image.Digest
		m.mu.Unlock()
		if r := m.inventory.get(name); r != nil && r.Digest == image.Digest {
			if found, err := m.engine.FindImage(ctx, name); err == nil && found.ID == r.ID {
				return nil, nil
			}
		}
		return func(ctx context.Context, w io.Writer, moved func(string, int64, int64)) error {
			return image.Write(ctx, w, name, moved)
		}, nil
	}
	if err := m.engine.TakeImage(ctx, full, open, report); err != nil {
		return docker.Image{}, err
	}
	found, err := m.engine.FindImage(ctx, name)
	if err != nil {
		return found, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	found.Digest = m.digests[name]
	m.inventory.put(name, &record{Ref: full, ID: found.ID, Size: protocol.Bytes(found.Size),
		Origin: m.inventory.pulledAs(full), Digest: found.Digest, UsedAt: time.Now().UTC()})
	m.sweepNow.Wake()
	return found, nil
}
