package main

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

func (cmds imageCommands) listCommand() *cobra.Command {
	var quiet bool
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the images that the workers manage, by host", Args: takes(),
		Example: "  boxfleet image list",
		Long: "List the images that the workers manage, by host: the ones they pulled and the imported " +
			"ones.\nBoxfleet neither lists nor changes other images on a host.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				if quiet {
					refs, err := imageRefs(ctx, c)
					if err != nil {
						return err
					}
					return cmds.showNames(refs)
				}
				imported, err := sdk.ReadAll(c.Images().List(ctx))
				if err != nil {
					return err
				}
				hosts, err := sdk.ReadAll(c.Images().OnHosts(ctx))
				if err != nil {
					return err
				}
				all := struct {
					Imported []*protocol.WantedImage `json:"imported"`
					Hosts    []*protocol.HostImages  `json:"hosts"`
				}{imported, hosts}
				return cmds.show(all, func(w io.Writer) { printImages(w, c.Now(ctx), imported, hosts) })
			})
		},
	}
	addQuiet(cmd, &quiet)
	return cmd
}

func printImages(w io.Writer, now time.Time, imported []*protocol.WantedImage, hosts []*protocol.HostImages) {
	rows := [][]any{{"WORKER", "IMAGE", "ORIGIN", "STATE", "SIZE", "ID", "USED", "ERROR"}}
	listed := map[string]bool{}
	for _, h := range hosts {
		for _, i := range h.Images {
			listed[i.Ref] = true
			rows = append(rows, []any{h.Worker, i.Ref, i.Origin, stateColour(i.State), i.Size, shortID(i.ID), ago(now, i.UsedAt),
				errorText(i.Error)})
		}
	}
	for _, want := range imported {
		if !listed[want.Ref] { // no host has it yet
			rows = append(rows, []any{"-", want.Ref, protocol.ImageImported, "wanted", want.Size, "", "-", ""})
		}
	}
	table(w, rows...)
}

// shortID shortens an image id as docker does.
func shortID(id string) string {
	const prefix = len("sha256:")
	if len(id) < prefix+12 {
		return id
	}
	return id[prefix : prefix+12]
}
