package shell

import (
	"context"
	"errors"
	"iter"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/boxfleet/boxfleet/sdk/environment"
)

const (
	// chunkBytes is how many bytes of output one event has at most.
	chunkBytes = 32 << 10
	// inputTime is how long a program that has ended may keep its input open.
	inputTime = 500 * time.Millisecond
	// signalled is added to the number of a signal to make an exit code.
	signalled = 128
)

// Process runs a program on this machine, gives it input, and yields its output and its exit code, for runners. argv is
// the program and its arguments; dir is its working directory, "" for that of this process. Process waits until the
// output is closed. The end of ctx, or of the caller's loop, kills the program. The program gets a session of its own
// on systems that have sessions: "kill 0" in a command does not reach this process, and Ctrl-C at the terminal of this
// process does not reach the command. Error: ErrUnavailable if the program cannot be started.
func Process(ctx context.Context, dir, input string, argv ...string) iter.Seq2[environment.Event, error] {
	return func(yield func(environment.Event, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		p := &process{events: make(chan environment.Event), ctx: ctx}
		defer p.wait.Wait() // in this order: cancel, then wait
		defer cancel()
		name := argv[0]
		cmd := exec.CommandContext(ctx, name, argv[1:]...)
		cmd.Dir = dir
		cmd.SysProcAttr = ownSession()
		cmd.WaitDelay = inputTime
		cmd.Stdin = strings.NewReader(input)
		if err := p.start(cmd); err != nil {
			yield(environment.Event{}, environment.Wrap(environment.Unavailable, err, "start "+name))
			return
		}
		for event := range p.events {
			if !yield(event, nil) {
				return
			}
		}
		var exit *exec.ExitError
		switch {
		case ctx.Err() != nil:
			yield(environment.Event{}, environment.Wrap(environment.Cancelled, ctx.Err(), name))
		case p.err != nil && !errors.As(p.err, &exit) && !errors.Is(p.err, exec.ErrWaitDelay):
			yield(environment.Event{}, environment.Wrap(environment.Failed, p.err, name))
		default:
			yield(environment.Event{Result: &environment.Result{ExitCode: exitCode(cmd)}}, nil)
		}
	}
}

// process carries the output of a program to the caller's loop.
type process struct {
	ctx    context.Context
	events chan environment.Event
	wait   sync.WaitGroup
	err    error // error of the program; set before events is closed
}

// start starts the program and the goroutines that read its output.
func (p *process) start(cmd *exec.Cmd) error {
	stdout, stdoutEnd, err := os.Pipe()
	if err != nil {
		return err
	}
	stderr, stderrEnd, err := os.Pipe()
	if err != nil {
		stdout.Close()
		stdoutEnd.Close()
		return err
	}
	cmd.Stdout, cmd.Stderr = stdoutEnd, stderrEnd
	err = cmd.Start()
	stdoutEnd.Close()
	stderrEnd.Close()
	if err != nil {
		stdout.Close()
		stderr.Close()
		return err
	}
	var outputs sync.WaitGroup
	outputs.Go(func() { p.read(environment.Stdout, stdout) })
	outputs.Go(func() { p.read(environment.Stderr, stderr) })
	p.wait.Go(func() {
		outputs.Wait()
		p.err = cmd.Wait()
		close(p.events)
	})
	return nil
}

// read carries one stream until it is closed or ctx ends.
func (p *process) read(stream environment.Stream, from *os.File) {
	stop := context.AfterFunc(p.ctx, func() { _ = from.SetReadDeadline(time.Unix(1, 0)) }) // ends Read
	defer from.Close()
	defer stop()
	for {
		buf := make([]byte, chunkBytes)
		n, err := from.Read(buf)
		if n > 0 {
			select {
			case p.events <- environment.Event{Stream: stream, Data: buf[:n:n]}:
			case <-p.ctx.Done():
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func exitCode(cmd *exec.Cmd) int {
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return signalled + int(status.Signal())
	}
	return cmd.ProcessState.ExitCode()
}
