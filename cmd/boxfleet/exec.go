package main

import (
	"context"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// execFlags are the flags that say how a command is run.
type execFlags struct {
	timeout, grace time.Duration
	startTimeout   time.Duration
	outputLimit    string
	stdin          bool
}

func (f *execFlags) add(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0, "end the command so `long` after its start (default: never)")
	cmd.Flags().DurationVar(&f.startTimeout, "start-timeout", 0, "give up a command that is not started so `long` after it was accepted (default 2m)")
	cmd.Flags().DurationVar(&f.grace, "grace", 0, "from TERM to KILL when it is ended (default 5s)")
	cmd.Flags().StringVar(&f.outputLimit, "output-limit", "", "keep so many `bytes` of stdout and of stderr, each (default 256MiB)")
	cmd.Flags().BoolVarP(&f.stdin, "stdin", "i", false, "give stdin to the command: at most 128 KiB")
}

func (f *execFlags) spec(stdin io.Reader, command []string) (*protocol.ExecSpec, error) {
	spec := &protocol.ExecSpec{Command: command, Timeout: protocol.Duration(f.timeout), Grace: protocol.Duration(f.grace), StartTimeout: protocol.Duration(f.startTimeout)}
	var err error
	if f.outputLimit != "" {
		if spec.OutputLimit, err = protocol.ParseBytes(f.outputLimit); err != nil {
			return nil, usage("--output-limit: %v", err)
		}
	}
	if f.stdin {
		if spec.Stdin, err = io.ReadAll(io.LimitReader(stdin, protocol.MaxStdin+1)); err != nil {
			return nil, fmt.Errorf("read stdin: %w", err)
		}
		if len(spec.Stdin) > protocol.MaxStdin {
			return nil, usage("stdin has more than %d bytes: use --copy", protocol.MaxStdin)
		}
	}
	return spec, nil
}

func (p *program) execCommand() *cobra.Command {
	var flags execFlags
	var env []string
	var cwd, user, service, id, request string
	var detach bool
	cmd := &cobra.Command{
		Use: "exec SANDBOX [flags] -- COMMAND [ARGUMENT...]", Short: "Run a command in a sandbox",
		Long: `Run a command in a sandbox. Its output comes on stdout and stderr, and boxfleet ends with its exit
code, or with 125 where it could not be run.

Ctrl-C cancels it and waits for its end; a second one ends boxfleet at once. TERM, HUP and QUIT cancel
it, too, and end boxfleet within 2 s, with 128+n where it has not ended by then. So does a reader of the
output that goes away, as in "boxfleet exec … | head -1", with 141. --deadline ends only the wait, with
125: the command goes on, and is attached to again by boxfleet exec logs --follow. --detach does not
wait at all. KILL, or the loss of this machine, leaves the command running, too.`,
		Args: takesCommand(true, "SANDBOX"), ValidArgsFunction: p.completeSandbox,
		Example: `  boxfleet exec web -- ps
  boxfleet exec web --cwd /src --env CGO_ENABLED=0 --timeout 10m -- go test ./...
  echo 'print(6 * 7)' | boxfleet exec web -i -- python3 -
  boxfleet exec web --service db -- psql -U postgres
  boxfleet exec web --detach -- make`,
		RunE: func(cmd *cobra.Command, args []string) error {
			before, command := splitDash(cmd, args)
			spec, err := flags.spec(p.stdin, command)
			if err != nil {
				return err
			}
			spec.Cwd, spec.User, spec.Service = cwd, user, service
			if err := addPairs("--env", &spec.Env, env); err != nil {
				return err
			}
			if err := spec.Validate(); err != nil {
				return err
			}
			opts, err := requestOptions(cmd, id, request)
			if err != nil {
				return err
			}
			if id == "" { // known beforehand, so that it can be cancelled before it is accepted
				if id = request; id == "" {
					id = sdk.NewID()
					opts = append(opts, sdk.WithRequestID(id))
				}
			}
			return notRun(p.client(cmd, func(ctx context.Context, c *sdk.Client) error {
				box := c.Sandbox(before[0])
				if detach {
					return p.detached(ctx, box, id, spec, opts)
				}
				return p.exec(ctx, box, id, spec, opts)
			}))
		},
	}
	flags.add(cmd)
	cmd.Flags().StringArrayVar(&env, "env", nil, "environment variable `K=V`, over the sandbox's; may be repeated")
	cmd.Flags().StringVar(&cwd, "cwd", "", "working directory (default: the sandbox's)")
	cmd.Flags().StringVar(&user, "user", "", "user, uid, or either with :group (default: the sandbox's)")
	cmd.Flags().StringVar(&service, "service", "", "run it in the container of this `service` (default: in the sandbox's own)")
	cmd.Flags().StringVar(&id, "id", "", "id of the exec (default: a new one)")
	cmd.Flags().StringVar(&request, "request-id", "", "id of the request: a repeated one finds the same exec")
	cmd.Flags().BoolVar(&detach, "detach", false, "print the exec's id as soon as it is accepted, and do not wait")
	cmd.AddCommand(p.execList(), p.execGet(), p.execCancel(), p.execLogs())
	return cmd
}

