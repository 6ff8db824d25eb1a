package main

import (
	"context"
	"encoding/json"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// auditCommands is `boxfleet audit`.
type auditCommands struct{ *client }

func (cmds auditCommands) auditCommand() *cobra.Command {
	var since, actor string
	cmd := &cobra.Command{
		Use: "audit", Short: "Print who asked for what, as JSON lines", Args: takes(),
		Long: `Print the events that requests caused in the histories of the tenant's sandboxes, one JSON object per line:
which user asked for what, when, and with what result. The events of each sandbox are in order; the sandboxes are in no
particular order. Deleted sandboxes are included as long as their history is kept. An event without an actor was caused
by a client that named no user. An operator may name any tenant with --tenant, or all of them with --tenant '*', which
prints one tenant after another.`,
		Example: "  boxfleet audit --since 24h\n  boxfleet audit --actor alice --since 2026-01-31T08:00:00Z\n" +
			"  boxfleet audit --tenant '*' --since 24h",
		RunE: func(cmd *cobra.Command, _ []string) error {
			at, ago, err := sinceWhen(cmd, since)
			if err != nil {
				return err
			}
			if actor != "" {
				if err := protocol.ValidateUser("--actor", actor); err != nil {
					return err
				}
			}
			all := cmds.config.Tenant == everyTenant
			if all {
				cmds.config.Tenant = protocol.DefaultTenant // this connection only lists the tenants
			}
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				if ago > 0 {
					at = c.Now(ctx).Add(-ago)
				}
				if all {
					return cmds.auditAll(ctx, c, at, actor)
				}
				return cmds.audit(ctx, c, at, actor)
			})
		},
	}
	cmd.Flags().StringVar(&since, "since", "",
		"only events from this `time` on, or no older than this duration, such as 24h (default: all that are kept)")
	cmd.Flags().StringVar(&actor, "actor", "", "only what this `user` asked for")
	return cmd
}

// everyTenant is the value of --tenant with which an operator audits all tenants.
const everyTenant = "*"

// auditAll prints the audit of each tenant. A client works in one tenant, so auditAll connects once for each tenant.
func (cmds auditCommands) auditAll(ctx context.Context, c *sdk.Client, since time.Time, actor string) error {
	for t, err := range c.Tenants(ctx) {
		if err != nil {
			return err
		}
		cmds.config.Tenant, cmds.config.TenantGiven = t.Tenant, true
		of, err := cmds.connect(ctx)
		if err != nil {
			return err
		}
		err = cmds.audit(ctx, of, since, actor)
		of.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// auditLine is one line of the audit.
type auditLine struct {
	Time    time.Time             `json:"time"`
	Tenant  string                `json:"tenant"`
	Actor   string                `json:"actor,omitempty"`
	Request string                `json:"request"`
	Kind    protocol.Kind         `json:"kind"`
	Sandbox string                `json:"sandbox"`
	Name    string                `json:"name,omitempty"`
	Exec    string                `json:"exec,omitempty"`
	Command []string              `json:"command,omitempty"`
	Image   string                `json:"image,omitempty"`
	State   protocol.SandboxState `json:"state"`
	Reason  string                `json:"reason,omitempty"`
	Error   *protocol.Error       `json:"error,omitempty"`
	Event   uint64                `json:"seq"`
}

// audit prints the events that requests caused since a time.
func (cmds auditCommands) audit(ctx context.Context, c *sdk.Client, since time.Time, actor string) error {
	out := json.NewEncoder(cmds.stdout)
	out.SetEscapeHTML(false)
	for s, err := range c.List(ctx, sdk.WithStates(sandboxStates...), sdk.WithPageSize(1000)) {
		if err != nil {
			return err
		}
		info := s.Info()
		if info.HistoryPurged {
			continue
		}
		if err := cmds.auditSandbox(ctx, s, func(e *protocol.Event) error {
			if e.Request == "" || e.Time.Before(since) || actor != "" && e.Actor != actor {
				return nil
			}
			return out.Encode(auditLineOf(e, &info))
		}); err != nil {
			return err
		}
	}
	return nil
}

// auditSandbox visits the events of a sandbox that are still stored. It reads page by page, because the first page
// begins with the oldest stored event. A read of the whole history fails if its first events have expired.
func (cmds auditCommands) auditSandbox(ctx context.Context, s *sdk.Sandbox, visit func(*protocol.Event) error) error {
	for from := uint64(0); ; {
		page, last, err := s.EventsPage(ctx, from, 1000)
		if code := protocol.CodeOf(err); code == protocol.NotFound || code == protocol.OutOfRange {
			return nil // the rest of the history expired during the audit
		}
		if err != nil {
			return err
		}
		for i := range page.Events {
			if err := visit(&page.Events[i]); err != nil {
				return err
			}
		}
		if from = page.Next; from > last {
			return nil
		}
	}
}

func auditLineOf(e *protocol.Event, s *sdk.SandboxInfo) auditLine {
	line := auditLine{Time: e.Time, Tenant: e.Tenant, Actor: e.Actor, Request: e.Request, Kind: e.Kind, Sandbox: e.Sandbox,
		Name: s.Name, State: e.State, Reason: e.Reason, Error: e.Error, Event: e.Sequence}
	if e.Exec != nil {
		line.Exec = e.Exec.ID
		if e.Exec.Spec != nil {
			line.Command = e.Exec.Spec.Command
		}
	}
	if e.Details != nil && e.Details.Spec != nil {
		line.Image = e.Details.Spec.Image
	}
	return line
}
