package main

import (
	"github.com/spf13/cobra"
)

// execsVerbs are the subcommands of `execs`. They are not subcommands of `exec`, because `boxfleet exec list` must run
// a command in the sandbox named list.
var execsVerbs = []string{"list", "ls", "ps", "get", "cancel", "input", "kill", "logs"}

// execsCommands are the commands of `boxfleet execs`.
type execsCommands struct{ *client }

func (cmds execsCommands) group() *cobra.Command {
	return group("execs", "List, show, signal and cancel the execs of a sandbox, and print their output",
		cmds.listCommand(),
		cmds.getCommand(), cmds.cancelCommand(), cmds.inputCommand(), cmds.killCommand(), cmds.logsCommand())
}
