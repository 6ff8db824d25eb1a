package main

import (
	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/auth"
)

func (cmds authCommands) initCommand() *cobra.Command {
	var replace bool
	cmd := &cobra.Command{
		Use: "init [DIR]", Short: "Make an authority, whose keys sign credentials",
		Long: `Make an authority: a directory with the keys of an operator and of its accounts, and one signing key for each
role. Anybody who can read the directory can make credentials for every role, so keep it on one machine and back it
up. NATS servers do not need it; see boxfleet auth config.

DIR defaults to auth in the data directory.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return counts(cmd, args, "DIR")
			}
			return nil
		},
		Example: "  boxfleet auth init\n  boxfleet auth init /srv/boxfleet-auth",
		RunE: func(_ *cobra.Command, args []string) error {
			a := &authority{cmds: cmds}
			if len(args) == 1 {
				a.dir = args[0]
			}
			if _, err := auth.Init(a.path(), auth.Replace(replace)); err != nil {
				return err
			}
			cmds.say("made an authority in %s", a.path())
			return nil
		},
	}
	cmd.Flags().BoolVar(&replace, "replace", false,
		"replace an existing authority: all its credentials become useless once servers trust the new one")
	return cmd
}
