package main

import (
	"context"
	"errors"
	"io"
	"syscall"

	"github.com/boxfleet/boxfleet/protocol"
)

// program is one invocation of boxfleet. Its commands share the console and the configuration.
type program struct {
	console *console
	config  *config
	client  *client  // what the client commands share
	servers *servers // what the server commands share
}

// newProgram returns a program that leaves the signals of its process alone.
func newProgram(stdin io.Reader, stdout, stderr io.Writer) *program {
	cfg := &config{}
	con := &console{stdin: stdin, stdout: stdout, stderr: stderr, config: cfg}
	return &program{
		console: con, config: cfg,
		client:  &client{console: con, interrupts: &interrupts{}, config: cfg},
		servers: &servers{console: con, config: cfg},
	}
}

// run runs boxfleet inside a larger process, whose signals it leaves alone.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return newProgram(stdin, stdout, stderr).run(ctx, args)
}

// run runs the program and returns its exit code. When ctx ends, commands shut down cleanly, which may take a moment.
func (p *program) run(ctx context.Context, args []string) int {
	root := p.root()
	root.SetArgs(args)
	root.SetIn(p.console.stdin)
	root.SetOut(p.console.stdout)
	root.SetErr(p.console.stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		if p.client.unread.Load() {
			return interruption(syscall.SIGPIPE).exitCode()
		}
		if p.client.unwritten.Load() {
			p.console.complain(protocol.Errorf(protocol.Internal, "", "the output could not be written"))
			return exitFailure
		}
		return 0
	}
	var code exitCode
	if errors.As(err, &code) && code.cause == nil {
		return code.code
	}
	p.console.complain(err)
	return codeOf(err)
}
