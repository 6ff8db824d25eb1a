package main

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// waitCommands are the commands that wait.
type waitCommands struct{ *client }

// waitFlags are the flags of `boxfleet wait`.
type waitFlags struct {
	contains, matches, service, http string
	port                             int
}

func (cmds waitCommands) waitCommand() *cobra.Command {
	var flags waitFlags
	cmd := &cobra.Command{
		Use: "wait SANDBOX [EXEC]", Short: "Wait for a sandbox, an exec, a line of output, or a server",
		Args:              takesOptional("SANDBOX", "EXEC"),
		ValidArgsFunction: cmds.completeExec(),
		Long: `Wait until the sandbox is ready or, with EXEC, until the exec has ended. boxfleet then exits with the exec's
exit code, as boxfleet exec does.

With --contains or --matches, wait for a line of output instead, and print it: a line of the exec, of the
sandbox's own command, or of a service. Output that was printed before counts, too. If the exec ends or
the sandbox fails without such a line, boxfleet says so and exits with 125.

With --port or --http, wait until a server in the sandbox answers: until it accepts a TCP connection, or answers
GET /PATH on PORT with STATUS (default: any from 200 to 399). The port need not be published.

--deadline limits the time.`,
		Example: "  boxfleet wait web\n  boxfleet wait web build\n" +
			"  boxfleet wait web server --contains 'Listening on' --deadline 30s\n" +
			"  boxfleet wait web --service db --matches 'ready to accept connections$'\n" +
			"  boxfleet wait web --port 8080\n  boxfleet wait web --http 8080/healthz=200 --deadline 1m",
		RunE: func(cmd *cobra.Command, args []string) error {
			server, err := flags.server(cmd, len(args) > 1)
			if err != nil {
				return err
			}
			line, err := flags.condition(cmd, len(args) > 1)
			if err != nil {
				return err
			}
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				box := c.Sandbox(args[0])
				switch {
				case server != nil:
					return cmds.waitForServer(ctx, box, server)
				case line == nil && len(args) > 1:
					return waitForEnd(ctx, box, args[1])
				case line == nil:
					return cmds.waitReady(ctx, box)
				case len(args) > 1:
					return cmds.printMatch(box.ExecByID(args[1]).WaitFor(ctx, *line))
				}
				return cmds.printMatch(box.WaitFor(ctx, *line, sdk.WithService(flags.service)))
			})
		},
	}
	cmd.Flags().StringVar(&flags.contains, "contains", "", "wait for a line that contains this `text`")
	cmd.Flags().StringVar(&flags.matches, "matches", "",
		"wait for a line that matches this regular `expression` of Go (RE2)")
	cmd.Flags().IntVar(&flags.port, "port", 0, "wait until a server accepts TCP connections on this `port`")
	cmd.Flags().StringVar(&flags.http, "http", "",
		"wait until a server answers an HTTP request: `PORT/PATH[=STATUS]`")
	cmd.Flags().StringVar(&flags.service, "service", "", "`name` of the service that prints the line or has the server")
	return cmd
}

// condition returns the line to wait for, or nil.
func (f waitFlags) condition(cmd *cobra.Command, exec bool) (*sdk.Condition, error) {
	given := cmd.Flags().Changed
	switch {
	case given("contains") && given("matches"):
		return nil, usage("--contains and --matches exclude each other")
	case given("service") && exec:
		return nil, usage("--service: an exec has output of its own; leave out either EXEC or --service")
	case given("service") && !given("contains") && !given("matches") && !given("port") && !given("http"):
		return nil, usage("--service needs --contains, --matches, --port or --http")
	}
	if given("service") {
		if err := protocol.ValidateID("--service", f.service); err != nil {
			return nil, err
		}
	}
	if given("matches") {
		pattern, err := regexp.Compile(f.matches)
		if err != nil {
			return nil, usage("--matches: %v", err)
		}
		c := sdk.OutputMatches(pattern)
		return &c, nil
	}
	if given("contains") {
		c := sdk.OutputContains(f.contains)
		return &c, nil
	}
	return nil, nil
}

// server returns the server to wait for, or nil.
func (f waitFlags) server(cmd *cobra.Command, exec bool) (*protocol.PortWait, error) {
	given := cmd.Flags().Changed
	switch {
	case !given("port") && !given("http"):
		return nil, nil
	case given("port") && given("http"):
		return nil, usage("--port and --http exclude each other")
	case given("contains") || given("matches"):
		return nil, usage("--port and --http exclude --contains and --matches")
	case exec:
		return nil, usage("--port and --http: wait for a server of a sandbox; leave out EXEC")
	case given("port"):
		return checkServer("--port", &protocol.PortWait{Service: f.service, Port: f.port})
	}
	port, rest, slash := strings.Cut(f.http, "/")
	w := &protocol.PortWait{Service: f.service, Path: "/" + rest}
	var err error
	if w.Port, err = strconv.Atoi(port); err != nil || !slash {
		return nil, usage("--http: must be PORT/PATH or PORT/PATH=STATUS, got %.100q", f.http)
	}
	// The text after the last "=" is a status only if it is a number of three digits, because paths may have "=".
	if path, status, found := cutLast(w.Path, "="); found && len(status) == statusDigits {
		if n, err := strconv.Atoi(status); err == nil {
			w.Path, w.Status = path, n
		}
	}
	return checkServer("--http", w)
}

const statusDigits = 3 // number of digits of an HTTP status

func checkServer(flag string, w *protocol.PortWait) (*protocol.PortWait, error) {
	if err := w.Validate(); err != nil {
		e := protocol.AsError(err)
		return nil, usage("%s: %s %s", flag, e.Field, e.Message)
	}
	return w, nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

func (cmds waitCommands) waitForServer(ctx context.Context, box *sdk.Sandbox, w *protocol.PortWait) error {
	var err error
	if w.Path == "" {
		err = box.WaitForPort(ctx, w.Port, sdk.WithService(w.Service))
	} else {
		err = box.WaitForHTTP(ctx, w.Port, w.Path, w.Status, sdk.WithService(w.Service))
	}
	if err != nil {
		return err
	}
	return cmds.show(box.Info(), func(out io.Writer) { fmt.Fprintln(out, box.Info().ID) })
}

func waitForEnd(ctx context.Context, box *sdk.Sandbox, exec string) error {
	result, err := box.ExecByID(exec).Wait(ctx, sdk.WithCollect(0))
	if result == nil {
		return err
	}
	return exitOf(result, err)
}

func (cmds waitCommands) waitReady(ctx context.Context, box *sdk.Sandbox) error {
	if err := box.WaitReady(ctx); err != nil {
		return err
	}
	return cmds.show(box.Info(), func(w io.Writer) { fmt.Fprintln(w, box.Info().ID) })
}

func (cmds waitCommands) printMatch(m *sdk.Match, err error) error {
	if err != nil {
		return err
	}
	return cmds.show(m, func(w io.Writer) { fmt.Fprintln(w, m.Line) })
}
