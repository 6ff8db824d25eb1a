package main

import (
	"context"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// execsVerbs are the subcommands of execs. They are not subcommands of exec, where they would hide sandboxes of the
// same names.
var execsVerbs = []string{"list", "ls", "ps", "get", "cancel", "kill", "logs"}

func (p *program) execsCommand() *cobra.Command {
	return group("execs", "List, show and cancel the execs of a sandbox, and print their output", p.execsList(),
		p.execsGet(), p.execsCancel(),
		p.execsLogs())
}

func (p *program) execsList() *cobra.Command {
	var states []string
	var quiet bool
	cmd := &cobra.Command{
		Use: "list SANDBOX", Aliases: []string{"ls", "ps"}, Short: "List the execs of a sandbox", Args: takes("SANDBOX"),
		ValidArgsFunction: p.completeSandbox,
		Example:           "  boxfleet execs list web --state running",
		RunE: func(cmd *cobra.Command, args []string) error {
			selected, err := statesOf(states, execStates)
			if err != nil {
				return err
			}
			return p.client(cmd, func(ctx context.Context, c *sdk.Client) error {
				found := []protocol.Exec{}
				for x, err := range c.Sandbox(args[0]).Execs(ctx, sdk.WithExecStates(selected...), sdk.WithPageSize(1000)) {
					if err != nil {
						return err
					}
					found = append(found, x.Info())
				}
				if quiet {
					return p.showNames(execIDs(found))
				}
				return p.show(found, func(w io.Writer) { printExecs(w, c.Now(ctx), found) })
			})
		},
	}
	cmd.Flags().StringSliceVar(&states, "state", nil, "only execs in this `state`; may be repeated")
	addQuiet(cmd, &quiet)
	completeValues(cmd, "state", namesOf(execStates)...)
	return cmd
}

var execStates = []protocol.ExecState{protocol.ExecStateAccepted, protocol.ExecStateRunning, protocol.ExecStateFinished,
	protocol.ExecStateFailed, protocol.ExecStateCancelled, protocol.ExecStateTimedOut}

func execIDs(execs []protocol.Exec) []string {
	ids := []string{}
	for i := range execs {
		ids = append(ids, execs[i].ID)
	}
	return ids
}

// commandWidth is the maximum width of a command in a list.
const commandWidth = 60

func printExecs(w io.Writer, now time.Time, execs []protocol.Exec) {
	rows := [][]any{{"EXEC", "STATE", "EXIT", "AGE", "TOOK", "COMMAND"}}
	for i := range execs {
		x := &execs[i]
		exit, took := "-", "-"
		if x.ExitCode != nil {
			exit = fmt.Sprint(*x.ExitCode)
		}
		if !x.EndedAt.IsZero() && !x.StartedAt.IsZero() {
			took = x.EndedAt.Sub(x.StartedAt).Round(time.Millisecond).String()
		}
		rows = append(rows, []any{x.ID, stateColour(string(x.State)), exit, ago(now, x.AcceptedAt), took,
			cut(fmt.Sprintf("%q", x.Spec.Command), commandWidth)})
	}
	table(w, rows...)
}

func (p *program) execsGet() *cobra.Command {
	return &cobra.Command{
		Use: "get SANDBOX EXEC", Short: "Show an exec", Args: takes("SANDBOX", "EXEC"), ValidArgsFunction: p.completeExec(),
		Example: "  boxfleet execs get web 01kpm3…",
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.client(cmd, func(ctx context.Context, c *sdk.Client) error {
				x, err := c.Sandbox(args[0]).GetExec(ctx, args[1])
				if err != nil {
					return err
				}
				info := x.Info()
				return p.show(info, func(w io.Writer) { printExec(w, &info) })
			})
		},
	}
}

