package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

func (cmds sandboxCommands) getCommand() *cobra.Command {
	return &cobra.Command{
		Use: "get SANDBOX", Short: "Show a sandbox and its resolved spec", Args: takes("SANDBOX"),
		ValidArgsFunction: cmds.completeSandbox,
		Example:           "  boxfleet sandbox get web\n  boxfleet sandbox get web -o json",
		RunE: func(cmd *cobra.Command, args []string) error {
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				s, err := c.Get(ctx, args[0])
				if err != nil {
					return err
				}
				info := s.Info()
				return cmds.show(info, func(w io.Writer) { printSandbox(w, &info) })
			})
		},
	}
}

func printSandbox(w io.Writer, s *protocol.Sandbox) {
	rows := [][]any{{"id", s.ID}, {"state", stateColour(stateOf(s))}, {"image", s.Spec.Image},
		{"created", stamp(s.CreatedAt)},
		{"events", s.Sequence}, {"execs", fmt.Sprintf("%d running, %d in all", s.ActiveExecs, s.TotalExecs)},
		{"cpu", s.Spec.CPU}, {"memory", s.Spec.Memory}, {"pids", s.Spec.PIDs}}
	add := func(name, value string) {
		if value != "" {
			rows = append(rows, []any{name, value})
		}
	}
	add("name", s.Name)
	rows = append(rows, containerRows(&s.Spec)...)
	rows = append(rows, networkRows(s)...)
	rows = append(rows, serviceRows(s)...)
	if !s.ExpiresAt.IsZero() {
		add("deleted at", stamp(s.ExpiresAt))
	}
	add("digest", s.Digest)
	if p := s.Pull; p != nil {
		add("pull", fmt.Sprintf("%s, %s of %s, %d of %d layers", p.Image, p.Done, p.Total, p.LayersDone, p.Layers))
	}
	add("worker", s.Worker)
	add("isolation", s.Isolation)
	add("subnet", s.Subnet)
	add("user", s.Spec.User)
	add("cwd", s.Spec.Cwd)
	if len(s.Spec.Command) > 0 {
		add("command", fmt.Sprintf("%q", s.Spec.Command))
	}
	add("", primaryText(s.Primary))
	for _, k := range sortedKeys(s.Spec.Env) {
		add("env", k+"="+s.Spec.Env[k])
	}
	for _, k := range sortedKeys(s.Spec.Labels) {
		add("label", k+"="+s.Spec.Labels[k])
	}
	for _, m := range s.Spec.Mounts {
		mode := ", read-only"
		if m.Writable {
			mode = ", writable"
		}
		add("mount", m.Source+" at "+m.Target+mode)
	}
	for _, name := range s.Spec.Tools {
		add("tool", name)
	}
	for _, c := range s.Spec.Copies {
		if c.Service != "" {
			c.Target += " in " + c.Service
		}
		add("copy", c.Digest+" at "+c.Target)
	}
	add("reason", s.Reason)
	if s.Error != nil {
		add("error", s.Error.Error())
	}
	table(w, rows...)
}

// primaryText describes the state of a sandbox's primary command.
func primaryText(p *protocol.PrimaryStatus) string {
	if p == nil {
		return ""
	}
	text := fmt.Sprintf("%s since %s", p.State, stamp(p.Since))
	if p.Restarts > 0 {
		text += fmt.Sprintf(", restarted %d times", p.Restarts)
	}
	switch {
	case p.ExitCode != nil && p.State == protocol.PrimaryRunning:
		text += fmt.Sprintf(", previous run ended with exit code %d", *p.ExitCode)
	case p.ExitCode != nil:
		text += fmt.Sprintf(", with exit code %d", *p.ExitCode)
	}
	if p.Reason != "" {
		text += ", " + p.Reason
	}
	return text
}
