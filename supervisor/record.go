package supervisor

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// recordDelay is how long the supervisor waits before it writes the exit record of an exec while a worker is connected.
// Normally the worker receives the result and forgets the exec within a few milliseconds, and no record is needed. If
// PID 1 and the worker are both killed within this time, the exit code is lost, and is reported as unknown.
const recordDelay = 100 * time.Millisecond

// record is the state of an exec's exit record.
type record struct {
	mu     sync.Mutex
	closed bool // the record was written, or is no longer needed
}

// recordLater schedules the write of the record of an ended exec. If no worker is connected, recordLater writes the
// record at once. Otherwise the record is written after recordDelay, unless the worker has forgotten the exec by then.
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

// recordAll writes the records of all ended execs. It is called when the worker's connection ends, and before PID 1
// ends.
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

// record writes the sealed exit record of an exec, unless it was written before. If the write is incomplete, the
// worker's verification of the record fails.
func (s *supervisor) record(e *exec) {
	e.mu.Lock()
	result := e.result
	e.mu.Unlock()
	s.mu.Lock()
	key := s.welcome.Key
	s.mu.Unlock()
	s.files.acquire()
	defer s.files.release()
	e.closeRecord(func(fd int) {
		sealed := control.Seal(key, control.Record{Boot: s.boot, Result: *result})
		if _, err := writeAll(fd, sealed, 0); err != nil {
			s.config.Logger.Error("could not write the exit record of an exec", "exec", e.id, "error", err)
		}
	})
}

// closeRecord closes the file of the record, unless it was closed before. If write is not nil, closeRecord calls it
// before it closes the file.
func (e *exec) closeRecord(write func(fd int)) {
	e.record.mu.Lock()
	defer e.record.mu.Unlock()
	if e.record.closed {
		return
	}
	e.record.closed = true
	if write != nil && e.files.record != 0 {
		write(e.files.record)
	}
	closeFD(e.files.record)
}

// emptyRecord truncates the record that an exec with this id left in an earlier boot.
func (e *exec) emptyRecord() {
	var stat unix.Stat_t
	if fd := e.files.record; fd != 0 && unix.Fstat(fd, &stat) == nil && stat.Size > 0 {
		_ = unix.Ftruncate(fd, 0) // after a failure, the new record is written over the old record
	}
}

// anotherBoot is the error for an exec that the worker meant for an earlier boot of the supervisor.
func anotherBoot(id string) *protocol.Error {
	return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonInterrupted,
		"exec %s was sent before the sandbox last restarted, so it is not started now", id)
}

// startedBefore is the error for an exec that this boot has already started and forgotten.
func startedBefore(id string) *protocol.Error {
	return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonInterrupted,
		"exec %s was already started, and is not started again", id)
}
