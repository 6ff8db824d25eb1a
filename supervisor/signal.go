package supervisor

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// sentSignals remembers the results of an exec's signals. So a signal is not delivered twice if the worker sends it
// again after a lost answer.
type sentSignals struct {
	mu      sync.Mutex // held while a signal is sent, so that signals arrive in the order of the calls
	results map[uint64]*control.SignalResult
	order   []uint64 // the numbers in results, oldest first
	dropped uint64   // the highest number that was removed from results
}

// signal sends a signal to a child that was not reaped. It returns ESRCH for a reaped child, because another process
// may have that pid. The lock is held from the check to the kill, and take acquires it before it reaps a child.
func (e *exec) signal(c *control.Signal) *control.SignalResult {
	q := &e.signals
	q.mu.Lock()
	defer q.mu.Unlock()
	if r := q.results[c.Number]; r != nil {
		return r
	}
	if c.Number <= q.dropped {
		return &control.SignalResult{Outcome: protocol.SignalUnknown}
	}
	r := e.send(c)
	q.remember(c.Number, r)
	return r
}

func (q *sentSignals) remember(number uint64, r *control.SignalResult) {
	if q.results == nil {
		q.results = map[uint64]*control.SignalResult{}
	}
	q.results[number], q.order = r, append(q.order, number)
	if len(q.order) > control.RememberedSignals {
		q.dropped = max(q.dropped, q.order[0])
		delete(q.results, q.order[0])
		q.order = q.order[1:]
	}
}

// send sends a signal once.
func (e *exec) send(c *control.Signal) *control.SignalResult {
	e.mu.Lock()
	main, over := e.main, e.result != nil || e.why == byItself
	e.mu.Unlock()
	sig := unix.Signal(c.Signal)
	switch {
	case main == nil && !over:
		return notDelivered(protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonExecNotRunning,
			"the exec has not started yet"))
	case main == nil || over:
		return notDelivered(errExecEnded)
	case c.Tree:
		return e.s.trees.signal(e.group, sig)
	}
	err := e.s.reaper.signal(main, sig)
	switch err {
	case nil:
		return &control.SignalResult{Outcome: protocol.SignalDelivered, Processes: 1}
	case unix.ESRCH:
		return notDelivered(errExecEnded)
	}
	return notDelivered(protocol.Errorf(protocol.Internal, "", "send %s: %v", protocol.SignalName(c.Signal), err))
}

var errExecEnded = protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonExecTerminal,
	"the exec ended before it got the signal")

func notDelivered(why *protocol.Error) *control.SignalResult {
	return &control.SignalResult{Outcome: protocol.SignalNotDelivered, Error: why}
}

// signal sends a signal to a child that was not reaped. A reaped child's pid may belong to another process, so signal
// then returns ESRCH. The lock is held from the check to the kill: take needs it before a child is reaped.
func (r *reaper) signal(c *child, sig unix.Signal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.children[c.pid] != c {
		return unix.ESRCH
	}
	return unix.Kill(c.pid, sig)
}

// signalledAtOnce is how many processes are held by file descriptors at a time, because PID 1 has a limit of open
// files.
const signalledAtOnce = 64

// signal sends a signal to each process that has the group when signal is called. Processes that are forked meanwhile
// may not get the signal. No process gets it twice, and no process of another group gets it, even if a pid is reused:
// each process is held by a file descriptor before its group is read once more.
func (t *trees) signal(group uint32, sig unix.Signal) *control.SignalResult {
	sent, left := 0, t.scan()[group]
	for len(left) > 0 {
		part := left[:min(len(left), signalledAtOnce)]
		left = left[len(part):]
		n, err := t.signalSome(part, group, sig)
		if sent += n; err != nil {
			r := notDelivered(protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonUnsupported,
				"the host's kernel does not let the supervisor send a signal safely to several processes (%v): "+
					"send the signal to the main process only", err))
			if sent > 0 {
				r.Outcome, r.Processes = protocol.SignalDelivered, sent
			}
			return r
		}
	}
	if sent == 0 {
		return notDelivered(errExecEnded)
	}
	return &control.SignalResult{Outcome: protocol.SignalDelivered, Processes: sent}
}

// signalSome sends a signal to those of the processes that belong to the group. Only an error that all processes have
// in common is returned.
func (t *trees) signalSome(pids []int, group uint32, sig unix.Signal) (sent int, err error) {
	held := make(map[int]int, len(pids))
	defer func() {
		for _, fd := range held {
			unix.Close(fd)
		}
	}()
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if err == unix.ESRCH || err == unix.EINVAL { // the process has ended
			continue
		}
		if err != nil {
			return 0, err
		}
		held[pid] = fd
	}
	for _, pid := range t.scan()[group] {
		fd, ok := held[pid]
		if !ok {
			continue
		}
		switch err := unix.PidfdSendSignal(fd, sig, nil, 0); err {
		case nil:
			sent++
		case unix.ESRCH: // the process has ended; if its pid is in use, it is another process's
		default:
			return sent, err
		}
	}
	return sent, nil
}
