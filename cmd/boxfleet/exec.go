package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// execOptions holds the arguments and flags of `exec`.
type execOptions struct {
	execFlags
	line                            commandLine
	env                             []string
	cwd, user, service, id, request string
	detach                          bool
	secret                          secretFlags
	sensitive                       map[string]string // values of --sensitive-env
}

func (o *execOptions) add(cmd *cobra.Command) {
	o.execFlags.add(cmd)
	cmd.Flags().StringArrayVarP(&o.env, "env", "e", nil,
		"environment variable `K=V`, overrides the sandbox's; may be repeated")
	o.secret.add(cmd.Flags())
	cmd.Flags().StringVar(&o.cwd, "cwd", "", "working directory (default: the sandbox's)")
	cmd.Flags().StringVar(&o.user, "user", "", "user, uid, or either with :group (default: the sandbox's)")
	cmd.Flags().StringVar(&o.service, "service", "",
		"run in the container of this `service` (default: the sandbox's own)")
	cmd.Flags().StringVar(&o.id, "id", "", "id of the exec (default: generated)")
	cmd.Flags().StringVar(&o.request, "request-id", "",
		"id of the request; repeating a request returns the same exec")
	cmd.Flags().BoolVar(&o.detach, "detach", false,
		"print the exec's id once it is accepted, and do not wait for the exec to end")
	o.line.of(cmd, "SANDBOX")
}

// spec returns the spec of the exec. If no id is given, spec chooses one: messages can then name the exec, and an
// interrupted client can cancel the exec before a coordinator has accepted it.
func (o *execOptions) spec(cmd *cobra.Command, stdin io.Reader) (*protocol.ExecSpec, error) {
	o.detached = o.detach
	spec, err := o.execFlags.spec(stdin, o.line.command)
	if err != nil {
		return nil, err
	}
	spec.Cwd, spec.User, spec.Service = o.cwd, o.user, o.service
	if err := addPairs("--env", &spec.Env, o.env); err != nil {
		return nil, err
	}
	if spec.Secrets, err = o.secret.uses(); err != nil {
		return nil, err
	}
	if o.sensitive, err = o.secret.values(); err != nil {
		return nil, err
	}
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if err := checkIDs(cmd, o.id, o.request); err != nil {
		return nil, err
	}
	if o.id == "" {
		if o.request == "" {
			o.request = sdk.NewID()
		}
		o.id = o.request
	}
	return spec, nil
}

func (cmds runCommands) execCommand() *cobra.Command {
	var o execOptions
	cmd := &cobra.Command{
		Use: "exec [flags] SANDBOX COMMAND [ARGUMENT...]", Short: "Run a command in a sandbox",
		Long: `Run a command in a sandbox. Its output goes to stdout and stderr. boxfleet exits with the command's exit
code, or with 125 if the command could not be run or its output could not be written. Flags come before COMMAND;
everything after it belongs to the command. Put "--" before a COMMAND that starts with a dash. To list, cancel or
read execs, use "boxfleet execs".

Ctrl-C cancels the command and waits for it to end; a second Ctrl-C ends boxfleet at once. TERM, HUP and QUIT
also cancel the command and end boxfleet within 2 s, with exit code 128+n if the command has not ended by then.
Closing the output does the same, as in "boxfleet exec web cat log | head -1"; the exit code is then 141.

--deadline ends only the wait, with exit code 125: the command continues, and "boxfleet execs logs --follow"
attaches to it again. --detach does not wait at all; with -i, at most 128 KiB of stdin then travel with the
request. The command also continues if boxfleet is killed or this
machine goes down.`,
		ValidArgsFunction: cmds.completeSandbox,
		Example: `  boxfleet exec web ls -l
  boxfleet exec --cwd /src --env CGO_ENABLED=0 --timeout 10m web go test ./...
  echo 'print(6 * 7)' | boxfleet exec -i web python3 -
  boxfleet exec --service db web psql -U postgres
  boxfleet exec --detach --id build web make`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			spec, err := o.spec(cmd, cmds.stdin)
			if err != nil {
				return err
			}
			return notRun(cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				cmds.warnOfStdin(o.stdin)
				defer func() { cmds.warnOfStdin(o.stdin) }() // again at the end: a slow pipe may have data only then
				for name, value := range o.sensitive {
					sealed, err := c.Seal(ctx, name, value)
					if err != nil {
						return err
					}
					if spec.SensitiveEnv == nil {
						spec.SensitiveEnv = map[string]protocol.Sealed{}
					}
					spec.SensitiveEnv[name] = sealed
				}
				box := c.Sandbox(o.line.ids[0])
				if o.detach {
					return withHint(cmds.startDetached(ctx, box, o.id, o.request, spec), &o.line)
				}
				return withHint(cmds.exec(ctx, box, o.id, o.request, spec, o.input(cmds.stdin)), &o.line)
			}))
		},
	}
	o.add(cmd)
	return cmd
}

