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

// execFlags are the flags that say how a command is run.
type execFlags struct {
	timeout, grace time.Duration
	startTimeout   time.Duration
	outputLimit    string
	stdin          bool
}

func (f *execFlags) add(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0,
		"end the command after this time, counted from its start (default: never)")
	cmd.Flags().DurationVar(&f.startTimeout, "start-timeout", 0,
		"give up a command that has not started within this time after it was accepted (default 2m)")
	cmd.Flags().DurationVar(&f.grace, "grace", 0, "from TERM to KILL when it is ended (default 5s)")
	cmd.Flags().StringVar(&f.outputLimit, "output-limit", "",
		"keep so many `bytes` of stdout and of stderr, each (default 256MiB)")
	cmd.Flags().BoolVarP(&f.stdin, "stdin", "i", false, "give stdin to the command: at most 128 KiB")
}

func (f *execFlags) spec(stdin io.Reader, command []string) (*protocol.ExecSpec, error) {
	spec := &protocol.ExecSpec{Command: command, Timeout: protocol.Duration(f.timeout), Grace: protocol.Duration(f.grace),
		StartTimeout: protocol.Duration(f.startTimeout)}
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
			return nil, usage("--stdin: there is more than %s, the most that a command gets; `boxfleet run` and `boxfleet sandbox create` bring files with --copy", protocol.Bytes(protocol.MaxStdin))
		}
	}
	return spec, nil
}

func (p *program) execCommand() *cobra.Command {
	var flags execFlags
	var line commandLine
	var env []string
	var cwd, user, service, id, request string
	var detach bool
	cmd := &cobra.Command{
		Use: "exec [flags] SANDBOX COMMAND [ARGUMENT...]", Short: "Run a command in a sandbox",
		Long: `Run a command in a sandbox. Its output comes on stdout and stderr, and boxfleet ends with its exit
code, or with 125 where it could not be run, or its output not be written. Flags stand before COMMAND; what
follows it is the command's. A COMMAND that begins with a dash stands behind "--". boxfleet execs lists,
cancels and reads execs.

Ctrl-C cancels it and waits for its end; a second one ends boxfleet at once. TERM, HUP and QUIT cancel
it, too, and end boxfleet within 2 s, with 128+n where it has not ended by then. So does a reader of the
output that goes away, as in "boxfleet exec … | head -1", with 141. --deadline ends only the wait, with
125: the command goes on, and is attached to again by boxfleet execs logs --follow. --detach does not
wait at all. KILL, or the loss of this machine, leaves the command running, too.`,
		ValidArgsFunction: p.completeSandbox,
		Example: `  boxfleet exec web ls -l
  boxfleet exec --cwd /src --env CGO_ENABLED=0 --timeout 10m web go test ./...
  echo 'print(6 * 7)' | boxfleet exec -i web python3 -
  boxfleet exec --service db web psql -U postgres
  boxfleet exec --detach web make`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			spec, err := flags.spec(p.stdin, line.command)
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
			if err := checkIDs(cmd, id, request); err != nil {
				return err
			}
			if id == "" { // known beforehand, so that it can be cancelled before it is accepted
				if request == "" {
					request = sdk.NewID()
				}
				id = request
			}
			return notRun(p.client(cmd, func(ctx context.Context, c *sdk.Client) error {
				box := c.Sandbox(line.ids[0])
				p.warnOfStdin(flags.stdin)
				defer func() { p.warnOfStdin(flags.stdin) }() // a pipe may be slow
				if detach {
					return meantExecs(p.detached(ctx, box, id, request, spec), &line)
				}
				return meantExecs(p.exec(ctx, box, id, request, spec), &line)
			}))
		},
	}
	flags.add(cmd)
	cmd.Flags().StringArrayVarP(&env, "env", "e", nil, "environment variable `K=V`, over the sandbox's; may be repeated")
	cmd.Flags().StringVar(&cwd, "cwd", "", "working directory (default: the sandbox's)")
	cmd.Flags().StringVar(&user, "user", "", "user, uid, or either with :group (default: the sandbox's)")
	cmd.Flags().StringVar(&service, "service", "",
		"run it in the container of this `service` (default: in the sandbox's own)")
	cmd.Flags().StringVar(&id, "id", "", "id of the exec (default: a new one)")
	cmd.Flags().StringVar(&request, "request-id", "", "id of the request: a repeated one finds the same exec")
	cmd.Flags().BoolVar(&detach, "detach", false, "print the exec's id as soon as it is accepted, and do not wait")
	line.of(cmd, "SANDBOX")
	return cmd
}

// meantExecs helps those who write `boxfleet exec list web`, where no sandbox is called list.
func meantExecs(err error, line *commandLine) error {
	verb := line.ids[0]
	err = whichSandbox(err, verb)
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

// notRun gives an error before the command's own end the exit code 125.
func notRun(err error) error {
	if _, ours := err.(exitCode); ours || err == nil || codeOf(err) == exitUsage {
		return err
	}
	return exitCode{exitNotRun, err}
}

func (p *program) detached(ctx context.Context, box *sdk.Sandbox, id, request string, spec *protocol.ExecSpec) error {
	p.execGoesOn(box, id)
	opts := []sdk.StartOption{sdk.WithID(id)}
	if request != "" {
		opts = append(opts, sdk.WithRequestID(request))
	}
	x, err := box.Start(ctx, *spec, opts...)
	if err != nil {
		return err
	}
	p.inHand.done("exec")
	return p.show(x.Info(), func(w io.Writer) { fmt.Fprintln(w, x.ID()) })
}

// exec runs a command, passes its output on, and returns its exit code as the error.
func (p *program) exec(ctx context.Context, box *sdk.Sandbox, id, request string, spec *protocol.ExecSpec) error {
	opts := []sdk.ExecOption{sdk.WithID(id)}
	if request != "" {
		opts = append(opts, sdk.WithRequestID(request))
	}
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
	switch {
	case result.OutputError != nil:
		p.note("the end of the output is missing: %s", result.OutputError.Message)
	case result.Truncated && !p.json():
		p.note("there was more output than is kept; --output-limit keeps more")
	}
	if p.unwritten.Load() && result.ExitCode != nil && *result.ExitCode == 0 {
		return exitCode{exitNotRun, err}
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
func (p *program) execCancellable(ctx context.Context, box *sdk.Sandbox, id string, spec *protocol.ExecSpec,
	opts []sdk.ExecOption) (*sdk.Result, error) {
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
	result, err := box.Exec(running, *spec, opts...)
	switch {
	case result != nil:
		p.inHand.done("exec")
	case ctx.Err() != nil && running.Err() != nil && overdue(ctx):
		err = because(err, protocol.DeadlineExceeded, fmt.Sprintf("exec %s has not ended within --deadline %s", id,
			p.config.Deadline))
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
	p.inHand.goesOn("exec", "exec %s of sandbox %s goes on if it was accepted: `boxfleet execs logs %s %s --follow` attaches to it, "+
		"`boxfleet execs cancel %s %s` ends it", id, box.ID(), box.ID(), id, box.ID(), id)
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
	p.inHand.goesOn("exec", "exec %s of sandbox %s is being cancelled: `boxfleet execs get %s %s` shows its end", id,
		box.ID(), box.ID(), id)
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
	return untilFound(ctx, func() error { return box.ExecByID(id).Cancel(ctx) })
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
