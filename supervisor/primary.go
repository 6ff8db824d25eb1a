package supervisor

import (
	"errors"
	"math"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

const (
	restartFirst = time.Second
	restartMost  = 30 * time.Second
	steadyAfter  = time.Minute // a longer run resets the backoff

	graceLooks = 25 * time.Millisecond // the time between two checks for the end of the grace period

	everyPrimaryOutput = 50 * time.Millisecond // the time between two notices of output
)

// primary is the primary command: the sandbox's own command, if its spec has one, or the command of a service
// container. The first Welcome of a boot starts the command. After each end, the command is started again with backoff.
// PID 1 passes its own signals on to the command.
type primary struct {
	s     *supervisor
	group uint32 // one group for all runs: no process of a run is left when the next run starts

	stopping chan struct{} // closed by stop
	done     chan struct{} // closed when run returns

	stopSignal syscall.Signal // the signal that asks the command to end; 0: TERM to its whole tree

	mu       sync.Mutex
	begun    bool
	stopped  bool
	deadline time.Time
	child    *child // the main process while the command runs; otherwise nil
	state    control.Primary
	telling  bool // a notice of output is scheduled
}

func newPrimary(s *supervisor) *primary {
	return &primary{s: s, group: s.launcher.group(), stopping: make(chan struct{}), done: make(chan struct{})}
}

// begin starts the command. The parameter files has the descriptors of the files for the command's output; begin takes
// them over.
func (p *primary) begin(w *control.Welcome, files []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		closeFiles(files)
		return
	}
	p.begun = true
	p.stopSignal = syscall.Signal(w.StopSignal)
	go p.run(w, files)
}

func (p *primary) run(w *control.Welcome, files []int) {
	defer close(p.done)
	c := command{argv: w.Command, env: w.Env, cwd: w.DefaultCwd, user: w.DefaultUser, group: p.group}
	if c.cwd == "" {
		c.cwd = "/"
	}
	if c.user == "" {
		c.user = "0"
	}
	if len(files) != control.PrimaryFiles {
		p.s.config.Logger.Warn("dropping the output of the primary command: the worker sent no files for that output")
		closeFiles(files)
		files = make([]int, control.PrimaryFiles)
	}
	stdout, stderr := primarySink(files[0]), primarySink(files[1])
	p.mu.Lock()
	p.state.Stdout, p.state.Stderr = stdout.size, stderr.size // earlier boots may have written to the files
	p.mu.Unlock()
	wait := restartFirst
	for runs := 0; ; runs++ {
		began := time.Now()
		p.once(c, runs, stdout, stderr)
		if time.Since(began) > steadyAfter {
			wait = restartFirst
		}
		select {
		case <-p.stopping:
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, restartMost)
	}
}

func primarySink(fd int) *sink {
	k := &sink{fd: fd, limit: math.MaxInt64, stays: true, window: control.PrimaryWindow}
	k.resume()
	return k
}

// once runs the command a single time. It returns when no process of the command is left.
func (p *primary) once(c command, restarts int, stdout, stderr *sink) {
	kills := p.s.oom.kills()
	process, err := p.s.launcher.start(c)
	if err != nil {
		p.change(nil, func(state *control.Primary) {
			state.Running, state.Restarts, state.Began = false, restarts, time.Time{}
			var u *unrunnable
			if errors.As(err, &u) {
				state.LastExit = &u.code
				err = protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonStartFailed, "%s", u.message)
			}
			state.Error = protocol.AsError(err)
		})
		return
	}
	masks := p.s.secrets.masks
	streams := []*stream{
		newStream(process.stdout, stdout, 0, masks.masker(), p.s.files, func() { p.grew(&p.state.Stdout, stdout.size) }),
		newStream(process.stderr, stderr, 0, masks.masker(), p.s.files, func() { p.grew(&p.state.Stderr, stderr.size) }),
	}
	for _, s := range streams {
		go s.pump()
	}
	p.change(process.child, func(state *control.Primary) {
		state.Running, state.Restarts, state.Error, state.Began = true, restarts, nil, time.Now()
	})
	p.await(process.child)
	for _, s := range streams {
		s.settle()
	}
	p.change(nil, func(state *control.Primary) {
		state.Running, state.LastExit, state.OOMKills = false, &process.code, p.s.oom.kills()-kills
	})
}

// grew records the new size of a stream's file, and schedules a notice.
func (p *primary) grew(known *int64, size int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*known = size
	if p.telling {
		return
	}
	p.telling = true
	time.AfterFunc(everyPrimaryOutput, func() {
		p.mu.Lock()
		p.telling = false
		sizes := control.Output{Stdout: p.state.Stdout, Stderr: p.state.Stderr}
		p.mu.Unlock()
		p.s.tell(&control.Notice{Output: &sizes})
	})
}

// await waits until the command has ended, and ends the processes that it left behind.
func (p *primary) await(c *child) {
	mine := func(group uint32) bool { return group == p.group }
	select {
	case <-c.exited:
		p.s.trees.kill(mine)
	case <-p.stopping:
		p.askToEnd(c)
		p.s.trees.end(mine, p.graceEnds, c.exited)
		select {
		case <-c.exited:
		case <-time.After(time.Second):
		}
	}
}

// askToEnd sends the command its own stop signal, and waits until the command or the grace period has ended. It does
// nothing if the command has no stop signal of its own. Only the main process gets the signal, because the command may
// have its own way to end its children: nginx, for example, lets its children finish their requests.
func (p *primary) askToEnd(c *child) {
	if p.stopSignal == 0 || p.stopSignal == unix.SIGTERM {
		return
	}
	select {
	case <-c.exited:
		return
	default:
	}
	p.signal(p.stopSignal)
	p.signal(unix.SIGCONT) // a stopped process handles signals only after it continues
	for {
		left := time.Until(p.graceEnds())
		if left <= 0 {
			return
		}
		select {
		case <-c.exited:
			return
		case <-time.After(min(left, graceLooks)): // another call of stop may have shortened the grace period
		}
	}
}

func (p *primary) graceEnds() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.deadline
}

// change sets the state and notifies the worker.
func (p *primary) change(c *child, set func(*control.Primary)) {
	p.mu.Lock()
	p.child = c
	set(&p.state)
	p.state.Since = time.Now()
	state := p.state
	p.mu.Unlock()
	p.s.tell(&control.Notice{Primary: &state})
}

// status returns the state of the primary command, or nil if the sandbox has no such command.
func (p *primary) status() *control.Primary {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.begun {
		return nil
	}
	state := p.state
	return &state
}

// stop ends the command, and returns when its processes are gone. The command is not started again. A second call may
// shorten the grace period.
func (p *primary) stop(grace time.Duration) {
	p.mu.Lock()
	deadline := time.Now().Add(grace)
	if !p.stopped || deadline.Before(p.deadline) {
		p.deadline = deadline
	}
	if !p.stopped {
		p.stopped = true
		close(p.stopping)
	}
	begun := p.begun
	p.mu.Unlock()
	if begun {
		<-p.done
	}
}

// signal sends a signal to the command's main process, if the command runs.
func (p *primary) signal(sig os.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if number, ok := sig.(syscall.Signal); ok && p.child != nil {
		_ = unix.Kill(p.child.pid, number) // the process may just have ended
	}
}
