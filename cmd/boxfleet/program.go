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

// Exit codes. exec and run return the command's own exit code if it ran.
const (
	exitFailure   = 1   // the command failed
	exitUsage     = 2   // the command line or configuration is wrong
	exitTimedOut  = 124 // the exec exceeded its timeout and has no exit code
	exitNotRun    = 125 // the exec could not be run
	exitCancelled = 130 // the exec was cancelled and has no exit code
	// 128+n: signal n ended the client. 141 (SIGPIPE) means that its output was closed.
)

// Groups of commands in the help.
const (
	groupRun       = "run"
	groupSandboxes = "sandboxes"
	groupHosts     = "hosts"
	groupOperate   = "operate"
)

// roleAnnotation says whether a command is a client of the fleet or one of its servers. It handles signals and warns
// about the environment accordingly.
const (
	roleAnnotation = "role"
	roleClient     = "client"
	roleServer     = "server"
)

// roleOf returns the role of a command, or "" for help and completion.
func roleOf(cmd *cobra.Command) string { return topOf(cmd).Annotations[roleAnnotation] }

// program is one invocation of boxfleet.
type program struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	config         config

	process    bool                    // the program owns the process, so it handles its signals
	end        context.CancelCauseFunc // cancels a client's context
	connecting atomic.Bool             // a client command has started to connect to the fleet
	unread     atomic.Bool             // the reader of stdout or stderr is gone
	unwritten  atomic.Bool             // some output could not be written
	unfinished unfinished
	stdinSaid  bool // the warning about unread stdin was printed
}

// run runs a program inside a larger process, whose signals it leaves alone.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return (&program{stdin: stdin, stdout: stdout, stderr: stderr}).run(ctx, args)
}

// run runs the program and returns its exit code. When ctx ends, commands shut down cleanly, which may take a moment.
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

// exitCode is an error that ends the program with a code. cause is nil if there is nothing left to report.
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

// usage returns an error for a wrong command line or configuration.
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

// complain prints an error to stderr in the configured output format.
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

const rootHelp = `Boxfleet runs sandboxes and commands on a fleet of Docker hosts, over NATS JetStream.

"boxfleet up" runs a complete fleet on this machine; the other commands of the same user connect to it without
further settings.

SANDBOX is the name of a sandbox, its id, or a unique prefix of a generated id.`

func (p *program) root() *cobra.Command {
	var askVersion bool
	root := &cobra.Command{
		Use: "boxfleet", Short: "Run sandboxes and commands on a fleet of Docker hosts", Long: rootHelp,
		Example:       "  boxfleet up\n  boxfleet run --image boxfleet/demo:busybox uname -a",
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
			p.handleSignals(cmd)
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
	p.addCommands(root)
	addHelpAndCompletion(root)
	return root
}

func (p *program) addCommands(root *cobra.Command) {
	for _, g := range []struct {
		id, title, role string
		commands        []*cobra.Command
	}{
		{groupRun, "Run commands:", roleClient, []*cobra.Command{
			p.runCommand(), p.execCommand(), p.execsCommand(), p.logsCommand("boxfleet logs")}},
		{groupSandboxes, "Manage sandboxes:", roleClient, []*cobra.Command{
			p.sandboxCommand(), p.applyCommand(), p.specCommand(), p.sandboxList("boxfleet", "ps", "ls"),
			p.sandboxDelete("boxfleet", "rm")}},
		{groupHosts, "Manage hosts and images:", roleClient, []*cobra.Command{p.hostCommand(), p.imageCommand()}},
		{groupOperate, "Operate a fleet:", roleServer, []*cobra.Command{
			p.upCommand(), p.coordinatorCommand(), p.workerCommand(), p.storageCommand(), p.demoCommand()}},
		{groupOperate, "", roleClient, []*cobra.Command{p.pingCommand(), p.versionCommand()}},
	} {
		if g.title != "" {
			root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		}
		for _, c := range g.commands {
			c.GroupID, c.Annotations = g.id, map[string]string{roleAnnotation: g.role}
			root.AddCommand(c)
		}
	}
}

// addHelpAndCompletion adds cobra's own commands, with the same usage errors and examples as the others.
func addHelpAndCompletion(root *cobra.Command) {
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
}

// group returns a command that only has subcommands.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: subcommand,
		RunE: func(*cobra.Command, []string) error { return nil }}
	c.AddCommand(commands...)
	return c
}

// subcommand rejects running a command that only has subcommands.
func subcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usage("missing subcommand; see %s --help", cmd.CommandPath())
	}
	return unknownCommand(cmd, args[0])
}

// client connects to the fleet and calls f.
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
	if _, arguments, _ := strings.Cut(cmd.Use, " "); strings.HasPrefix(arguments, "SANDBOX") {
		err = whichSandbox(err, cmd.Flags().Arg(0))
	}
	return p.ended(ctx, err)
}

// whichSandbox adds the name that the user gave to a bare "no such sandbox".
func whichSandbox(err error, called string) error {
	if e := protocol.AsError(err); protocol.CodeOf(err) == protocol.NotFound && e.Message == "no such sandbox" {
		named := *e
		named.Message += ": " + called
		return &named
	}
	return err
}
