package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/spec"
)

func (cmds hostCommands) listCommand() *cobra.Command {
	var quiet bool
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List hosts", Args: takes(), Example: "  boxfleet host list",
		Long: `List hosts. SKEW is how far a host's clock is ahead of the clock of the NATS server that leads the event
log; "!" marks a difference of more than 5 s. Boxfleet's decisions do not depend on it, but processes on the host
see the wrong time. SECURITY counts the warnings about the host's engine and kernel, which are printed below the
table.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				if quiet {
					names, err := workerNames(ctx, c)
					if err != nil {
						return err
					}
					return cmds.showNames(distinct(names))
				}
				hosts, err := sdk.ReadAll(c.Hosts().List(ctx))
				if err != nil {
					return err
				}
				if hosts == nil {
					hosts = []*protocol.Host{}
				}
				return cmds.show(hosts, func(w io.Writer) { printHosts(w, c.Now(ctx), hosts) })
			})
		},
	}
	addQuiet(cmd, &quiet)
	return cmd
}

func printHosts(w io.Writer, now time.Time, hosts []*protocol.Host) {
	rows := [][]any{{"WORKER", "STATE", "SANDBOXES", "CPU", "MEMORY", "ENGINE", "RUNTIME", "LABELS", "DEFAULTS", "SEEN",
		"SKEW", "SECURITY", "PROBLEM"}}
	for _, h := range hosts {
		rows = append(rows, []any{h.Worker, stateColour(hostState(h)), fmt.Sprintf("%d/%d", h.Sandboxes, h.Slots),
			fmt.Sprintf("%.4g/%.4g", h.UsedCPU, h.CPU),
			fmt.Sprintf("%s/%s", h.UsedMem, h.Memory), h.Engine, h.Runtime, labelsOf(h), defaultsOf(h), ago(now, h.SeenAt),
			skewOf(h), securityOf(h), problemOf(h)})
	}
	table(w, rows...)
	for _, h := range hosts {
		if h.Posture == nil {
			continue
		}
		for _, text := range h.Posture.Warnings {
			fmt.Fprintf(w, "%s: %s\n", plainLine(h.Worker), plainLine(text))
		}
	}
}

// hostState returns a host's state and the operator intent.
func hostState(h *protocol.Host) string {
	switch {
	case h.Drain != nil:
		return string(h.State) + ",draining"
	case h.Cordoned:
		return string(h.State) + ",cordoned"
	}
	return string(h.State)
}

func labelsOf(h *protocol.Host) string {
	if len(h.Labels) == 0 {
		return "-"
	}
	var pairs []string
	for _, k := range sortedKeys(h.Labels) {
		pairs = append(pairs, k+"="+h.Labels[k])
	}
	return strings.Join(pairs, ",")
}

// defaultsOf names the fields that a worker has defaults for. Only the JSON output has their values.
func defaultsOf(h *protocol.Host) string {
	if h.Defaults == nil {
		return "-"
	}
	return strings.Join(spec.Difference(protocol.SandboxSpec{}, *h.Defaults), ",")
}

// skewOf returns how far a host's clock is ahead of the store's clock, with a mark if the difference is too large.
func skewOf(h *protocol.Host) string {
	switch {
	case h.Skew == nil:
		return "-"
	case h.ClockOff:
		return fmt.Sprintf("%+.1fs!", h.Skew.Std().Seconds())
	}
	return fmt.Sprintf("%+.3fs", h.Skew.Std().Seconds())
}

// securityOf counts the warnings about a host's engine and kernel.
func securityOf(h *protocol.Host) string {
	switch {
	case h.Posture == nil:
		return "-"
	case len(h.Posture.Warnings) == 0:
		return "ok"
	case len(h.Posture.Warnings) == 1:
		return "1 warning"
	}
	return fmt.Sprintf("%d warnings", len(h.Posture.Warnings))
}

// problemOf returns why a host takes no new sandboxes.
func problemOf(h *protocol.Host) string {
	return cmp.Or(h.Unsupported, h.Problem, h.Full)
}