// notRun gives an error before the command's own end the exit code 125.
func notRun(err error) error {
	if _, ours := err.(exitCode); ours || err == nil || codeOf(err) == exitUsage {
		return err
	}
	return exitCode{exitNotRun, err}
}

func (p *program) detached(ctx context.Context, box *sdk.Sandbox, id string, spec *protocol.ExecSpec, opts []sdk.Option) error {
	p.execGoesOn(box, id)
	x, err := box.Start(ctx, *spec, append(opts, sdk.WithID(id))...)
	if err != nil {
		return err
	}
	p.inHand.done("exec")
	return p.show(x.Info(), func(w io.Writer) { fmt.Fprintln(w, x.ID()) })
}

// exec runs a command, passes its output on, and returns its exit code as the error.
func (p *program) exec(ctx context.Context, box *sdk.Sandbox, id string, spec *protocol.ExecSpec, opts []sdk.Option) error {
	if !p.json() {
		opts = append(opts, sdk.WithStdout(p.stdout), sdk.WithStderr(p.guarded(p.stderr)))
	}
	result, err := p.execCancellable(ctx, box, id, spec, opts)
	if result == nil {
		return err
	}
	if p.json() {
		if err := p.line(result); err != nil {
			return err
		}
	}
	if result.OutputError != nil {
		fmt.Fprintln(p.stderr, "boxfleet: the end of the output is missing:", result.OutputError.Message)
	}
	return exitOf(result, err)
}

// exitOf is the exit code for an exec that has ended.
func exitOf(r *sdk.Result, err error) error {
	code := exitCode{cause: err}
	switch {
	case r.ExitCode != nil:
		code.code = *r.ExitCode
	case r.State == protocol.ExecStateTimedOut:
		code.code = exitTimedOut
	case r.State == protocol.ExecStateCancelled:
		code.code = exitCancelled
	default:
		code.code = exitNotRun
	}
	if code.code == 0 && code.cause == nil {
		return nil
	}
	return code
}

const (
	cancelWithin = 30 * time.Second // how long the end of ctx waits for a cancel to be accepted
	endMargin    = 15 * time.Second // and, with the exec's grace, how long then for the exec's end
)

// execCancellable runs a command. Where its client is interrupted, the command is cancelled, and its end
// waited for; the client's deadline ends only the wait.
func (p *program) execCancellable(ctx context.Context, box *sdk.Sandbox, id string, spec *protocol.ExecSpec, opts []sdk.Option) (*sdk.Result, error) {
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	p.execGoesOn(box, id)
	undo := context.AfterFunc(ctx, func() {
		if !overdue(ctx) {
			p.cancelAndAwait(ctx, running, box, id, spec.Grace.Std())
		}
		stop()
	})
	defer undo()
	result, err := box.Exec(running, *spec, append(opts, sdk.WithID(id))...)
	switch {
	case result != nil:
		p.inHand.done("exec")
	case ctx.Err() != nil && running.Err() != nil && overdue(ctx):
		err = because(err, protocol.DeadlineExceeded, fmt.Sprintf("exec %s has not ended within --deadline %s", id, p.config.Deadline))
	case ctx.Err() != nil && running.Err() != nil:
		err = because(err, protocol.Cancelled, context.Cause(ctx).Error())
	default: // its error says what became of it
		p.inHand.done("exec")
	}
	return result, err
}

