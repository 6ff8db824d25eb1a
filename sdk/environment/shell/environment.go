package shell

import (
	"context"
	"fmt"
	"iter"
	"sync/atomic"
	"time"

	"github.com/boxfleet/boxfleet/sdk/environment"
)

const (
	// DefaultMaxScript fits into one argument of a program on Linux, unless the script has thousands of quotes:
	// [Script.Whole] turns each quote into four bytes.
	DefaultMaxScript = 120 << 10
	// DefaultGrace is the time from TERM to KILL.
	DefaultGrace = 2 * time.Second
	// killTime is how long ending the processes of a script may take, in addition to the grace period.
	killTime = 15 * time.Second
	// startTime is how long a command with a timeout may take to begin, in addition to its timeout.
	startTime = 30 * time.Second
	// lastOutput is how long the output of a script may take to end after its processes have been ended.
	lastOutput = 2 * time.Second
)

// Config says how to reach a shell.
type Config struct {
	Run         Runner                  // required
	Description environment.Description // POSIX and Streams are added to its capabilities
	// MaxScript is how many bytes a script may have for Run. Default: [DefaultMaxScript]. A larger value makes large files
	// faster, if Run gives the script to the standard input of a shell.
	MaxScript int
	Grace     time.Duration // time from TERM to KILL when a command is ended early; default: [DefaultGrace]
}

// Environment is an environment behind a POSIX shell. It is safe for concurrent use if its Runner is.
type Environment struct {
	run         Runner
	description environment.Description
	maxScript   int
	grace       time.Duration
	killTime    time.Duration // see the constant
}

// New makes an environment. Error: ErrInvalid naming the field.
func New(c Config) (*Environment, error) {
	switch {
	case c.Run == nil:
		return nil, &environment.Error{Kind: environment.Invalid, Field: "Run", Message: "must be set"}
	case c.MaxScript != 0 && c.MaxScript < DefaultMaxScript:
		return nil, &environment.Error{Kind: environment.Invalid, Field: "MaxScript",
			Message: fmt.Sprintf("must be at least %d", DefaultMaxScript)}
	case c.Grace < 0:
		return nil, &environment.Error{Kind: environment.Invalid, Field: "Grace", Message: "must not be negative"}
	}
	e := &Environment{run: c.Run, description: c.Description, maxScript: c.MaxScript, grace: c.Grace, killTime: killTime}
	if e.maxScript == 0 {
		e.maxScript = DefaultMaxScript
	}
	if e.grace == 0 {
		e.grace = DefaultGrace
	}
	e.description.Capabilities = append([]environment.Capability{environment.POSIX, environment.Streams},
		c.Description.Capabilities...)
	return e, nil
}

// Describe implements [environment.Environment].
func (e *Environment) Describe() environment.Description { return e.description }

// ExecuteStreaming implements [environment.Environment].
func (e *Environment) ExecuteStreaming(ctx context.Context, command string, o environment.Options) (
	events iter.Seq2[environment.Event, error]) {
	if err := environment.CheckCommand(command); err != nil {
		return environment.Fail(err)
	}
	return e.execute(ctx, command, o)
}

// execute checks the options and runs a command.
func (e *Environment) execute(ctx context.Context, command string, o environment.Options) (
	events iter.Seq2[environment.Event, error]) {
	if err := o.Check(); err != nil {
		return environment.Fail(err)
	}
	if _, set := o.Env[IDVariable]; set {
		return environment.Fail(&environment.Error{Kind: environment.Invalid, Field: "env." + IDVariable,
			Message: "is reserved: it marks the processes of a command, so that they can be ended"})
	}
	if o.User != "" && !e.description.Has(environment.Users) {
		return environment.Fail(environment.Errorf(environment.Unsupported,
			"this environment cannot run a command as another user; leave the option User empty"))
	}
	return func(yield func(environment.Event, error) bool) {
		if ctx.Err() != nil {
			yield(environment.Event{}, environment.Wrap(environment.Cancelled, ctx.Err(), "nothing was run"))
			return
		}
		s := Script{ID: newID(), User: o.User}
		m := newMarks()
		var err error
		if s.Text, err = m.script(command, o); err == nil && len(s.Text) > e.maxScript {
			err = &environment.Error{Kind: environment.Invalid, Field: "command", Message: fmt.Sprintf("the script has %d "+
				"bytes, and this environment takes at most %d; write a file and run that", len(s.Text), e.maxScript)}
		}
		if err != nil {
			yield(environment.Event{}, err)
			return
		}
		e.follow(ctx, s, m, o.Timeout, yield)
	}
}

