package main

import (
	"context"
	"io"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/spec"
)

// deleteWithin is the time limit for deleting the sandbox of `run`.
const deleteWithin = time.Minute

// runCommands are the commands that run a command in a sandbox: `run` and `exec`.
type runCommands struct{ *client }

func (cmds runCommands) runCommand() *cobra.Command {
	var box specFlags
	var flags execFlags
	var line commandLine
	cmd := &cobra.Command{
		Use: "run --image IMAGE [flags] COMMAND [ARGUMENT...]", Short: "Create a sandbox, run a command in it, and delete it",
		Long: `Create a sandbox, run a command in it, and delete the sandbox, even if something fails. boxfleet exits
with the command's exit code, or with 125 if the command could not be run. Flags come before COMMAND; everything
after it belongs to the command.

Ctrl-C and --deadline cancel the command and delete the sandbox; a second Ctrl-C ends boxfleet at once. TERM,
HUP, QUIT and closing the output do the same within 2 s. If the sandbox is not deleted by then, boxfleet prints
its id.`,
		Example: `  boxfleet run --image boxfleet/demo:busybox uname -a
  boxfleet run --image boxfleet/demo:busybox --copy .:/src --cwd /src ls -l`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if box.file == "-" && flags.stdin {
				return usage("--file - and --stdin both read stdin")
			}
			d, err := box.document(cmds.stdin, nil)
			if err != nil {
				return err
			}
			if d.ID != "" {
				return usage("%s: id is for sandbox create and apply; run generates a new id", box.file)
			}
			execSpec, err := flags.spec(cmds.stdin, line.command)
			if err != nil {
				return err
			}
			if err := execSpec.Validate(); err != nil {
				return err
			}
			return notRun(cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				if err := cmds.upload(ctx, c, d); err != nil {
					return err
				}
				read := flags.stdin || box.file == "-"
				cmds.warnOfStdin(read)
				defer func() { cmds.warnOfStdin(read) }() // again at the end: a slow pipe may have data only then
				return cmds.runOnce(ctx, c, d, execSpec, flags.input(cmds.stdin))
			}))
		},
	}
	box.add(cmd)
	cmds.completeFlag(cmd, "image", imageRefs)
	flags.add(cmd)
	line.of(cmd)
	return cmd
}

// runOnce creates a sandbox, runs a command in it, and deletes it.
func (cmds runCommands) runOnce(ctx context.Context, c *sdk.Client, d *spec.Document,
	execSpec *protocol.ExecSpec, input io.Reader) (err error) {
	id := sdk.NewID()
	cmds.unfinished.set("sandbox", "sandbox %s may still exist: `boxfleet sandbox delete %s` deletes it", id, id)
	defer func() {
		if deleteErr := cmds.deleteAfter(ctx, c.Sandbox(id), err); deleteErr != nil {
			cmds.note("sandbox %s is not deleted yet: %v", id, deleteErr)
		}
	}()
	done := cmds.creating(ctx, c, id, true)
	defer done()
	opts := []sdk.CreateOption{sdk.WithID(id)}
	if d.Name != "" {
		opts = append(opts, sdk.WithName(d.Name))
	}
	sealed, err := c.SealDocument(ctx, d)
	if err != nil {
		return err
	}
	box, err := c.Create(ctx, sealed, opts...)
	done()
	if err != nil {
		return err
	}
	// When the client is interrupted, the command must end too. The delete of the sandbox also ends the command. A
	// client that must exit soon therefore requests the delete at once.
	owned, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, func() {
		if i, _ := interruptionOf(ctx); i != 0 && i != interruption(syscall.SIGINT) {
			_ = cmds.requestDelete(ctx, box) // if the request fails, deleteAfter repeats it
		}
		if i, interrupted := interruptionOf(ctx); interrupted {
			end(i)
		} else {
			end(interruption(syscall.SIGINT))
		}
	})()
	err = cmds.exec(owned, box, sdk.NewID(), "", execSpec, input)
	cmds.unfinished.done("exec") // the exec ends with its sandbox
	if overdue(ctx) {
		return protocol.Errorf(protocol.DeadlineExceeded, "",
			"the command did not end within --deadline %s and was cancelled", cmds.config.Deadline)
	}
	return err
}

// requestDelete requests the delete of a sandbox and does not wait for it.
func (cmds runCommands) requestDelete(ctx context.Context, box *sdk.Sandbox) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deleteWithin)
	defer cancel()
	err := untilFound(ctx, func() error { return box.Delete(ctx, sdk.WithWait(false)) })
	if err == nil {
		cmds.unfinished.set("sandbox", "sandbox %s is being deleted: `boxfleet sandbox get %s` shows its end", box.ID(),
			box.ID())
	}
	return err
}

// deleteAfter deletes a sandbox, even if ctx has ended. The last parameter is the error of the steps before the delete.
// If the create was interrupted, the sandbox may appear later or never.
func (cmds runCommands) deleteAfter(ctx context.Context, box *sdk.Sandbox, after error) error {
	defer cmds.progress("deleting the sandbox")()
	err := cmds.requestDelete(ctx, box)
	if protocol.CodeOf(err) == protocol.NotFound && after != nil {
		if ctx.Err() == nil { // the create was refused
			cmds.unfinished.done("sandbox")
		}
		return nil
	}
	if err != nil {
		return err
	}
	within := deleteWithin
	if i, _ := interruptionOf(ctx); i == interruption(syscall.SIGPIPE) {
		within = leaveWithin
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	if err = box.WaitDeleted(bounded); err == nil {
		cmds.unfinished.done("sandbox")
	} else if within == leaveWithin { // the program's final error says that the sandbox is being deleted
		return nil
	}
	return err
}
