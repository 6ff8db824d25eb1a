package main

import (
	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// sandboxCommands are the commands of `boxfleet sandbox`, and `ps` and `rm`.
type sandboxCommands struct{ *client }

func (cmds sandboxCommands) group() *cobra.Command {
	return group("sandbox", "Create, inspect, stop and delete sandboxes",
		cmds.createCommand(), cmds.getCommand(), cmds.listCommand("boxfleet sandbox", "list", "ls", "ps"),
		cmds.controlCommand("stop", "Stop sandboxes, which can be resumed, and end their execs", (*sdk.Sandbox).Stop),
		cmds.controlCommand("resume", "Start stopped sandboxes again", (*sdk.Sandbox).Resume),
		cmds.extendCommand(), cmds.deleteCommand("boxfleet sandbox", "delete", "rm"), cmds.eventsCommand(),
		logsCommand(cmds.client, "boxfleet sandbox logs"), cmds.explainCommand(), cmds.topCommand(), cmds.statsCommand(),
		cmds.verifyCommand())
}

// stateOf describes the state of a sandbox on one line.
func stateOf(s *protocol.Sandbox) string {
	text := string(s.State)
	if s.State == protocol.StateReady && s.Desired == protocol.StateStopped {
		text += ", stopping"
	}
	if s.Phase != "" {
		text += ", " + s.Phase
	}
	if s.Unreachable {
		text += ", unreachable"
	}
	return text
}
