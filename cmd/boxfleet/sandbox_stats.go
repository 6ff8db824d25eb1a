package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// shownUsage is what a container used between two readings.
type shownUsage struct {
	protocol.ContainerUsage
	CPUPercent *float64 `json:"cpu_percent"` // percent of one core; null: unknown
}

// shownStats is the answer of `boxfleet sandbox stats`.
type shownStats struct {
	Worker     string       `json:"worker"`
	HostID     string       `json:"host_id"`
	Containers []shownUsage `json:"containers"`
}

func (cmds sandboxCommands) statsCommand() *cobra.Command {
	interval, follow := measureInterval, false
	cmd := &cobra.Command{
		Use: "stats SANDBOX", Short: "Show what the containers of a sandbox use", Args: takes("SANDBOX"),
		ValidArgsFunction: cmds.completeSandbox,
		Long: `Show what each container of a sandbox uses: processor time, memory, network, disk and processes. The CPU column
compares two readings, and counts one busy core as 100%. Network and disk are sums since the start of the container;
disk is "unknown" where the host's kernel does not count it.
With --follow, a table is printed after each interval; with -o json, each reading is one line.`,
		Example: "  boxfleet sandbox stats web\n  boxfleet sandbox stats web --follow --interval 5s",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkMeasureInterval(interval); err != nil {
				return err
			}
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				s := c.Sandbox(args[0])
				before, err := s.Usage(ctx)
				if err != nil {
					return err
				}
				for {
					if !backoff.Sleep(ctx, interval) {
						return ignoreInterrupt(ctx, follow, ctx.Err())
					}
					after, err := s.Usage(ctx)
					if err != nil {
						return ignoreInterrupt(ctx, follow, err)
					}
					shown := usageBetween(before, after)
					if err := cmds.show(shown, func(w io.Writer) { printUsage(w, shown) }); err != nil || !follow {
						return err
					}
					before = after
				}
			})
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "print again after each interval, until interrupted")
	cmd.Flags().DurationVar(&interval, "interval", measureInterval, "`time` between two readings")
	return cmd
}

// usageBetween describes the later of two readings.
func usageBetween(before, after *protocol.SandboxUsage) *shownStats {
	earlier := map[string]*protocol.ContainerUsage{}
	for i := range before.Containers {
		earlier[before.Containers[i].Service] = &before.Containers[i]
	}
	shown := &shownStats{Worker: after.Worker, HostID: after.HostID, Containers: []shownUsage{}}
	for i := range after.Containers {
		c := &after.Containers[i]
		one := shownUsage{ContainerUsage: *c}
		if cores, known := c.CPUSince(earlier[c.Service]); known {
			one.CPUPercent = percentOf(cores)
		}
		shown.Containers = append(shown.Containers, one)
	}
	return shown
}

func printUsage(w io.Writer, shown *shownStats) {
	rows := [][]any{{"CONTAINER", "CPU", "MEMORY", "LIMIT", "PIDS", "RECEIVED", "SENT", "READ", "WRITTEN"}}
	var failed []unmeasuredShown
	for i := range shown.Containers {
		c := &shown.Containers[i]
		if c.Error != nil {
			failed = append(failed, unmeasuredShown{c.Service, c.Error})
			continue
		}
		limit := any("-")
		if c.MemoryLimit > 0 {
			limit = sizeOf(c.MemoryLimit)
		}
		pids := fmt.Sprint(c.PIDs)
		if c.PIDsLimit > 0 {
			pids += fmt.Sprintf(" of %d", c.PIDsLimit)
		}
		rows = append(rows, []any{containerName(c.Service), percentText(c.CPUPercent), sizeOf(c.Memory), limit, pids,
			sizeOf(c.Received), sizeOf(c.Sent), sizeOrUnknown(c.Read), sizeOrUnknown(c.Written)})
	}
	table(w, rows...)
	printUnmeasured(w, failed)
}

// sizeOrUnknown formats a size that the host may not know.
func sizeOrUnknown(b *protocol.Bytes) string {
	if b == nil {
		return "unknown"
	}
	return sizeOf(*b)
}

// sizeOf formats a size with one decimal, in the largest unit that fits.
func sizeOf(b protocol.Bytes) string {
	for _, unit := range []struct {
		size protocol.Bytes
		name string
	}{{1 << 40, "TiB"}, {1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if b >= unit.size {
			return fmt.Sprintf("%.1f%s", float64(b)/float64(unit.size), unit.name)
		}
	}
	return fmt.Sprintf("%dB", b)
}
