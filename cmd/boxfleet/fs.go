package main

import (
	"github.com/spf13/cobra"
)

// fsCommands are the commands of `boxfleet fs`.
type fsCommands struct{ cpCommands }

func (cmds fsCommands) group() *cobra.Command {
	all := group("fs", "Work on the files of a sandbox", cmds.lsCommand(), cmds.catCommand(), cmds.statCommand(),
		cmds.writeCommand(), cmds.editCommand(), cmds.mkdirCommand(), cmds.mvCommand(), cmds.copyCommand(), cmds.rmCommand(),
		cmds.grepCommand(), cmds.globCommand(), cmds.changesCommand(), cmds.watchCommand())
	all.Long = `Work on the files of a sandbox. SANDBOX and PATH are two arguments, as in "boxfleet fs ls web /work".
Relative paths begin at the sandbox's working directory. To copy files between this machine and a sandbox, use
"boxfleet cp", which takes SANDBOX:PATH, as in "boxfleet cp web:/work .".`
	for _, c := range all.Commands() {
		c.ValidArgsFunction = cmds.completeSandbox
	}
	return all
}
