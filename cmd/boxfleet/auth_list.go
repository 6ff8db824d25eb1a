package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/auth"
	"github.com/boxfleet/boxfleet/rights"
)

// issuedAs is how JSON output describes credentials.
type issuedAs struct {
	auth.Issued
	Status string `json:"status"`
}

func issued(all []auth.Issued) []issuedAs {
	shown := make([]issuedAs, len(all))
	for i := range all {
		shown[i] = issuedAs{all[i], all[i].Status(time.Now())}
	}
	return shown
}

func (cmds authCommands) listCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List credentials", Args: takes(), Example: "  boxfleet auth list",
		Long: `List all credentials that were made. STATUS is valid, expired, revoked, or retired if the key that signed them
was replaced and its overlap has ended.`,
	}
	a := cmds.authority(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		opened, err := a.open()
		if err != nil {
			return err
		}
		all, err := opened.List()
		if err != nil {
			return err
		}
		return cmds.show(issued(all), func(w io.Writer) { printIssued(w, issued(all)) })
	}
	return cmd
}

func printIssued(w io.Writer, all []issuedAs) {
	rows := [][]any{{"ROLE", "TENANT", "NAME", "HOST", "STATUS", "ISSUED", "EXPIRES", "KEY"}}
	for _, c := range all {
		rows = append(rows, []any{c.Role, orDash(c.Tenant), c.Name, orDash(c.Host), c.Status, second(c.IssuedAt),
			second(c.Expires), c.Key})
	}
	table(w, rows...)
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// second formats a time in the local zone, without fractions of a second.
func second(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format(time.RFC3339)
}

func (cmds authCommands) showCommand() *cobra.Command {
	h := &holder{}
	cmd := &cobra.Command{
		Use: "show ROLE NAME", Short: "Show the credentials and the rights of one holder", Args: takes("ROLE", "NAME"),
		Example: "  boxfleet auth show user anna --tenant blue", ValidArgsFunction: roleNames,
	}
	a := cmds.authority(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		all, err := a.of(h, args, (*auth.Authority).Find)
		if err != nil {
			return err
		}
		newest := all[len(all)-1].Identity()
		set, err := rights.Permissions(newest)
		if err != nil {
			return err
		}
		shown := struct {
			Credentials []issuedAs `json:"credentials"`
			Inbox       string     `json:"inbox"`
			Publish     []string   `json:"publish"`
			Subscribe   []string   `json:"subscribe"`
		}{issued(all), newest.Inbox(), set.Publish, set.Subscribe}
		return cmds.show(shown, func(w io.Writer) {
			printIssued(w, shown.Credentials)
			for _, subject := range set.Publish {
				fmt.Fprintln(w, "publish   "+subject)
			}
			for _, subject := range set.Subscribe {
				fmt.Fprintln(w, "subscribe "+subject)
			}
		})
	}
	h.addTenant(cmd)
	return cmd
}
