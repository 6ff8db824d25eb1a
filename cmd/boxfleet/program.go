package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
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
	unwritten  atomic.Bool             // some of its output could not be written
	inHand     inHand
	stdinSaid  bool // that nobody reads stdin
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
		if p.unwritten.Load() {
			p.complain(protocol.Errorf(protocol.Internal, "", "the output could not be written"))
			return exitFailure
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
	if p.config.Output == outputJSON {
		e := *protocol.AsError(err)
		e.Message = p.redacted(e.Message)
		data, jsonErr := json.Marshal(map[string]*protocol.Error{"error": &e})
		if jsonErr == nil {
			fmt.Fprintln(jsonText{p.stderr}, string(data))
			return
		}
	}
	w := p.plain(p.stderr)
	fmt.Fprintf(p.stderr, "%s %s\n", w.paint(red, "boxfleet:"), plain(indented(p.redacted(err.Error()))))
}

func (p *program) root() *cobra.Command {
	var askVersion bool
	root := &cobra.Command{
		Use:           "boxfleet",
		Short:         "Sandboxes and commands on a fleet of Docker hosts",
		Long:          "Boxfleet runs sandboxes and commands on a fleet of Docker hosts, over NATS JetStream.\n`boxfleet up` runs everything on this machine; the client's commands find it by themselves.\n\nA SANDBOX is called by its name, its id, or the beginning of a generated id, if only one begins so.",
		SilenceErrors: true, SilenceUsage: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if askVersion {
				return p.printVersion()
			}
			return cmd.Help()
		},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			p.heed(cmd)
			return p.configure(cmd)
		},
	}
	root.SetFlagErrorFunc(wrongFlag)
	root.Flags().BoolVar(&askVersion, "version", false, "print the version of this program")
	p.config.addFlags(root.PersistentFlags(), "")
	root.PersistentFlags().StringVar(&p.config.file, "config", "",
		"configuration `file` (default $XDG_CONFIG_HOME/boxfleet/config.yaml)")
	completeValues(root, "output", outputText, outputJSON)
	completeValues(root, "log-level", logLevels...)
	root.AddGroup(&cobra.Group{ID: groupClient, Title: "Client commands:"},
		&cobra.Group{ID: groupServer, Title: "Server commands:"})
	for _, c := range []*cobra.Command{p.sandboxCommand(), p.applyCommand(), p.specCommand(), p.execCommand(),
		p.execsCommand(), p.runCommand(),
		p.logsCommand("boxfleet logs"), p.sandboxList("boxfleet", "ps", "ls"), p.sandboxDelete("boxfleet", "rm"),
		p.hostCommand(), p.imageCommand(), p.pingCommand(), p.versionCommand()} {
		c.GroupID = groupClient
		root.AddCommand(c)
	}
	for _, c := range []*cobra.Command{p.upCommand(), p.coordinatorCommand(), p.workerCommand(), p.storageCommand(),
		p.demoCommand()} {
		c.GroupID = groupServer
		root.AddCommand(c)
	}
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.Args = func(_ *cobra.Command, args []string) error {
				if found, rest, err := root.Find(args); err != nil || len(rest) > 0 {
					return unknownCommand(found, args[len(args)-max(1, len(rest))])
				}
				return nil
			}
			c.Example = "  boxfleet help exec"
		case "completion":
			c.Args, c.RunE = subcommand, func(*cobra.Command, []string) error { return nil }
			for _, shell := range c.Commands() {
				shell.Example = "  boxfleet completion " + shell.Name() + " >completion." + shell.Name()
			}
		}
	}
	return root
}

// group is a command that only has others below it.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: subcommand,
		RunE: func(*cobra.Command, []string) error { return nil }}
	c.AddCommand(commands...)
	return c
}

// subcommand refuses a call of a command that only has others below it.
func subcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usage("missing subcommand; see %s --help", cmd.CommandPath())
	}
	return unknownCommand(cmd, args[0])
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
	err = f(ctx, c)
	if _, said, _ := strings.Cut(cmd.Use, " "); strings.HasPrefix(said, "SANDBOX") {
		err = whichSandbox(err, cmd.Flags().Arg(0))
	}
	return p.ended(ctx, err)
}

// whichSandbox adds to an error that says only that there is no such sandbox what it was called.
func whichSandbox(err error, called string) error {
	if e := protocol.AsError(err); protocol.CodeOf(err) == protocol.NotFound && e.Message == "no such sandbox" {
		named := *e
		named.Message += ": " + called
		return &named
	}
	return err
}
