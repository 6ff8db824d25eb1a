package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// secretCommands are the commands of `boxfleet secret`.
type secretCommands struct{ *client }

func (cmds secretCommands) group() *cobra.Command {
	return group("secret", "Set, list and remove the secrets of the tenant", cmds.setCommand(), cmds.listCommand(),
		cmds.removeCommand())
}

func (cmds secretCommands) setCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "set NAME [--file FILE]", Short: "Store the next version of a secret", Args: takes("NAME"),
		Long: `Store the next version of a secret. The value is stdin or the content of FILE, byte for byte, 1 to 65,536
bytes. It is sealed before it leaves this machine, and nobody can read it back. Specs and execs name the
secret: see --secret of boxfleet sandbox create. Containers that have started keep the version that they
got.`,
		Example: "  printf %s \"$PASSWORD\" | boxfleet secret set db-password\n  boxfleet secret set tls-key --file key.pem",
		RunE: func(cmd *cobra.Command, args []string) error {
			value, err := cmds.secretValue(file)
			if err != nil {
				return err
			}
			defer clear(value)
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				info, err := c.Secrets().Set(ctx, args[0], value)
				if err != nil {
					return err
				}
				return cmds.show(info, func(w io.Writer) {
					fmt.Fprintf(w, "%s version %d\n", info.Name, info.Versions[0].Version)
				})
			})
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "-", "`file` with the value, - for stdin")
	return cmd
}

// secretValue reads the value of a secret from a file or from stdin.
func (cmds secretCommands) secretValue(file string) ([]byte, error) {
	in := cmds.stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, usage("--file: %v", err)
		}
		defer f.Close()
		in = f
	}
	value, err := io.ReadAll(io.LimitReader(in, protocol.MaxSecretValue+1))
	if err != nil {
		return nil, usage("read the value: %v", err)
	}
	return value, nil
}

func (cmds secretCommands) listCommand() *cobra.Command {
	var quiet bool
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the secrets of the tenant, without their values", Args: takes(),
		Long: `List the secrets of the tenant: their newest version, the size of its value in bytes, and when and by whom
it was set. -o json also shows the older versions that are kept, and the fleet key that each version is
sealed to.`,
		Example: "  boxfleet secret list\n  boxfleet secret list -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				secrets, err := sdk.ReadAll(c.Secrets().List(ctx))
				if err != nil {
					return err
				}
				if quiet {
					names := make([]string, len(secrets))
					for i, s := range secrets {
						names[i] = s.Name
					}
					return cmds.showNames(names)
				}
				return cmds.show(secrets, func(w io.Writer) { printSecrets(w, c.Now(ctx), secrets) })
			})
		},
	}
	addQuiet(cmd, &quiet)
	return cmd
}

func printSecrets(w io.Writer, now time.Time, secrets []*sdk.SecretInfo) {
	rows := [][]any{{"NAME", "VERSION", "SIZE", "SET", "BY"}}
	for _, s := range secrets {
		v := s.Versions[0]
		rows = append(rows, []any{s.Name, v.Version, v.Size, ago(now, v.SetAt), v.Actor})
	}
	table(w, rows...)
}

func (cmds secretCommands) removeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "remove NAME", Aliases: []string{"rm"}, Short: "Remove a secret with all its versions", Args: takes("NAME"),
		Long: `Remove a secret with all its versions. Containers that have started keep the value. A sandbox or exec that
names the secret and has not started yet fails.`,
		Example: "  boxfleet secret remove db-password",
		RunE: func(cmd *cobra.Command, args []string) error {
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				if err := c.Secrets().Remove(ctx, args[0]); err != nil {
					return err
				}
				removed := struct {
					Name string `json:"name"`
				}{args[0]}
				return cmds.show(removed, func(w io.Writer) { fmt.Fprintln(w, removed.Name) })
			})
		},
	}
}
