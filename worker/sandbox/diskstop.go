package sandbox

import (
	"context"
	"os"
	"sync"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/disk"
	"github.com/boxfleet/boxfleet/worker/hosterr"
)

// StopForDisk records why the disk watch stopped the sandbox, and ends a create that is running.
func (s *Sandbox) StopForDisk(why *protocol.Error) {
	s.diskStop.set(why)
	s.mu.Lock()
	if s.cancel != nil && s.operation == decide.Create && !s.busy {
		s.cancel()
	}
	s.mu.Unlock()
	s.Inspect()
	if os.Geteuid() == 0 {
		return
	}
	go func() { // a worker that is not root cannot kill the processes of other users; the engine can
		if err := s.host.Engine.KillContainer(context.Background(), s.name()); err != nil {
			s.log.Warn("could not kill the container of a sandbox that fills a disk", "error", err)
		}
	}()
}

// diskStop records why the disk watch stopped the sandbox.
type diskStop struct {
	s *Sandbox

	mu  sync.Mutex
	why *protocol.Error // nil: this process's disk watch did not stop the sandbox
}

func (d *diskStop) set(why *protocol.Error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.why = why
}

// now returns why this process's disk watch stopped the sandbox, or nil if the sandbox was not stopped.
func (d *diskStop) now() *protocol.Error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.why
}

// noted returns why the disk watch of this worker or of an earlier worker stopped the sandbox, or nil if the sandbox
// was not stopped.
func (d *diskStop) noted(generation uint64) *protocol.Error {
	if why := d.now(); why != nil {
		return why
	}
	return disk.ReadNote(d.s.dir(generation).Path)
}

// forget lets a sandbox start again after the disk watch stopped it.
func (d *diskStop) forget(generation uint64) error {
	d.set(nil)
	if err := disk.RemoveNote(d.s.dir(generation).Path); err != nil {
		return hosterr.Wrap(err, "remove the note that says why the disk watch stopped the sandbox")
	}
	return nil
}
