package worker

import (
	"context"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/hostdir"
	"github.com/boxfleet/boxfleet/worker/hostfiles"
	"github.com/boxfleet/boxfleet/worker/treecopy"
)

// directory returns the directory of a generation of the sandbox: the one that its container names, which a worker
// with another state directory may have created, or else the one in this worker's state directory.
func (s *sandbox) directory(generation uint64) hostdir.Dir {
	d := s.w.dirs.Of(s.key, generation)
	s.mu.Lock()
	defer s.mu.Unlock()
	return d.At(s.home)
}

// uncoverVolumes shows a container's processes what its image has in its volumes. pid is the container's first one.
func uncoverVolumes(d hostdir.Dir, pid int) error {
	defaults, err := d.Defaults()
	if err != nil {
		return err
	}
	return hostfiles.UncoverVolumes(pid, defaults.Volumes)
}

// copyTrees copies the uploaded trees that a spec has for a service, or for the primary container if service is "".
// mounted are the paths of the container at which something is mounted.
func (s *sandbox) copyTrees(
	ctx context.Context, container, service string, copies []protocol.Copy, mounted []string,
) error {
	copier := treecopy.Copier{Engine: s.w.engine, Uploads: s.w.conn, Disk: s.w.disk}
	to := treecopy.Container{ID: container, Sandbox: s.key, Service: service, Mounted: mounted}
	return copier.Copy(ctx, to, copies)
}
