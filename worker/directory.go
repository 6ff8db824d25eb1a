package worker

import (
	"github.com/boxfleet/boxfleet/worker/hostdir"
	"github.com/boxfleet/boxfleet/worker/hostfiles"
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
