package main

import (
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/auth"
	"github.com/boxfleet/boxfleet/rights"
)

func (cmds authCommands) revokeCommand() *cobra.Command {
	h := &holder{}
	cmd := &cobra.Command{
		Use: "revoke ROLE NAME", Short: "Revoke credentials", Args: takes("ROLE", "NAME"),
		Long: `Revoke all credentials of one process or person, or only those with one key. After the next
boxfleet auth push, NATS servers refuse these credentials and close their connections.`,
		ValidArgsFunction: roleNames,
		Example:           "  boxfleet auth revoke worker w1\n  boxfleet auth revoke user anna --tenant blue",
	}
	a := cmds.authority(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		revoked, err := a.of(h, args, (*auth.Authority).Revoke)
		if err != nil {
			return err
		}
		err = cmds.show(issued(revoked), func(io.Writer) {
			if len(revoked) == 0 {
				cmds.say("these credentials were revoked before")
			}
			for i := range revoked {
				cmds.say("revoked the credentials of %s with key %s", describe(&revoked[i]), revoked[i].Key)
			}
		})
		cmds.tellServers()
		return err
	}
	h.addTenant(cmd)
	cmd.Flags().StringVar(&h.key, "key", "", "revoke only the credentials with this public `key` (see boxfleet auth list)")
	return cmd
}

func (cmds authCommands) rotateCommand() *cobra.Command {
	var overlap time.Duration
	cmd := &cobra.Command{
		Use: "rotate ROLE", Short: "Replace the signing key of a role", ValidArgsFunction: roleNames,
		Long: `Replace the key that signs the credentials of a role. Credentials that the old key signed stay valid during the
overlap; make new ones for all of them in this time. Run boxfleet auth push before new credentials are used, and again
after the overlap to end it.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := counts(cmd, args, "ROLE"); err != nil {
				return err
			}
			_, err := rights.Template(rights.Role(args[0]))
			return err
		},
		Example: "  boxfleet auth rotate worker\n  boxfleet auth rotate user --overlap 0s",
	}
	a := cmds.authority(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		opened, err := a.open()
		if err != nil {
			return err
		}
		r, err := opened.Rotate(rights.Role(args[0]), overlap)
		if err != nil {
			return err
		}
		shown := struct {
			Old           string     `json:"old"`
			New           string     `json:"new"`
			AcceptedUntil time.Time  `json:"old_accepted_until"`
			Replace       []issuedAs `json:"replace"`
		}{r.Old.Key, r.New.Key, r.Old.AcceptedUntil, issued(r.Replace)}
		err = cmds.show(shown, func(io.Writer) {
			cmds.say("new credentials of this role are signed by %s; those signed by %s are valid until %s",
				r.New.Key, r.Old.Key, second(r.Old.AcceptedUntil))
			for i := range r.Replace {
				cmds.say("replace the credentials of %s", describe(&r.Replace[i]))
			}
		})
		cmds.tellServers()
		return err
	}
	cmd.Flags().DurationVar(&overlap, "overlap", 7*24*time.Hour,
		"how long credentials that the old key signed stay valid; 0s ends them at once")
	return cmd
}
