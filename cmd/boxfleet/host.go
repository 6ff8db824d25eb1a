package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// hostCommands are the commands of `boxfleet host`.
type hostCommands struct{ *client }

func (cmds hostCommands) group() *cobra.Command {
	return group("host", "List the hosts of the fleet and take them out of service", cmds.listCommand(),
		cmds.cordonCommand("cordon", "cordoned", "Stop placing work on a host",
			`Stop placing work on a host, including resumes of sandboxes that are stopped there. What runs there keeps
running. The cordon lasts until "boxfleet host uncordon", even if the worker restarts.`, (*sdk.Hosts).Cordon),
		cmds.cordonCommand("uncordon", "uncordoned", "Place work on a host again and end its drain",
			"Place work on a host again and end its drain.", (*sdk.Hosts).Uncordon),
		cmds.drainCommand(), cmds.forgetCommand())
}

// oneHost accepts the name of one host.
func oneHost(cmd *cobra.Command, args []string) error {
	if err := counts(cmd, args, "NAME"); err != nil {
		return err
	}
	return protocol.ValidateID("NAME", args[0])
}

// hostResult is the JSON output of a command that sets an operator intent for a host.
type hostResult struct {
	Worker string `json:"worker"`
	Result string `json:"result"`
}

func (cmds hostCommands) showResult(name, result string) error {
	return cmds.show(hostResult{name, result}, func(w io.Writer) { fmt.Fprintln(w, name, result) })
}