// because is the error of a wait that this client ended. What the fleet said of it stays: why it did not
// decide the request.
func because(err error, code protocol.Code, message string) error {
	if e := protocol.AsError(err); e != nil && e.Reason != "" {
		return protocol.Errorf(code, e.Reason, "%s: %s", message, e.Message)
	}
	return protocol.Errorf(code, "", "%s", message)
}

// execGoesOn notes that an exec that is asked for now does not end with its client.
func (p *program) execGoesOn(box *sdk.Sandbox, id string) {
	p.inHand.goesOn("exec", "exec %s of sandbox %s goes on, where it was accepted: `boxfleet exec logs %s %s --follow` attaches to it, "+
		"`boxfleet exec cancel %s %s` ends it", id, box.ID(), box.ID(), id, box.ID(), id)
}

// cancelAndAwait cancels an exec whose client is interrupted, and returns when its end was waited for long
// enough, or running has ended.
func (p *program) cancelAndAwait(ctx, running context.Context, box *sdk.Sandbox, id string, grace time.Duration) {
	bounded := running
	if i, _ := interruptionOf(ctx); i == interruption(syscall.SIGPIPE) {
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeout(running, leaveWithin)
		defer cancel()
	}
	if err := cancelExec(bounded, box, id); err != nil {
		return
	}
	p.inHand.goesOn("exec", "exec %s of sandbox %s is being cancelled: `boxfleet exec get %s %s` shows its end", id, box.ID(), box.ID(), id)
	if grace == 0 {
		grace = protocol.DefaultGrace.Std()
	}
	enough, cancel := context.WithTimeout(bounded, grace+endMargin)
	defer cancel()
	<-enough.Done()
}

// cancelExec cancels an exec whose request may not have been decided yet.
func cancelExec(ctx context.Context, box *sdk.Sandbox, id string) error {
	ctx, cancel := context.WithTimeout(ctx, cancelWithin)
	defer cancel()
	return untilFound(ctx, func() error { return box.Cancel(ctx, id) })
}

// foundWithin bounds how long something is looked for that was asked for and may be there soon.
const foundWithin = 3 * time.Second

// untilFound tries again while what it is about is not found.
func untilFound(ctx context.Context, try func() error) error {
	deadline := time.Now().Add(foundWithin)
	for {
		err := try()
		if protocol.CodeOf(err) != protocol.NotFound || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (p *program) execList() *cobra.Command {
	var states []string
	cmd := &cobra.Command{
		Use: "list SANDBOX", Short: "List the execs of a sandbox", Args: takes("SANDBOX"), ValidArgsFunction: p.completeSandbox,
		Example: "  boxfleet exec list web --state running",
		RunE: func(cmd *cobra.Command, args []string) error {
			o := sdk.ExecsOptions{Limit: 1000}
			for _, s := range states {
				o.States = append(o.States, protocol.ExecState(s))
			}
			return p.client(cmd, func(ctx context.Context, c *sdk.Client) error {
				found := []protocol.Exec{}
				for more := true; more; more = o.Page != "" {
					execs, next, err := c.Sandbox(args[0]).Execs(ctx, o)
					if err != nil {
						return err
					}
					for _, x := range execs {
						found = append(found, x.Info())
					}
					o.Page = next
				}
				return p.show(found, func(w io.Writer) { printExecs(w, c.Now(ctx), found) })
			})
		},
	}
	cmd.Flags().StringSliceVar(&states, "state", nil, "only execs in this `state`; may be repeated")
	return cmd
}

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
		rows = append(rows, []any{x.ID, x.State, exit, ago(now, x.AcceptedAt), took, fmt.Sprintf("%.60q", x.Spec.Command)})
	}
	table(w, rows...)
}

