package main

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

func (cmds sandboxCommands) createCommand() *cobra.Command {
	var flags specFlags
	var id, request string
	var wait bool
	cmd := &cobra.Command{
		Use:   "create [--image IMAGE] [-f spec.yaml] [flags] [-- COMMAND...]",
		Short: "Create a sandbox and wait until it is ready",
		Args:  takesCommand,
		Long: `Create a sandbox and wait until it is ready. If a signal or --deadline ends the wait early, the create
continues in the fleet, and boxfleet prints how to show the sandbox and how to delete it.

COMMAND is the sandbox's primary command. It should run as long as the sandbox does and is restarted when it
ends. The create fails if the command cannot be started or ends within half a second, whatever its exit code.
"boxfleet logs" prints its output. Without a COMMAND, the sandbox only runs execs.`,
		Example: `  boxfleet sandbox create --image boxfleet/demo:busybox --name web --env PORT=80 --memory 512m
  boxfleet sandbox create -f spec.yaml --label team=build --wait=false
  boxfleet sandbox create --image boxfleet/demo:busybox --service cache=redis:8 --service-env cache.TZ=UTC
  boxfleet sandbox create --image boxfleet/demo:busybox -- httpd -f -p 8080`,
		RunE: func(cmd *cobra.Command, args []string) error {
			_, command := splitDash(cmd, args)
			d, err := flags.document(cmds.stdin, command)
			if err != nil {
				return err
			}
			if d.ID != "" && !cmd.Flags().Changed("id") {
				_ = cmd.Flags().Set("id", d.ID) // a string flag accepts any text
			}
			if err := checkIDs(cmd, id, request); err != nil {
				return err
			}
			opts := []sdk.CreateOption{sdk.WithWait(wait)}
			if request != "" {
				opts = append(opts, sdk.WithRequestID(request))
			}
			if d.Name != "" {
				opts = append(opts, sdk.WithName(d.Name))
			}
			if id = cmp.Or(id, request); id == "" { // chosen here, so that messages can name it when the wait ends early
				id = sdk.NewID()
			}
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				if err := cmds.upload(ctx, c, d); err != nil {
					return err
				}
				done := cmds.creating(ctx, c, id, wait)
				defer done()
				cmds.unfinished.set("sandbox", "the create of sandbox %s continues if it was accepted: "+
					"`boxfleet sandbox get %s` shows it, `boxfleet sandbox delete %s` deletes it", id, id, id)
				box, err := c.Create(ctx, d.Spec, append(opts, sdk.WithID(id))...)
				done()
				if err != nil {
					return cmds.notReady(box, err)
				}
				cmds.unfinished.done("sandbox")
				return cmds.show(box.Info(), func(w io.Writer) { fmt.Fprintln(w, box.ID()) })
			})
		},
	}
	flags.add(cmd)
	cmds.completeFlag(cmd, "image", imageRefs)
	cmd.Flags().StringVar(&id, "id", "",
		"id of the sandbox; an id can be used only once (default: the file's, else generated)")
	cmd.Flags().StringVar(&request, "request-id", "", "id of the request; repeating a request returns the same sandbox")
	cmd.Flags().BoolVar(&wait, "wait", true, "wait until it is ready, not just accepted")
	return cmd
}

// notReady extends the error of a create by the sandbox's state. box is nil if the create was not accepted.
func (cmds sandboxCommands) notReady(box *sdk.Sandbox, err error) error {
	if box == nil {
		return err
	}
	info := box.Info()
	switch info.State {
	case protocol.StatePending:
		cmds.unfinished.set("sandbox",
			"sandbox %s is still pending: `boxfleet sandbox get %s` shows it, `boxfleet sandbox delete %s` deletes "+
				"it", info.ID, info.ID, info.ID)
		return err
	case protocol.StateFailed:
		cmds.unfinished.done("sandbox")
		e := *protocol.AsError(err)
		e.Message += fmt.Sprintf("; sandbox %s has failed: `boxfleet sandbox events %s` shows how, `boxfleet sandbox "+
			"delete %s` deletes it", info.ID, info.ID, info.ID)
		if info.Name != "" {
			e.Message += fmt.Sprintf("; the name %s can be used again", info.Name)
		}
		return &e
	}
	return err
}
