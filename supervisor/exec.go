package supervisor

import (
	"errors"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// The worker is notified soon after the first output, and rarely after that. If the exec ends earlier, it is not
// notified at all: the result has the sizes.
const (
	firstOutput = 5 * time.Millisecond
	everyOutput = 10 * time.Millisecond
)

// ending is the reason why an exec ends.
type ending int

const (
	notYet ending = iota
	byItself
	timedOut
	cancelled
)

// exec is one command, from its Start to its Forget. Its goroutine is run.
type exec struct {
	s     *supervisor
	id    string
	group uint32
	keep  int64 // the inline limit

	begun chan struct{} // closed once it was started, or failed to start
	ended chan struct{} // closed once the worker was sent the result
	halt  chan struct{} // closed to end it early

	files  execFiles
	record record

	mu             sync.Mutex
	started        time.Time
	startedAt      time.Duration // the same by control.Clock
	stdout, stderr *stream
	result         *control.Result
	why            ending
	deadline       time.Time // end of the grace period, once why is set

	noticing    sync.Mutex
	noticeArmed bool
	noticed     time.Time
}

func newExec(s *supervisor, start *control.Start, files execFiles, w *control.Welcome) *exec {
	if start.User == "" {
		start.User = w.DefaultUser
	}
	if start.User == "" {
		start.User = "0"
	}
	if start.Cwd == "" {
		start.Cwd = w.DefaultCwd
	}
	if start.Cwd == "" {
		start.Cwd = "/"
	}
	if start.OutputLimit <= 0 {
		start.OutputLimit = int64(protocol.DefaultOutputLimit)
	}
	start.InlineLimit = min(start.InlineLimit, control.MaxInline)
	return &exec{
		s:     s,
		id:    start.ID,
		group: s.launcher.group(),
		keep:  start.InlineLimit,
		files: files,
		begun: make(chan struct{}),
		ended: make(chan struct{}),
		halt:  make(chan struct{}),
	}
}

// run takes the exec from its start to its result. It calls reply once, before it sends the result.
func (e *exec) run(start *control.Start, reply func()) {
	began, kills := time.Now(), e.s.oom.kills()
	e.emptyRecord()
	e.mu.Lock()
	e.startedAt = control.Clock()
	e.mu.Unlock()
	p, err := e.s.launcher.start(
		command{argv: start.Argv, env: start.Env, cwd: start.Cwd, user: start.User, group: e.group, stdin: start.Stdin},
	)
	if err != nil {
		e.sayNotStarted(start, err)
		result := e.finish(notStarted(err, began))
		close(e.begun)
		reply()
		e.tellEnd(result)
		return
	}
	e.follow(p, start, began)
	close(e.begun)
	reply()
	e.await(p.child, start, began)
	e.stdout.settle()
	e.stderr.settle()
	result := e.resultOf(p.child, began)
	result.OOMKills = e.s.oom.kills() - kills
	e.tellEnd(e.finish(result))
}

// follow starts to read the process's pipes.
func (e *exec) follow(p *process, start *control.Start, began time.Time) {
	e.mu.Lock()
	e.started = began
	e.stdout = newStream(
		p.stdout,
		execSink(e.files.stdout, start.OutputLimit, e.keep/2),
		start.InlineLimit,
		e.s.files,
		e.grew,
	)
	e.stderr = newStream(
		p.stderr,
		execSink(e.files.stderr, start.OutputLimit, e.keep/2),
		start.InlineLimit,
		e.s.files,
		e.grew,
	)
	e.mu.Unlock()
	go e.stdout.pump()
	go e.stderr.pump()
}

// await returns when the main process has ended by itself, or the exec's tree was ended.
func (e *exec) await(c *child, start *control.Start, began time.Time) {
	if start.Timeout > 0 {
		timer := time.AfterFunc(time.Until(began.Add(start.Timeout)), func() { e.stop(timedOut, start.Grace) })
		defer timer.Stop()
	}
	select {
	case <-c.exited:
	case <-e.halt:
	}
	if !e.settleWhy(c) {
		return
	}
	if !e.s.trees.end(func(group uint32) bool { return group == e.group }, e.graceEnds, c.exited) {
		e.s.config.Logger.Error("processes survive KILL", "exec", e.id)
	}
	select {
	case <-c.exited:
	case <-time.After(time.Second): // the process survives KILL: its exit code is unknown
	}
}

// settleWhy decides between an exit and a stop at the same time: if the exit was seen first, the exec ended by itself.
func (e *exec) settleWhy(c *child) (stopped bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.why == notYet {
		e.why = byItself // too late for a stop
		return false
	}
	return true
}

// stop ends the exec. A second call may only shorten the grace; the first reason counts. It returns false if the exec
// has already ended.
func (e *exec) stop(why ending, grace time.Duration) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	deadline := time.Now().Add(grace)
	switch {
	case e.result != nil:
		return false
	case e.why == notYet:
		e.why, e.deadline = why, deadline
		close(e.halt)
	case e.why != byItself && deadline.Before(e.deadline):
		e.deadline = deadline
	}
	return true
}