func (p *program) execGet() *cobra.Command {
	return &cobra.Command{
		Use: "get SANDBOX EXEC", Short: "Show an exec", Args: takes("SANDBOX", "EXEC"), Example: "  boxfleet exec get web 01kpm3…",
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
	rows := [][]any{{"id", x.ID}, {"state", x.State}, {"command", fmt.Sprintf("%q", x.Spec.Command)}, {"accepted", x.AcceptedAt.Format(time.RFC3339)}}
	if x.Spec.Service != "" {
		rows = append(rows, []any{"service", x.Spec.Service})
	}
	if !x.StartedAt.IsZero() {
		rows = append(rows, []any{"started", x.StartedAt.Format(time.RFC3339Nano)})
	}
	if !x.EndedAt.IsZero() {
		rows = append(rows, []any{"ended", x.EndedAt.Format(time.RFC3339Nano)})
	}
	if x.ExitCode != nil {
		rows = append(rows, []any{"exit code", *x.ExitCode})
	}
	rows = append(rows, []any{"output", fmt.Sprintf("%d bytes of stdout, %d of stderr", x.StdoutBytes, x.StderrBytes)})
	if x.Truncated {
		rows = append(rows, []any{"", "it wrote more than was kept"})
	}
	if x.OutputError != nil {
		rows = append(rows, []any{"", "output is missing: " + x.OutputError.Message})
	}
	if x.OOMKills > 0 {
		rows = append(rows, []any{"", fmt.Sprintf("the kernel killed %d processes of the sandbox for want of memory", x.OOMKills)})
	}
	if x.Reason != "" {
		rows = append(rows, []any{"reason", x.Reason})
	}
	if x.Error != nil {
		rows = append(rows, []any{"error", x.Error})
	}
	table(w, rows...)
}

func (p *program) execCancel() *cobra.Command {
	return &cobra.Command{
		Use: "cancel SANDBOX EXEC", Short: "End an exec with its whole process tree", Args: takes("SANDBOX", "EXEC"), Example: "  boxfleet exec cancel web 01kpm3…",
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.client(cmd, func(ctx context.Context, c *sdk.Client) error {
				box := c.Sandbox(args[0])
				if err := box.Cancel(ctx, args[1]); err != nil {
					return err
				}
				x, err := box.GetExec(ctx, args[1])
				if err != nil {
					return err
				}
				return p.show(x.Info(), func(w io.Writer) { fmt.Fprintln(w, args[1]) })
			})
		},
	}
}

func (p *program) execLogs() *cobra.Command {
	var o sdk.LogsOptions
	cmd := &cobra.Command{
		Use: "logs SANDBOX EXEC", Short: "Print the output of an exec, whenever it ran", Args: takes("SANDBOX", "EXEC"),
		Long:    "Print the output of an exec: its stdout on stdout, its stderr on stderr. With -o json each chunk is a\nline with stream, offset and data in base64.",
		Example: "  boxfleet exec logs web 01kpm3… --follow\n  boxfleet exec logs web 01kpm3… --from-offset 4096",
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.client(cmd, func(ctx context.Context, c *sdk.Client) error {
				x, err := c.Sandbox(args[0]).GetExec(ctx, args[1])
				if err != nil {
					return err
				}
				for k, err := range x.Logs(ctx, o) {
					if err != nil {
						return ignoreInterrupt(ctx, o.Follow, err)
					}
					if err := p.printChunk(k); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&o.Follow, "follow", false, "go on until the exec has ended; it goes on when this ends")
	cmd.Flags().Int64Var(&o.FromStdout, "from-offset", 0, "begin with this `byte` of stdout")
	cmd.Flags().Int64Var(&o.FromStderr, "from-offset-stderr", 0, "begin with this `byte` of stderr")
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
