package main

import (
	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
)

// imageCommands are the commands of `boxfleet image`.
type imageCommands struct{ *client }

func (cmds imageCommands) group() *cobra.Command {
	return group("image", "List, import and remove the images of the hosts", cmds.importCommand(), cmds.listCommand(),
		cmds.removeCommand())
}

func errorText(err *protocol.Error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
