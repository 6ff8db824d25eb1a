package supervisor

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// recordDelay is how long an exec that has ended stays off the disk while a worker listens, which
// normally takes the result and has the exec forgotten within a few milliseconds. Making and
// removing a directory and a file for nothing is a fifth of what a short exec costs here. When
// PID 1 is killed within this time, and the worker with it, the exit code is not known, and said
// to be so. Without a worker the record is written at once.
const recordDelay = 100 * time.Millisecond

// disk is what an exec has on disk. It is made when there is something to put there.
type disk struct {
	mu        sync.Mutex
	directory bool
	recorded  bool
	forgotten bool
}

// makeDirectory makes the exec's directory, once. One that is left of an earlier boot is used; the
// worker asks no boot for an exec of another.
func (e *exec) makeDirectory() error {
	e.disk.mu.Lock()
	defer e.disk.mu.Unlock()
	return e.makeDirectoryLocked()
}

func (e *exec) makeDirectoryLocked() error {
	if e.disk.directory {
		return nil
	}
	if e.disk.forgotten {
		return unix.ENOENT
	}
	if err := unix.Mkdirat(e.s.execsFD, e.id, 0o700); err != nil && err != unix.EEXIST {
		return err
	}
	e.disk.directory = true
	return nil
}

// recordLater writes the record of an exec that has ended: at once when no worker listens,
// otherwise when it was not forgotten within recordDelay.
func (s *supervisor) recordLater(e *exec) {
	s.mu.Lock()
	listens := s.outbox != nil
	s.mu.Unlock()
	if !listens {
		s.record(e)
		return
	}
	time.AfterFunc(recordDelay, func() { s.record(e) })
}

// recordAll writes the records of all execs that have ended, before PID 1 or its worker is gone.
func (s *supervisor) recordAll() {
	s.mu.Lock()
	var ended []*exec
	for _, e := range s.execs {
		if e.hasEnded() {
			ended = append(ended, e)
		}
	}
	s.mu.Unlock()
	for _, e := range ended {
		s.record(e)
	}
}

// record puts an exec's sealed exit record on disk, once, whole or not at all.
func (s *supervisor) record(e *exec) {
	e.mu.Lock()
	result := e.result
	e.mu.Unlock()
	s.mu.Lock()
	key := s.welcome.Key
	s.mu.Unlock()
	s.files.acquire()
	defer s.files.release()
	e.disk.mu.Lock()
	defer e.disk.mu.Unlock()
	if e.disk.recorded || e.disk.forgotten {
		return
	}
	e.disk.recorded = true
	err := e.makeDirectoryLocked()
	if err == nil {
		err = replaceFile(s.execsFD, e.id+"/"+control.RecordName, control.Seal(key, control.Record{Boot: s.boot, Result: *result}))
	}
	if err != nil {
		s.config.Logger.Error("an exit record is not on disk", "exec", e.id, "error", err)
	}
}

// forgetDisk removes what an exec has on disk, and lets nothing come there any more.
func (s *supervisor) forgetDisk(e *exec) {
	e.disk.mu.Lock()
	defer e.disk.mu.Unlock()
	e.disk.forgotten = true
	if e.disk.directory {
		s.removeExec(e.id)
	}
}

// anotherBoot refuses an exec that was meant for a supervisor which is gone.
func anotherBoot(id string) *protocol.Error {
	return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonInterrupted,
		"exec %s was meant for this sandbox before its last restart", id)
}

// startedBefore refuses an exec that this boot has started and forgotten.
func startedBefore(id string) *protocol.Error {
	return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonInterrupted,
		"exec %s was started before and is not started again", id)
}

func replaceFile(dir int, path string, data []byte) error {
	next := path + ".new"
	fd, err := unix.Openat(dir, next, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	for len(data) > 0 {
		n, err := unix.Write(fd, data)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			unix.Close(fd)
			unix.Unlinkat(dir, next, 0)
			return err
		}
		data = data[n:]
	}
	if err := unix.Close(fd); err != nil {
		return err
	}
	return unix.Renameat(dir, next, dir, path)
}