func (e *exec) graceEnds() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.deadline
}

func (e *exec) resultOf(c *child, began time.Time) *control.Result {
	r := &control.Result{ID: e.id, Started: began}
	select {
	case <-c.exited:
		r.ExitCode = &c.code
	default:
	}
	e.mu.Lock()
	r.TimedOut, r.Cancelled = e.why == timedOut, e.why == cancelled
	e.mu.Unlock()
	return r
}

// notStarted returns the result of a command that could not be started: an exit code if a shell would have one,
// otherwise an error.
func notStarted(err error, began time.Time) *control.Result {
	r := &control.Result{Started: began}
	var u *unrunnable
	if errors.As(err, &u) {
		r.ExitCode = &u.code
		return r
	}
	r.Failed, r.Error = true, protocol.AsError(err)
	return r
}

// sayNotStarted writes the message to the command's stderr, as a shell would, and closes both streams.
func (e *exec) sayNotStarted(start *control.Start, err error) {
	k := execSink(e.files.stderr, start.OutputLimit, e.keep/2)
	defer func() {
		k.close()
		closeFD(e.files.stdout)
	}()
	var u *unrunnable
	if !errors.As(err, &u) {
		return
	}
	text := []byte("boxfleet: " + u.message + "\n")
	e.s.files.acquire()
	k.write(text)
	e.s.files.release()
	e.mu.Lock()
	e.stderr = &stream{sink: k, settled: true, head: text[:k.size], dropped: k.size > start.InlineLimit}
	e.mu.Unlock()
}

// finish sets the result, and returns it with the inline output if that is allowed.
func (e *exec) finish(r *control.Result) *control.Result {
	r.ID = e.id
	e.collect(r)
	r.Ended = time.Now()

	kept := r.WithoutOutput()
	e.mu.Lock()
	e.started, e.result = r.Started, &kept
	e.stdout, e.stderr = nil, nil
	e.mu.Unlock()
	return r
}

// tellEnd sends the result to the worker and then releases everyone who waits for it here, because PID 1 may only end
// once the worker has been told. It also makes sure that the record gets to disk.
func (e *exec) tellEnd(result *control.Result) {
	e.s.tell(&control.Notice{Result: result})
	close(e.ended)
	e.s.recordLater(e)
	e.s.quiet.Reset(quietAfter)
}

// collect puts the output into the result, complete or not at all.
func (e *exec) collect(r *control.Result) {
	wholeOut, wholeErr := true, true
	cutOut, cutErr := false, false
	if e.stdout != nil {
		r.StdoutBytes, cutOut, r.Stdout, wholeOut = e.stdout.output()
		r.DiskFull = e.stdout.diskFull()
	}
	if e.stderr != nil {
		r.StderrBytes, cutErr, r.Stderr, wholeErr = e.stderr.output()
		r.DiskFull = r.DiskFull || e.stderr.diskFull()
	}
	r.Truncated = cutOut || cutErr
	r.Inline = wholeOut && wholeErr && r.StdoutBytes+r.StderrBytes <= e.keep
	if !r.Inline {
		r.Stdout, r.Stderr = nil, nil
	}
}

func (e *exec) hasEnded() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.result != nil
}

// status returns the current state of the exec; begun is false until its start was tried.
func (e *exec) status() (status control.ExecStatus, begun bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	status = control.ExecStatus{ID: e.id, Started: e.started}
	if !e.started.IsZero() {
		status.Age = max(control.Clock()-e.startedAt, 1)
	}
	if r := e.result; r != nil {
		status.Result, status.StdoutBytes, status.StderrBytes = r, r.StdoutBytes, r.StderrBytes
		return status, true
	}
	if e.stdout == nil {
		return status, false
	}
	status.StdoutBytes, status.StderrBytes = e.stdout.kept.Load(), e.stderr.kept.Load()
	return status, true
}

// grew schedules a notice of new output.
func (e *exec) grew() {
	e.noticing.Lock()
	defer e.noticing.Unlock()
	if e.noticeArmed {
		return
	}
	e.noticeArmed = true
	time.AfterFunc(max(firstOutput, everyOutput-time.Since(e.noticed)), func() {
		e.noticing.Lock()
		e.noticeArmed, e.noticed = false, time.Now()
		e.noticing.Unlock()
		e.s.tellOutput(e)
	})
}
