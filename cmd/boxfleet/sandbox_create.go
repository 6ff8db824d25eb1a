package main

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/spec"
)

// createOptions are the flags of sandbox create.
type createOptions struct {
	spec        specFlags
	id, request string
	wait        bool
}

func (o *createOptions) add(cmd *cobra.Command) {
	o.spec.add(cmd)
	cmd.Flags().StringVar(&o.id, "id", "",
		"id of the sandbox; an id can be used only once (default: the file's, else generated)")
	cmd.Flags().StringVar(&o.request, "request-id", "",
		"id of the request; repeating a request returns the same sandbox")
	cmd.Flags().BoolVar(&o.wait, "wait", true, "wait until the sandbox is ready, not just accepted")
}

// document returns the document to create. If no id is given, document chooses one: messages can then name the sandbox
// before a coordinator has accepted it.
func (o *createOptions) document(cmd *cobra.Command, stdin io.Reader, command []string) (*spec.Document, error) {
	d, err := o.spec.document(stdin, command)
	if err != nil {
		return nil, err
	}
	if d.ID != "" && !cmd.Flags().Changed("id") {
		_ = cmd.Flags().Set("id", d.ID) // a string flag accepts any text
	}
	if err := checkIDs(cmd, o.id, o.request); err != nil {
		return nil, err
	}
	if d.ID = cmp.Or(o.id, o.request); d.ID == "" {
		d.ID = sdk.NewID()
	}
	return d, nil
}

func (cmds sandboxCommands) createCommand() *cobra.Command {
	var o createOptions
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
			d, err := o.document(cmd, cmds.stdin, command)
			if err != nil {
				return err
			}
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				return cmds.create(ctx, c, d, &o)
			})
		},
	}
	o.add(cmd)
	cmds.completeFlag(cmd, "image", imageRefs)
	return cmd
}

// create creates the sandbox of a document and prints its id.
func (cmds sandboxCommands) create(ctx context.Context, c *sdk.Client, d *spec.Document, o *createOptions) error {
	if err := cmds.upload(ctx, c, d); err != nil {
		return err
	}
	sealed, err := c.SealDocument(ctx, d)
	if err != nil {
		return err
	}
	done := cmds.creating(ctx, c, d.ID, o.wait)
	defer done()
	cmds.unfinished.set("sandbox", "the create of sandbox %s continues if it was accepted: "+
		"`boxfleet sandbox get %s` shows it, `boxfleet sandbox delete %s` deletes it", d.ID, d.ID, d.ID)
	opts := []sdk.CreateOption{sdk.WithID(d.ID), sdk.WithWait(o.wait)}
	if o.request != "" {
		opts = append(opts, sdk.WithRequestID(o.request))
	}
	if d.Name != "" {
		opts = append(opts, sdk.WithName(d.Name))
	}
	box, err := c.Create(ctx, sealed, opts...)
	done()
	if err != nil {
		return cmds.notReady(box, err)
	}
	cmds.unfinished.done("sandbox")
	return cmds.show(box.Info(), func(w io.Writer) { fmt.Fprintln(w, box.ID()) })
}

// notReady adds the state of the sandbox to the error of a create, and a command that the user can run next. box is nil
// if the create was not accepted.
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
		e.Message += fmt.Sprintf("; sandbox %s has failed: `boxfleet sandbox events %s` shows why, `boxfleet sandbox "+
			"delete %s` deletes it", info.ID, info.ID, info.ID)
		if info.Name != "" {
			e.Message += fmt.Sprintf("; the name %s can be used again", info.Name)
		}
		return &e
	}
	return err
}
