package images

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// sweeper removes unused images while the disk is too full, or images exceed their own limit.
type sweeper struct {
	*remover
	cfg     Config
	dataDir string // the engine's data directory; "" if the engine is on another machine
}

func (s *sweeper) sweep(ctx context.Context) error {
	used, err := s.engine.ImagesInUse(ctx)
	if err != nil {
		return err
	}
	s.inventory.touch(used)
	if err := s.dropAbsent(ctx, used); err != nil {
		return err
	}
	if !s.over(s.cfg.HighWater) {
		return nil
	}
	for _, name := range s.inventory.unused(used, time.Now()) {
		if !s.over(s.cfg.LowWater) {
			return nil
		}
		if err := s.remove(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// dropAbsent drops the records of names that another client of the engine removed, or gave to another image.
func (s *sweeper) dropAbsent(ctx context.Context, used map[string]bool) error {
	for name, r := range s.inventory.all() {
		if used[r.ID] {
			continue
		}
		found, err := s.engine.FindImage(ctx, name)
		if err != nil && !errors.Is(err, docker.ErrImageNotFound) {
			return err
		}
		if found.ID != r.ID {
			s.inventory.dropUnneeded(name, r)
		}
	}
	return nil
}

// over reports whether the file system of the images is fuller than this percentage, or the images exceed
// Config.MaxBytes.
func (s *sweeper) over(percent int) bool {
	if s.cfg.MaxBytes > 0 && s.inventory.bytes() > s.cfg.MaxBytes {
		return true
	}
	used, ok := filesystemUse(s.dataDir)
	return ok && percent < 100 && used > percent
}

// filesystemUse returns how full a file system is in percent: the higher of its use of bytes and of inodes. ok is false
// if the worker cannot see the file system.
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

// querier asks the coordinators.
type querier interface {
	Query(ctx context.Context, tenant, endpoint string, q *protocol.Query) (*protocol.Reply, error)
}

// remover removes images that are not needed.
type remover struct {
	engine    *docker.Engine
	inventory *inventory
	querier   querier
	log       *slog.Logger
}

// awaited reports whether a pending sandbox waits for the image of a name. The sandbox may be on any host, or may have
// no host yet.
func (d *remover) awaited(ctx context.Context, name string) (bool, error) {
	r, err := d.querier.Query(ctx, protocol.DefaultTenant, protocol.EndpointAwaited,
		&protocol.Query{Images: d.inventory.awaitedAs(name)})
	if err != nil {
		return false, err
	}
	return len(r.Awaited) > 0, nil
}

// remove removes a name that the worker gave to an image. If it was the last name, the engine also removes the image.
// remove does nothing if the image is needed, if a container uses it, or if a sandbox waits for it. If no coordinator
// answers whether a sandbox waits, remove returns an error. A name that another client gave to another image stays.
func (d *remover) remove(ctx context.Context, name string) error {
	if awaited, err := d.awaited(ctx, name); err != nil || awaited {
		return err
	}
	d.inventory.removal.Lock()
	defer d.inventory.removal.Unlock()
	r := d.inventory.removable(name)
	if r == nil {
		return nil
	}
	found, err := d.engine.FindImage(ctx, name)
	switch {
	case errors.Is(err, docker.ErrImageNotFound):
	case err != nil:
		return err
	case r.Others, found.ID != r.ID, name == r.ID && len(found.Tags) > 0: // the name or the image is another client's
	default:
		err := d.engine.RemoveImage(ctx, name)
		if err == nil && r.Left != "" {
			err = d.engine.RemoveImage(ctx, r.Left)
		}
		if protocol.CodeOf(err) == protocol.FailedPrecondition { // a container was created from the image meanwhile
			return nil
		}
		if err != nil {
			return err
		}
		d.log.Info("removed an unused image", "image", name, "id", r.ID, "size", r.Size, "used", r.UsedAt)
	}
	d.inventory.drop(name, r)
	return nil
}