// withHint adds a command that the user may have meant to the error of an exec. If the sandbox is stopped, the command
// is `boxfleet sandbox resume`. If the user typed `boxfleet exec list web` and no sandbox is called list, the command
// is `boxfleet execs list web`.
func withHint(err error, line *commandLine) error {
	verb := line.ids[0]
	if e := protocol.AsError(err); err != nil && e.Reason == protocol.ReasonSandboxNotReady &&
		e.Message == "the sandbox is stopped" {
		stopped := *e
		stopped.Message += "; `boxfleet sandbox resume " + verb + "` starts it again"
		return &stopped
	}
	if protocol.CodeOf(err) != protocol.NotFound || !slices.Contains(execsVerbs, verb) {
		return err
	}
	e := *protocol.AsError(err)
	e.Message += fmt.Sprintf("; did you mean `boxfleet execs %s %s`?", verb, strings.Join(line.command, " "))
	return &e
}

// notRun gives exit code 125 to an error that occurred before the command ended.
func notRun(err error) error {
	if _, ours := err.(exitCode); ours || err == nil || codeOf(err) == exitUsage {
		return err
	}
	return exitCode{exitNotRun, err}
}

// startDetached starts an exec and prints its id. It does not wait for the exec to end.
func (cmds runCommands) startDetached(
	ctx context.Context, box *sdk.Sandbox, id, request string, spec *protocol.ExecSpec,
) error {
	cmds.noteContinues(box, id)
	opts := []sdk.StartOption{sdk.WithID(id)}
	if request != "" {
		opts = append(opts, sdk.WithRequestID(request))
	}
	x, err := box.Start(ctx, *spec, opts...)
	if err != nil {
		return err
	}
	cmds.unfinished.done("exec")
	return cmds.show(x.Info(), func(w io.Writer) { fmt.Fprintln(w, x.ID()) })
}

// exec runs a command, copies its output, and returns its exit code as an error.
// input is nil without --stdin.
func (cmds runCommands) exec(ctx context.Context, box *sdk.Sandbox, id, request string, spec *protocol.ExecSpec,
	input io.Reader) error {
	opts := []sdk.ExecOption{sdk.WithID(id)}
	if input != nil {
		opts = append(opts, sdk.WithStdin(input))
	}
	if request != "" {
		opts = append(opts, sdk.WithRequestID(request))
	}
	if !cmds.json() {
		opts = append(opts, sdk.WithStdout(cmds.stdout), sdk.WithStderr(cmds.guarded(cmds.stderr)))
	}
	result, err := cmds.execCancellable(ctx, box, id, spec, opts)
	if result == nil {
		return err
	}
	if cmds.json() {
		if err := cmds.line(result); err != nil {
			return err
		}
	}
	switch {
	case result.OutputError != nil:
		cmds.note("the output is incomplete: %s", result.OutputError.Message)
	case result.Truncated && !cmds.json():
		cmds.note("output was truncated; raise --output-limit to keep more")
	}
	if cmds.unwritten.Load() && result.ExitCode != nil && *result.ExitCode == 0 {
		return exitCode{exitNotRun, err}
	}
	return exitOf(result, err)
}

