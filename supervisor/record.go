package supervisor

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// recordDelay is how long the record of an ended exec is not written while a worker is connected: normally it takes the
// result and forgets the exec within a few milliseconds. If PID 1 and the worker are both killed within this time, the
// exit code is lost, and reported as unknown. Without a worker, the record is written at once.
const recordDelay = 100 * time.Millisecond

// record is the file of an exec's record.
type record struct {
	mu     sync.Mutex
	closed bool // it was written, or is no longer needed
}

// recordLater writes the record of an ended exec: at once if no worker is connected, otherwise if it was not forgotten
// within recordDelay.
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

// recordAll writes the records of all ended execs, before PID 1 or its worker is gone.
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

// record writes an exec's sealed exit record, once. An incomplete one fails verification.
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
			s.config.Logger.Error("could not write an exit record", "exec", e.id, "error", err)
		}
	})
}

// closeRecord closes the file of the record, once. It calls write first, unless that is nil.
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
		unix.Ftruncate(fd, 0)
	}
}

// anotherBoot refuses an exec that was meant for an earlier supervisor.
func anotherBoot(id string) *protocol.Error {
	return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonInterrupted,
		"exec %s was meant for this sandbox before its last restart", id)
}

// startedBefore refuses an exec that this boot has started and forgotten.
func startedBefore(id string) *protocol.Error {
	return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonInterrupted,
		"exec %s was already started, and is not started again", id)
}
