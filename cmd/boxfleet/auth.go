package main

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/auth"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
)

// authCommands are the commands of `boxfleet auth`, which make credentials for NATS servers in operator mode. Except
// for `push`, they need no server: everything is in the authority's directory.
type authCommands struct{ *servers }

func (cmds authCommands) group() *cobra.Command {
	return group("auth", "Make and revoke credentials for a NATS deployment",
		cmds.initCommand(), cmds.addCommand(), cmds.listCommand(), cmds.showCommand(), cmds.revokeCommand(),
		cmds.rotateCommand(), cmds.secretsKeyCommand(), cmds.configCommand(), cmds.pushCommand())
}

// authority is the directory of the authority that a command works on.
type authority struct {
	cmds authCommands
	dir  string // value of the flag
}

func (cmds authCommands) authority(cmd *cobra.Command) *authority {
	a := &authority{cmds: cmds}
	cmd.Flags().StringVar(&a.dir, "dir", "", "`directory` of the authority (default: auth in the data directory)")
	return a
}

func (a *authority) path() string {
	if a.dir == "" {
		return filepath.Join(a.cmds.config.DataDir, "auth")
	}
	return a.dir
}

func (a *authority) open() (*auth.Authority, error) {
	opened, err := auth.Open(a.path())
	if protocol.CodeOf(err) == protocol.NotFound {
		return nil, protocol.Errorf(protocol.NotFound, "", "%s has no authority: make one with boxfleet auth init, or "+
			"name its directory with --dir", a.path())
	}
	return opened, err
}

// of opens the authority. It then calls the function do with the authority and the identity that args and the flags in
// h name.
func (a *authority) of(h *holder, args []string, do func(*auth.Authority, rights.Identity) ([]auth.Issued, error),
) ([]auth.Issued, error) {
	id, err := h.identity(args)
	if err != nil {
		return nil, err
	}
	opened, err := a.open()
	if err != nil {
		return nil, err
	}
	return do(opened, id)
}

// holder has the flags that, together with the arguments ROLE and NAME, identify the holder of credentials.
type holder struct{ tenant, key string }

func (h *holder) addTenant(cmd *cobra.Command) {
	cmd.Flags().StringVar(&h.tenant, "tenant", "", "`tenant` of a user or viewer; required for these roles")
}

// identity returns the identity that arguments and flags name, without a worker's host.
func (h *holder) identity(args []string) (rights.Identity, error) {
	id := rights.Identity{Role: rights.Role(args[0]), Name: args[1], Tenant: h.tenant, Key: h.key}
	full := id
	if id.Role.HasHost() {
		full.Host = "-" // a command that finds credentials needs no host
	}
	return id, full.Validate()
}

// roleNames completes the first argument with the names of the roles.
func roleNames(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var all []string
	if len(args) == 0 {
		for _, r := range rights.Roles() {
			all = append(all, string(r))
		}
	}
	return all, cobra.ShellCompDirectiveNoFileComp
}

// tellServers tells the user to pass the change of the accounts to the servers.
func (cmds authCommands) tellServers() {
	cmds.note("the servers do not know of this change yet: run boxfleet auth push")
}

// describe returns text that names the holder of credentials for people.
func describe(c *auth.Issued) string {
	if c.Tenant != "" {
		return fmt.Sprintf("%s %s of tenant %s", c.Role, c.Name, c.Tenant)
	}
	return fmt.Sprintf("%s %s", c.Role, c.Name)
}
