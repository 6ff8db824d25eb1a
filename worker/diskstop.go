package worker

import (
	"context"
	"os"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/decide"
	"github.com/boxfleet/boxfleet/worker/disk"
)

// diskStopped tells a sandbox's mailbox that the disk watch stopped the sandbox.
func (w *worker) diskStopped(k key, why *protocol.Error) {
	w.mu.Lock()
	s := w.sandboxes[k]
	w.mu.Unlock()
	if s == nil { // the mailbox of the next tenure reads the note
		return
	}
	s.mu.Lock()
	s.diskStop = why
	if s.cancelOp != nil && s.op == decide.Create && !s.making {
		s.cancelOp()
	}
	s.mu.Unlock()
	s.look()
	if os.Geteuid() == 0 {
		return
	}
	go func() { // without root, the watch may not kill the processes of other users, but the engine may
		if err := w.engine.KillContainer(context.Background(), s.name()); err != nil {
			s.log.Warn("could not kill a sandbox that fills a disk", "error", err)
		}
	}()
}

// diskStopped returns why this process's disk watch stopped the sandbox, nil if it did not.
func (s *sandbox) diskStopped() *protocol.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.diskStop
}

// stoppedForDisk returns why a disk watch, also that of an earlier worker, stopped the sandbox, nil if none did.
func (s *sandbox) stoppedForDisk(generation uint64) *protocol.Error {
	if why := s.diskStopped(); why != nil {
		return why
	}
	return disk.ReadNote(s.directory(generation).Path)
}

// forgetDiskStop lets a sandbox start again after the disk watch stopped it.
func (s *sandbox) forgetDiskStop(generation uint64) error {
	s.mu.Lock()
	s.diskStop = nil
	s.mu.Unlock()
	if err := disk.RemoveNote(s.directory(generation).Path); err != nil {
		return hostError(err, "forget why the sandbox was stopped")
	}
	return nil
}
