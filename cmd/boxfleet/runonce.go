package main

import (
	"context"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/spec"
)

// deleteWithin is the time limit for deleting run's sandbox.
const deleteWithin = time.Minute

func (p *program) runCommand() *cobra.Command {
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
			d, err := box.document(p.stdin, nil)
			if err != nil {
				return err
			}
			if d.ID != "" {
				return usage("%s: id is for sandbox create and apply; run generates a new id", box.file)
			}
			execSpec, err := flags.spec(p.stdin, line.command)
			if err != nil {
				return err
			}
			if err := execSpec.Validate(); err != nil {
				return err
			}
			return notRun(p.client(cmd, func(ctx context.Context, c *sdk.Client) error {
				if err := p.upload(ctx, c, d); err != nil {
					return err
				}
				read := flags.stdin || box.file == "-"
				p.warnOfStdin(read)
				defer func() { p.warnOfStdin(read) }() // a slow pipe may have data by now
				return p.runOnce(ctx, c, d, execSpec)
			}))
		},
	}
	box.add(cmd)
	p.completeFlag(cmd, "image", imageRefs)
	flags.add(cmd)
	line.of(cmd)
	return cmd
}

// runOnce creates a sandbox, runs a command in it, and deletes it.
func (p *program) runOnce(ctx context.Context, c *sdk.Client, d *spec.Document,
	execSpec *protocol.ExecSpec) (err error) {
	id := sdk.NewID()
	p.unfinished.set("sandbox", "sandbox %s may still exist: `boxfleet sandbox delete %s` deletes it", id, id)
	defer func() {
		if deleteErr := p.deleteAfter(ctx, c.Sandbox(id), err); deleteErr != nil {
			p.note("sandbox %s is not deleted yet: %v", id, deleteErr)
		}
	}()
	done := p.creating(ctx, c, id, true)
	defer done()
	opts := []sdk.CreateOption{sdk.WithID(id)}
	if d.Name != "" {
		opts = append(opts, sdk.WithName(d.Name))
	}
	box, err := c.Create(ctx, d.Spec, opts...)
	done()
	if err != nil {
		return err
	}
	// Whatever ends the client also ends the command. Deleting the sandbox does both, so a client with little time left
	// requests the delete at once.
	owned, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, func() {
		if i, _ := interruptionOf(ctx); i != 0 && i != interruption(syscall.SIGINT) {
			_ = p.askToDelete(ctx, box) // requested again at the end
		}
		if i, interrupted := interruptionOf(ctx); interrupted {
			end(i)
		} else {
			end(interruption(syscall.SIGINT))
		}
	})()
	err = p.exec(owned, box, sdk.NewID(), "", execSpec)
	p.unfinished.done("exec") // it ends with its sandbox
	if overdue(ctx) {
		return protocol.Errorf(protocol.DeadlineExceeded, "",
			"the command did not end within --deadline %s and was cancelled", p.config.Deadline)
	}
	return err
}

// askToDelete requests the delete of a sandbox and does not wait for it.
func (p *program) askToDelete(ctx context.Context, box *sdk.Sandbox) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deleteWithin)
	defer cancel()
	err := untilFound(ctx, func() error { return box.Delete(ctx, sdk.WithWait(false)) })
	if err == nil {
		p.unfinished.set("sandbox", "sandbox %s is being deleted: `boxfleet sandbox get %s` shows its end", box.ID(),
			box.ID())
	}
	return err
}

// deleteAfter deletes a sandbox, even if ctx has ended. after is the error of what came before: if a create was
// interrupted, its sandbox may appear later or never.
func (p *program) deleteAfter(ctx context.Context, box *sdk.Sandbox, after error) error {
	defer p.progress("deleting the sandbox")()
	err := p.askToDelete(ctx, box)
	if protocol.CodeOf(err) == protocol.NotFound && after != nil {
		if ctx.Err() == nil { // the create was refused
			p.unfinished.done("sandbox")
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
		p.unfinished.done("sandbox")
	} else if within == leaveWithin { // the final error says so
		return nil
	}
	return err
}
