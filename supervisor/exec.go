package supervisor

import (
	"errors"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// The worker is notified of the first output after firstOutput, and then at most once per everyOutput. When the exec
// ends, no notice is needed, because the result has the sizes of the output. If the stdin stays open, somebody may wait
// for the output before they write more. The worker is then notified at once, and at most once per everyAnswer.
const (
	firstOutput = 5 * time.Millisecond
	everyOutput = 10 * time.Millisecond
	everyAnswer = 2 * time.Millisecond
)

// ending is the reason why an exec ends.
type ending int

const (
	notYet ending = iota
	byItself
	timedOut
	cancelled
)

// exec is one command, from its Start to its Forget. Its goroutine executes the method run.
type exec struct {
	s     *supervisor
	id    string
	group uint32
	keep  int64 // the inline limit of the Start, in bytes

	begun chan struct{} // closed when the command was started, or could not be started
	ended chan struct{} // closed when the result was queued for the worker
	halt  chan struct{} // closed to end the exec early

	input  *input // nil: stdin is not a pipe that stays open
	files  execFiles
	record record
	masks  *patterns // the texts to mask in the output; nil: none

	secretFiles []string // files of secrets that are removed when the exec ends

	signals sentSignals

	mu             sync.Mutex
	started        time.Time
	startedAt      time.Duration // the time of the start, by control.Clock
	stdout, stderr *stream
	result         *control.Result
	main           *child // the main process; nil: not started
	why            ending
	deadline       time.Time // the end of the grace period, if the exec was stopped

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
	var in *input
	if start.OpenStdin {
		in = newInput(&s.heldInput)
	}
	return &exec{
		input: in,
		s:     s,
		id:    start.ID,
		group: s.launcher.group(),
		keep:  start.InlineLimit,
		files: files,
		masks: s.secrets.masks,
		begun: make(chan struct{}),
		ended: make(chan struct{}),
		halt:  make(chan struct{}),
	}
}

// run starts the command, waits for its end, and sends the result. It calls reply once, before it sends the result.
func (e *exec) run(start *control.Start, reply func()) {
	began, kills := time.Now(), e.s.oom.kills()
	e.emptyRecord()
	e.mu.Lock()
	e.startedAt = control.Clock()
	e.mu.Unlock()
	p, err := e.launch(start)
	if err != nil {
		e.input.end(errInputEnded)
		e.removeSecrets()
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
	e.input.end(errInputEnded)
	e.removeSecrets()
	e.stdout.settle()
	e.stderr.settle()
	result := e.resultOf(p.child, began)
	result.OOMKills = e.s.oom.kills() - kills
	e.tellEnd(e.finish(result))
}

// launch starts the command with its secrets.
func (e *exec) launch(start *control.Start) (*process, error) {
	env, err := e.takeSecrets(start)
	if err != nil {
		return nil, err
	}
	return e.s.launcher.start(
		command{argv: start.Argv, env: env, cwd: start.Cwd, user: start.User, group: e.group, stdin: start.Stdin,
			open: start.OpenStdin},
	)
}

// follow starts to read the process's pipes.
func (e *exec) follow(p *process, start *control.Start, began time.Time) {
	e.mu.Lock()
	e.started, e.main = began, p.child
	e.stdout = newStream(
		p.stdout,
		execSink(e.files.stdout, start.OutputLimit, e.keep/2),
		start.InlineLimit,
		e.masks.masker(),
		e.s.files,
		e.grew,
	)
	e.stderr = newStream(
		p.stderr,
		execSink(e.files.stderr, start.OutputLimit, e.keep/2),
		start.InlineLimit,
		e.masks.masker(),
		e.s.files,
		e.grew,
	)
	e.mu.Unlock()
	go e.stdout.pump()
	go e.stderr.pump()
	if p.stdin != nil {
		e.input.open(p.stdin)
	}
}

// await waits until the main process has ended by itself, or all processes of the exec were ended.
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
		e.s.config.Logger.Error("processes of an exec still run after KILL", "exec", e.id)
	}
	select {
	case <-c.exited:
	case <-time.After(time.Second): // the main process still runs after KILL, so the exit code is unknown
	}
}

// settleWhy decides whether the exec ended by itself or was stopped, because an exit and a stop may happen at the same
// time. It reports whether the exec was stopped. If not, a later stop has no effect.
func (e *exec) settleWhy(c *child) (stopped bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.why == notYet {
		e.why = byItself
		return false
	}
	return true
}

// stop ends the exec early. After the first call, the reason does not change, and further calls can only shorten the
// grace period. stop returns false if the exec has already ended.
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

// notStarted returns the result of a command that could not be started. If a shell would return an exit code for this
// error, the result has that exit code. Otherwise the result has an error.
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

// sayNotStarted writes the error's message to the file for stderr, as a shell would, and closes both output files.
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
	text := e.masks.masker().next([]byte("boxfleet: "+u.message+"\n"), true)
	e.s.files.acquire()
	k.write(text)
	e.s.files.release()
	e.mu.Lock()
	e.stderr = &stream{sink: k, settled: true, head: text[:k.size], dropped: k.size > start.InlineLimit}
	e.mu.Unlock()
}

// finish completes and stores the result. It returns the result, with the output inline if the output is small enough.
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

// tellEnd sends the result to the worker, and schedules the write of the exit record. It closes e.ended only after the
// result was queued, because PID 1 may end as soon as all execs have ended.
func (e *exec) tellEnd(result *control.Result) {
	e.s.tell(&control.Notice{Result: result})
	close(e.ended)
	e.s.recordLater(e)
	e.s.quiet.Reset(quietAfter)
}

// collect puts the sizes of the output into the result. It also puts the output itself into the result, if the complete
// output is small enough.
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

// status returns the current state of the exec. begun is false until the command was started or could not be started.
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
	wait := max(firstOutput, everyOutput-time.Since(e.noticed))
	if e.input != nil {
		wait = max(0, everyAnswer-time.Since(e.noticed))
	}
	time.AfterFunc(wait, func() {
		e.noticing.Lock()
		e.noticeArmed, e.noticed = false, time.Now()
		e.noticing.Unlock()
		e.s.tellOutput(e)
	})
}
