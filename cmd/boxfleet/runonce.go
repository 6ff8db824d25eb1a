package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// deleteWithin bounds how long run waits for the removal of its sandbox.
const deleteWithin = time.Minute

func (p *program) runCommand() *cobra.Command {
	var box specFlags
	var flags execFlags
	cmd := &cobra.Command{
		Use: "run --image IMAGE [flags] -- COMMAND [ARGUMENT...]", Short: "Make a sandbox, run a command in it, delete it",
		Long: "Make a sandbox, run a command in it, and delete it, whatever happens. boxfleet ends with the command's\nexit code, or with 125 where it could not be run. Ctrl-C cancels the command and deletes the sandbox.",
		Args: takesCommand(true),
		Example: `  boxfleet run --image boxfleet/demo:busybox -- uname -a
  boxfleet run --image boxfleet/demo:busybox --copy .:/src --cwd /src -- ls -l`,
		RunE: func(cmd *cobra.Command, args []string) error {
			_, command := splitDash(cmd, args)
			if box.file == "-" && flags.stdin {
				return usage("--file - and --stdin both read stdin")
			}
			d, err := box.document(p.stdin, nil)
			if err != nil {
				return err
			}
			if d.ID != "" {
				return usage("%s: id is of sandbox create and apply; the sandbox of run has a new one", box.file)
			}
			execSpec, err := flags.spec(p.stdin, command)
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
				return p.runOnce(ctx, c, &d.Spec, execSpec)
			}))
		},
	}
	box.add(cmd)
	flags.add(cmd)
	return cmd
}

// runOnce makes a sandbox, runs a command in it, and deletes it.
func (p *program) runOnce(ctx context.Context, c *sdk.Client, boxSpec *protocol.SandboxSpec, spec *protocol.ExecSpec) (err error) {
	id := sdk.NewID()
	defer func() {
		if deleteErr := p.deleteAfter(ctx, c.Sandbox(id), err); deleteErr != nil {
			fmt.Fprintf(p.stderr, "boxfleet: sandbox %s is not deleted yet: %v\n", id, deleteErr)
		}
	}()
	done := p.progress("creating the sandbox")
	defer done()
	box, err := c.Create(ctx, *boxSpec, sdk.WithID(id))
	done()
	if err != nil {
		return err
	}
	return p.exec(ctx, box, sdk.NewID(), spec, nil)
}

// deleteAfter deletes a sandbox, also when ctx has ended. after is what happened before: a sandbox
// whose create was interrupted may not be there yet, or never be.
func (p *program) deleteAfter(ctx context.Context, box *sdk.Sandbox, after error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deleteWithin)
	defer cancel()
	defer p.progress("deleting the sandbox")()
	err := untilFound(ctx, func() error { return box.Delete(ctx) })
	if protocol.CodeOf(err) == protocol.NotFound && after != nil {
		return nil
	}
	return err
}