// execution is a script that runs.
type execution struct {
	e       *Environment
	script  Script
	started chan struct{} // closed when the command has begun
	ended   chan struct{} // closed when its output has ended
	late    atomic.Bool   // the timeout has passed
}

// follow runs a script and yields what its command prints.
func (e *Environment) follow(ctx context.Context, s Script, m *marks, timeout time.Duration,
	yield func(environment.Event, error) bool) {
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	x := &execution{e: e, script: s, started: make(chan struct{}), ended: make(chan struct{})}
	killed := make(chan bool, 1)
	go func() { killed <- x.watch(ctx, timeout, cancel) }()
	left, begun, returned := false, false, false
	defer func() {
		if !returned { // the caller's loop has panicked, or its goroutine ends, as with t.Fatal
			x.kill(context.WithoutCancel(ctx))
			close(x.ended)
		}
	}()
	var failure error
	for event, err := range e.run(running, s) {
		if err != nil {
			failure = err
			break
		}
		more := m.take(event, func(out environment.Event) bool { left = !yield(out, nil); return !left })
		if !begun && m.stdout.begin == "start" {
			begun = true
			close(x.started)
		}
		if !more {
			x.kill(context.WithoutCancel(ctx)) // the first process still shows the script's session
			break
		}
		if m.done() {
			break
		}
	}
	returned = true
	close(x.ended)
	early := <-killed
	if left {
		return
	}
	result, err := m.result(failure)
	switch {
	case x.late.Load() && early: // the timeout came first, even if ctx has ended since
		err = &environment.TimeoutError{After: timeout}
	case ctx.Err() != nil && (early || err != nil):
		err = environment.Wrap(environment.Cancelled, ctx.Err(), "the command was ended")
	}
	if err != nil {
		yield(environment.Event{}, err)
		return
	}
	yield(environment.Event{Result: result}, nil)
}

// watch ends the script when the timeout has passed or ctx ends, and reports whether it did. It returns when the output
// has ended. If ending the processes does not end the output, it calls giveUp.
func (x *execution) watch(ctx context.Context, timeout time.Duration, giveUp func()) bool {
	if !x.isDue(ctx, timeout) {
		return false
	}
	deadline := time.Now().Add(x.e.grace + x.e.killTime)
	for time.Now().Before(deadline) {
		x.kill(context.WithoutCancel(ctx))
		wait := time.NewTimer(lastOutput)
		select {
		case <-x.ended:
			wait.Stop()
			return true
		case <-wait.C:
		}
		select {
		case <-x.started: // a process got away, or the connection hangs
			deadline = time.Time{}
		default: // the command may have begun after the kill, because the login took long
		}
	}
	giveUp()
	<-x.ended
	return true
}

// isDue waits until the script must be ended, and then returns true. It returns false if the script's output has ended
// before. The timeout begins with the command.
func (x *execution) isDue(ctx context.Context, timeout time.Duration) bool {
	var timer <-chan time.Time
	started := x.started
	if timeout > 0 {
		timer = time.After(timeout + startTime)
	} else {
		started = nil
	}
	for {
		select {
		case <-x.ended:
			return false
		case <-ctx.Done():
			return true
		case <-timer:
			x.late.Store(true)
			return true
		case <-started:
			started, timer = nil, time.After(timeout)
		}
	}
}

// kill ends all processes of the script with TERM and, after the grace period, KILL.
func (x *execution) kill(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, x.e.grace+x.e.killTime)
	defer cancel()
	s := Script{ID: newID(), User: x.script.User, Text: killScript(x.script.ID, x.e.grace)}
	for _, err := range x.e.run(ctx, s) {
		if err != nil {
			return // nothing else can be done; the output is given up soon
		}
	}
}
