package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/jetstream"
)

func (cmds authCommands) configCommand() *cobra.Command {
	var resolverDir string
	var memory bool
	cmd := &cobra.Command{
		Use: "config", Short: "Print the configuration that makes NATS servers trust an authority", Args: takes(),
		Long: `Print a part of the configuration of a NATS server, to be included in its configuration file. It contains no
secrets. Servers with a resolver directory take later changes from boxfleet auth push. With --memory, run this command
again after each change and have each server reload its configuration.`,
		Example: "  boxfleet auth config --resolver-dir /var/lib/nats/accounts >auth.conf\n" +
			"  boxfleet auth config --memory >auth.conf",
	}
	a := cmds.authority(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		if memory == (resolverDir != "") {
			return usage("give either --resolver-dir or --memory")
		}
		opened, err := a.open()
		if err != nil {
			return err
		}
		if _, err := opened.Refresh(); err != nil {
			return err
		}
		trust, err := opened.Trust()
		if err != nil {
			return err
		}
		text := trust.MemoryConfig()
		if !memory {
			if text, err = trust.Config(resolverDir); err != nil {
				return err
			}
		}
		_, err = fmt.Fprint(cmds.stdout, text)
		return err
	}
	cmd.Flags().StringVar(&resolverDir, "resolver-dir", "",
		"absolute path of the `directory` in which each server stores the accounts")
	cmd.Flags().BoolVar(&memory, "memory", false,
		"for servers that store no accounts: put all accounts into the configuration")
	return cmd
}

func (cmds authCommands) pushCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "push", Short: "Tell running NATS servers of revocations and rotations", Args: takes(),
		Long: `Tell the running NATS servers of all revocations and rotations, and make them refuse replaced keys whose
overlap has passed. The servers must have a resolver directory; see boxfleet auth config. A server that is away gets the
changes from the other servers when it returns.`,
		Example: "  boxfleet auth push --nats nats://nats-1:4222",
	}
	a := cmds.authority(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		opened, err := a.open()
		if err != nil {
			return err
		}
		where, err := cmds.config.whereNATS()
		if err != nil {
			return err
		}
		if where.URL == "" {
			return usage("--nats is missing: the URL of the NATS server")
		}
		credentials, err := opened.SystemCredentials()
		if err != nil {
			return err
		}
		system, err := jetstream.ConnectSystem(cmd.Context(), where.URL, cmds.config.TLS, credentials)
		if err != nil {
			return err
		}
		defer system.Close()
		taken, err := opened.Push(cmd.Context(), system)
		if err != nil {
			return err
		}
		return cmds.show(map[string][]string{"servers": taken}, func(io.Writer) {
			cmds.say("told NATS servers %s", strings.Join(taken, ", "))
		})
	}
	return cmd
}
