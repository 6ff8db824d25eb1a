package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// Exit codes. exec and run end with the command's own where it ran.
const (
	exitFailure   = 1   // the command failed
	exitUsage     = 2   // it was called wrongly
	exitTimedOut  = 124 // the exec ran longer than its timeout, and its exit code is not known
	exitNotRun    = 125 // the exec could not run
	exitCancelled = 130 // the exec was cancelled, and its exit code is not known
	// 128+n: a signal ended the client, or, with 13 (141), nobody reads its output any more
)

// Groups of commands.
const (
	groupClient = "client"
	groupServer = "server"
)

// program is one call of boxfleet.
type program struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	config         config

	process    bool                    // it is a whole process, whose signals are its own
	end        context.CancelCauseFunc // ends a client's context
	connecting atomic.Bool             // a client's command has begun to talk to the fleet
	unread     atomic.Bool             // nobody reads its output any more
	inHand     inHand
}

// run runs a program beside others in this process, whose signals it leaves alone.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return (&program{stdin: stdin, stdout: stdout, stderr: stderr}).run(ctx, args)
}

// run runs the program and returns its exit code. Its commands end when ctx does: cleanly, which
// may take a moment.
func (p *program) run(ctx context.Context, args []string) int {
	root := p.root()
	root.SetArgs(args)
	root.SetIn(p.stdin)
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		if p.unread.Load() {
			return interruption(syscall.SIGPIPE).exitCode()
		}
		return 0
	}
	var code exitCode
	if errors.As(err, &code) && code.cause == nil {
		return code.code
	}
	p.complain(err)
	return codeOf(err)
}

// exitCode ends the program with a code; cause is nil where everything is said already.
type exitCode struct {
	code  int
	cause error
}

func (e exitCode) Error() string {
	if e.cause == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.cause.Error()
}
func (e exitCode) Unwrap() error { return e.cause }

// usage makes an error of the caller's.
func usage(format string, args ...any) error {
	return exitCode{exitUsage, protocol.Errorf(protocol.InvalidArgument, "", format, args...)}
}

func codeOf(err error) int {
	var code exitCode
	switch {
	case errors.As(err, &code):
		return code.code
	case protocol.CodeOf(err) == protocol.InvalidArgument:
		return exitUsage
	}
	return exitFailure
}

// complain prints an error to stderr, in the form that was asked for.
func (p *program) complain(err error) {
	if p.config.Output != outputJSON {
		fmt.Fprintln(p.stderr, "boxfleet:", err)
		return
	}
	data, jsonErr := json.Marshal(map[string]*protocol.Error{"error": protocol.AsError(err)})
	if jsonErr != nil {
		fmt.Fprintln(p.stderr, "boxfleet:", err)
		return
	}
	fmt.Fprintln(p.stderr, string(data))
}

func (p *program) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "boxfleet",
		Short:         "Sandboxes and commands on a fleet of Docker hosts",
		Long:          "Boxfleet runs sandboxes and commands on a fleet of Docker hosts, over NATS JetStream.\n`boxfleet up` runs everything on this machine; the client's commands find it by themselves.",
		SilenceErrors: true, SilenceUsage: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("unknown command %q; see boxfleet --help", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			p.heed(cmd)
			return p.configure(cmd)
		},
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage("%v; see %s --help", err, cmd.CommandPath())
	})
	p.config.addFlags(root.PersistentFlags(), "")
	root.PersistentFlags().StringVar(&p.config.file, "config", "", "configuration `file` (default $XDG_CONFIG_HOME/boxfleet/config.yaml)")
	root.AddGroup(&cobra.Group{ID: groupClient, Title: "Client commands:"}, &cobra.Group{ID: groupServer, Title: "Server commands:"})
	for _, c := range []*cobra.Command{p.sandboxCommand(), p.applyCommand(), p.specCommand(), p.execCommand(), p.runCommand(), p.logsCommand("boxfleet logs"), p.hostCommand(), p.imageCommand(), p.pingCommand(), p.versionCommand()} {
		c.GroupID = groupClient
		root.AddCommand(c)
	}
	for _, c := range []*cobra.Command{p.upCommand(), p.coordinatorCommand(), p.workerCommand(), p.storageCommand(), p.demoCommand()} {
		c.GroupID = groupServer
		root.AddCommand(c)
	}
	return root
}

// group is a command that only has others below it.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("say which: see %s --help", cmd.CommandPath())
			}
			return usage("unknown command %q; see %s --help", args[0], cmd.CommandPath())
		},
		RunE: func(*cobra.Command, []string) error { return nil },
	}
	c.AddCommand(commands...)
	return c
}

// counts checks that a command gets these arguments and nothing more.
func counts(cmd *cobra.Command, args []string, names ...string) error {
	if len(args) < len(names) {
		return usage("%s is missing; see %s --help", names[len(args)], cmd.CommandPath())
	}
	if len(args) > len(names) {
		return usage("unexpected argument %q; see %s --help", args[len(names)], cmd.CommandPath())
	}
	return nil
}

// takes is counts where each argument is an id.
func takes(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := counts(cmd, args, names...); err != nil {
			return err
		}
		for i, name := range names {
			if err := protocol.ValidateID(name, args[i]); err != nil {
				return err
			}
		}
		return nil
	}
}

// takesCommand is takes, and behind "--" a command, which may be required.
func takesCommand(required bool, names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		before, command := splitDash(cmd, args)
		if err := takes(names...)(cmd, before); err != nil {
			return err
		}
		if required && len(command) == 0 {
			return usage("the command to run is missing: put it behind --; see %s --help", cmd.CommandPath())
		}
		return nil
	}
}

// splitDash splits the arguments at "--".
func splitDash(cmd *cobra.Command, args []string) (before, command []string) {
	at := cmd.ArgsLenAtDash()
	if at < 0 {
		return args, nil
	}
	return args[:at], args[at:]
}

// client calls f with a connection to the fleet.
func (p *program) client(cmd *cobra.Command, f func(ctx context.Context, c *sdk.Client) error) error {
	p.connecting.Store(true)
	ctx := cmd.Context()
	if p.config.Deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.config.Deadline)
		defer cancel()
	}
	c, err := p.connect(ctx)
	if err != nil {
		return p.ended(ctx, err)
	}
	defer c.Close()
	return p.ended(ctx, f(ctx, c))
}