// exitOf returns the exit code for an exec that has ended, or nil for success.
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
	switch {
	case code.code == 0 && code.cause == nil:
		return nil
	case code.code == 0 && protocol.AsError(err).Reason == protocol.ReasonOutputDiffers:
		code.code = exitFailure // the client received wrong output, so `exec` must not succeed
	}
	return code
}

const (
	cancelWithin = 30 * time.Second // how long a cancel may take to be accepted, after ctx has ended
	endMargin    = 15 * time.Second // how long the exec may take to end after its cancel, beyond its grace period
)

// execCancellable runs a command. If the client is interrupted, execCancellable cancels the command and waits until the
// command has ended. The client's deadline ends only the wait.
func (cmds runCommands) execCancellable(ctx context.Context, box *sdk.Sandbox, id string, spec *protocol.ExecSpec,
	opts []sdk.ExecOption) (*sdk.Result, error) {
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	cmds.noteContinues(box, id)
	undo := context.AfterFunc(ctx, func() {
		if !overdue(ctx) {
			cmds.cancelAndAwait(ctx, running, box, id, spec.Grace.Std())
		}
		stop()
	})
	defer undo()
	result, err := box.Exec(running, *spec, opts...)
	switch {
	case result != nil:
		cmds.unfinished.done("exec")
	case ctx.Err() != nil && running.Err() != nil && overdue(ctx):
		err = because(err, protocol.DeadlineExceeded, fmt.Sprintf("exec %s has not ended within --deadline %s", id,
			cmds.config.Deadline))
	case ctx.Err() != nil && running.Err() != nil:
		err = because(err, protocol.Cancelled, context.Cause(ctx).Error())
	default: // err says how the exec ended
		cmds.unfinished.done("exec")
	}
	return result, err
}

// The function "because" returns the error of a wait that this client ended. If err says why the fleet has not decided
// the request yet, the returned error has that reason and its message, too.
func because(err error, code protocol.Code, message string) error {
	if e := protocol.AsError(err); e != nil && e.Reason != "" {
		return protocol.Errorf(code, e.Reason, "%s: %s", message, e.Message)
	}
	return protocol.Errorf(code, "", "%s", message)
}

// noteContinues records a hint that is printed if the client ends before the exec.
func (cmds runCommands) noteContinues(box *sdk.Sandbox, id string) {
	cmds.unfinished.set("exec",
		"exec %s of sandbox %s continues if it was accepted: `boxfleet execs logs %s %s --follow` attaches to it, "+
			"`boxfleet execs cancel %s %s` ends it", id, box.ID(), box.ID(), id, box.ID(), id)
}

// cancelAndAwait cancels an exec whose client was interrupted. It returns when the context of the running exec ends, or
// when the exec has had its grace period and endMargin to end.
func (cmds runCommands) cancelAndAwait(ctx, running context.Context, box *sdk.Sandbox, id string, grace time.Duration) {
	bounded := running
	if i, _ := interruptionOf(ctx); i == interruption(syscall.SIGPIPE) {
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeout(running, leaveWithin)
		defer cancel()
	}
	if err := cancelExec(bounded, box, id); err != nil {
		return
	}
	cmds.unfinished.set("exec", "exec %s of sandbox %s is being cancelled: `boxfleet execs get %s %s` shows its end", id,
		box.ID(), box.ID(), id)
	if grace == 0 {
		grace = protocol.DefaultGrace.Std()
	}
	enough, cancel := context.WithTimeout(bounded, grace+endMargin)
	defer cancel()
	<-enough.Done()
}

// cancelExec cancels an exec even if its request has not been decided yet.
func cancelExec(ctx context.Context, box *sdk.Sandbox, id string) error {
	ctx, cancel := context.WithTimeout(ctx, cancelWithin)
	defer cancel()
	return untilFound(ctx, func() error { return box.ExecByID(id).Cancel(ctx) })
}

// foundWithin is how long untilFound retries, because a request may not have been decided yet.
const foundWithin = 3 * time.Second

// untilFound repeats a call while its error is not_found.
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
