package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
)

func (cmds authCommands) secretsKeyCommand() *cobra.Command {
	var file string
	var rotate bool
	cmd := &cobra.Command{
		Use: "secrets-key --file FILE", Short: "Write the fleet's keys for secrets to a file", Args: takes(),
		Long: `Write the fleet's keys for secrets to a file, for the setting coordinator.secrets_key of every coordinator.
Clients seal values to the first key; each key opens. The keys are in the file secrets.key of the authority,
which is made if it does not exist. Without the keys nobody can open the stored secrets, so back them up.

With --rotate, a new key is put before the others. Give the new file to every coordinator and restart the
coordinators. Until all of them have it, clients and workers ask again if a coordinator lacks a key.`,
		Example: "  boxfleet auth secrets-key --file /etc/boxfleet/secrets.key\n" +
			"  boxfleet auth secrets-key --rotate --file secrets.key",
	}
	a := cmds.authority(cmd)
	cmd.Flags().StringVar(&file, "file", "", "`file` to write, with mode 0600; required")
	cmd.Flags().BoolVar(&rotate, "rotate", false, "put a new key before the others")
	cmd.RunE = func(*cobra.Command, []string) error {
		if file == "" {
			return usage("--file is missing: the file to write")
		}
		opened, err := a.open()
		if err != nil {
			return err
		}
		keys := opened.SecretsKey
		if rotate {
			keys = opened.RotateSecretsKey
		}
		path, err := keys()
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		if err == nil {
			defer clear(content)
			err = writePrivate(file, content)
		}
		if err != nil {
			return protocol.Errorf(protocol.Internal, "", "write the keys: %v", err)
		}
		cmds.say("wrote the keys to %s", file)
		return nil
	}
	return cmd
}
