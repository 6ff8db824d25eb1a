package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// tenantCommands are the commands of `boxfleet tenant`.
type tenantCommands struct{ *client }

func (cmds tenantCommands) group() *cobra.Command {
	return group("tenant", "Show what tenants may use and what they use", cmds.showCommand(), cmds.listCommand())
}

func (cmds tenantCommands) showCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show [TENANT]", Short: "Show a tenant's quota, what it uses, and what waits for room in the quota",
		Long: `Show a tenant's quota, what it uses, and which sandboxes wait for room in the quota. The default is the
configured tenant. A user sees only their own tenant; an operator sees every tenant.`,
		Example: "  boxfleet tenant show\n  boxfleet tenant show acme -o json",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return takes("TENANT")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				cmds.config.Tenant, cmds.config.TenantGiven = args[0], true
			}
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				t, err := c.TenantInfo(ctx)
				if err != nil {
					return err
				}
				return cmds.show(t, func(w io.Writer) { printTenant(w, t) })
			})
		},
	}
}

func (cmds tenantCommands) listCommand() *cobra.Command {
	var quiet bool
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the tenants, for operators", Args: takes(),
		Long: `List the tenants that have a quota of their own, use something, or still have a stored history. Each column
shows what is used and, after the slash, the limit.`,
		Example: "  boxfleet tenant list",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				tenants, err := sdk.ReadAll(c.Tenants(ctx))
				if err != nil {
					return err
				}
				if quiet {
					names := []string{}
					for _, t := range tenants {
						names = append(names, t.Tenant)
					}
					return cmds.showNames(names)
				}
				if tenants == nil {
					tenants = []*sdk.TenantInfo{}
				}
				return cmds.show(tenants, func(w io.Writer) { printTenants(w, tenants) })
			})
		},
	}
	addQuiet(cmd, &quiet)
	return cmd
}

// tenantRow is one limit of a tenant.
type tenantRow struct{ name, used, limit string }

// tenantRows returns the limits of a tenant in the order of the documentation.
func tenantRows(t *protocol.Tenant) []tenantRow {
	q, u := &t.Quota, &t.Used
	count := func(name string, used, limit int) tenantRow {
		return tenantRow{name, fmt.Sprint(used), limitText(limit > 0, limit)}
	}
	size := func(name string, used *protocol.Bytes, limit protocol.Bytes) tenantRow {
		text := "unknown"
		if used != nil {
			text = used.String()
		}
		return tenantRow{name, text, limitText(limit > 0, limit)}
	}
	return []tenantRow{
		count("sandboxes", u.Sandboxes, q.Sandboxes), count("waiting", u.Waiting, q.Waiting),
		count("execs", u.Execs, q.Execs),
		{"cpu", fmt.Sprintf("%.4g", u.CPU), limitText(q.CPU > 0, fmt.Sprintf("%.4g", q.CPU))},
		size("memory", &u.Memory, q.Memory), size("disk", &u.Disk, q.Disk), size("output", u.Output, q.Output),
		size("uploads", u.Uploads, q.Uploads),
	}
}

func limitText(limited bool, limit any) string {
	if !limited {
		return "-"
	}
	return fmt.Sprint(limit)
}

func printTenant(w io.Writer, t *protocol.Tenant) {
	rows := [][]any{{"LIMIT", "USED", "QUOTA"}}
	for _, r := range tenantRows(t) {
		rows = append(rows, []any{r.name, r.used, r.limit})
	}
	fmt.Fprintf(w, "tenant %s\n", plainLine(t.Tenant))
	table(w, rows...)
	for _, h := range t.Held {
		name := h.Sandbox
		if h.Name != "" {
			name = h.Name + " (" + h.Sandbox + ")"
		}
		fmt.Fprintf(w, "%s waits: %s\n", plainLine(name), plainLine(h.Why.Message))
	}
}

func printTenants(w io.Writer, tenants []*protocol.Tenant) {
	rows := [][]any{{"TENANT", "SANDBOXES", "WAITING", "EXECS", "CPU", "MEMORY", "DISK", "OUTPUT", "UPLOADS"}}
	for _, t := range tenants {
		row := []any{t.Tenant}
		for _, r := range tenantRows(t) {
			row = append(row, r.used+"/"+r.limit)
		}
		rows = append(rows, row)
	}
	table(w, rows...)
}