func printExec(w io.Writer, x *protocol.Exec) {
	rows := [][]any{{"id", x.ID}, {"state", stateColour(string(x.State))}, {"command", fmt.Sprintf("%q", x.Spec.Command)},
		{"accepted", stamp(x.AcceptedAt)}}
	if x.Spec.Service != "" {
		rows = append(rows, []any{"service", x.Spec.Service})
	}
	if !x.StartedAt.IsZero() {
		rows = append(rows, []any{"started", stamp(x.StartedAt)})
	}
	if !x.EndedAt.IsZero() {
		rows = append(rows, []any{"ended", stamp(x.EndedAt)})
	}
	if x.ExitCode != nil {
		rows = append(rows, []any{"exit code", *x.ExitCode})
	}
	rows = append(rows, []any{"output", fmt.Sprintf("%d bytes of stdout, %d of stderr", x.StdoutBytes, x.StderrBytes)})
	if x.Truncated {
		rows = append(rows, []any{"", "truncated at the output limit"})
	}
	if x.OutputError != nil {
		rows = append(rows, []any{"", "output is incomplete: " + x.OutputError.Message})
	}
	if x.OOMKills > 0 {
		rows = append(rows,
			[]any{"", fmt.Sprintf("the kernel killed %d processes of the sandbox because it was out of memory",
				x.OOMKills)})
	}
	if x.Reason != "" {
		rows = append(rows, []any{"reason", x.Reason})
	}
	if x.Error != nil {
		rows = append(rows, []any{"error", x.Error})
	}
	table(w, rows...)
}

func (p *program) execsCancel() *cobra.Command {
	return &cobra.Command{
		Use: "cancel SANDBOX EXEC", Aliases: []string{"kill"}, Short: "Cancel an exec and end its whole process tree",
		Args: takes("SANDBOX", "EXEC"), Example: "  boxfleet execs cancel web 01kpm3…",
		ValidArgsFunction: p.completeExec(protocol.ExecStateAccepted, protocol.ExecStateRunning),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.client(cmd, func(ctx context.Context, c *sdk.Client) error {
				x := c.Sandbox(args[0]).ExecByID(args[1])
				if err := x.Cancel(ctx); err != nil {
					return err
				}
				if err := x.Refresh(ctx); err != nil {
					return err
				}
				return p.show(x.Info(), func(w io.Writer) { fmt.Fprintln(w, args[1]) })
			})
		},
	}
}

func (p *program) execsLogs() *cobra.Command {
	var follow bool
	var fromStdout, fromStderr int64
	var tail int
	cmd := &cobra.Command{
		Use: "logs SANDBOX EXEC", Short: "Print the output of a running or ended exec", Args: takes("SANDBOX", "EXEC"),
		ValidArgsFunction: p.completeExec(),
		Long: `Print the output of an exec: its stdout to stdout, its stderr to stderr. With -o json, each chunk is a
line with the stream, the offset and the data in base64. With --follow, boxfleet exits with the exec's exit
code, as boxfleet exec does.`,
		Example: "  boxfleet execs logs web 01kpm3… --follow\n  boxfleet execs logs web 01kpm3… --from-offset 4096",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkTail(cmd, tail); err != nil {
				return err
			}
			return p.client(cmd, func(ctx context.Context, c *sdk.Client) error {
				x, err := c.Sandbox(args[0]).GetExec(ctx, args[1])
				if err != nil {
					return err
				}
				read := func(follow bool) iter.Seq2[sdk.Chunk, error] {
					return x.Output(ctx, sdk.WithFollow(follow), sdk.WithOffset(sdk.Stdout, fromStdout),
						sdk.WithOffset(sdk.Stderr, fromStderr))
				}
				if err := p.printLogs(read, follow, tail, time.Time{}); err != nil {
					return ignoreInterrupt(ctx, follow, err)
				}
				if !follow {
					return nil
				}
				result, err := x.Wait(ctx, sdk.WithCollect(0))
				if result == nil {
					return ignoreInterrupt(ctx, true, err)
				}
				return exitOf(result, err)
			})
		},
	}
	cmd.Flags().BoolVar(&follow, "follow", false,
		"keep printing output until the exec ends; interrupting boxfleet does not end the exec")
	cmd.Flags().Int64Var(&fromStdout, "from-offset", 0, "start at this `byte` of stdout")
	cmd.Flags().Int64Var(&fromStderr, "from-offset-stderr", 0, "start at this `byte` of stderr")
	addTail(cmd, &tail)
	return cmd
}

func (p *program) printChunk(k sdk.Chunk) error {
	if p.json() {
		return p.line(k)
	}
	w := p.stdout
	if k.Stream == sdk.Stderr {
		w = p.guarded(p.stderr)
	}
	_, err := w.Write(k.Data)
	return err
}
