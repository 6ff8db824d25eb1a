package main

import (
	"context"
	"errors"
	"io"
	"syscall"

	"github.com/boxfleet/boxfleet/protocol"
)

// program is one invocation of boxfleet. All its commands share the console and the configuration.
type program struct {
	console *console
	config  *config
	client  *client  // shared by the client commands
	servers *servers // shared by the server commands
}

// newProgram returns a program that does not handle the signals of its process.
func newProgram(stdin io.Reader, stdout, stderr io.Writer) *program {
	cfg := &config{}
	con := &console{stdin: stdin, stdout: stdout, stderr: stderr, config: cfg}
	return &program{
		console: con, config: cfg,
		client:  &client{console: con, interrupts: &interrupts{}, config: cfg},
		servers: &servers{console: con, config: cfg},
	}
}

// run runs boxfleet inside a larger process and does not handle the signals of that process.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return newProgram(stdin, stdout, stderr).run(ctx, args)
}

// run runs the program and returns its exit code. When ctx ends, commands shut down cleanly, which may take some time.
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
