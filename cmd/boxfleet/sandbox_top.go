package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// shownProcess is a process, with its use of the processor between two readings.
type shownProcess struct {
	Service string `json:"service,omitempty"`
	protocol.Process
	CPUPercent *float64          `json:"cpu_percent"` // percent of one core; null: unknown
	Age        protocol.Duration `json:"age"`
}

// shownProcesses is the answer of `boxfleet sandbox top`.
type shownProcesses struct {
	Worker    string            `json:"worker"`
	HostID    string            `json:"host_id"`
	Processes []shownProcess    `json:"processes"`
	More      int               `json:"more,omitempty"`
	Errors    []unmeasuredShown `json:"errors,omitempty"`
}

// unmeasuredShown says why a container could not be measured.
type unmeasuredShown struct {
	Service string          `json:"service,omitempty"`
	Error   *protocol.Error `json:"error"`
}

const measureInterval = time.Second // default time between two readings

func (cmds sandboxCommands) topCommand() *cobra.Command {
	interval := measureInterval
	cmd := &cobra.Command{
		Use: "top SANDBOX", Short: "Show the processes of a sandbox, and the exec that each belongs to",
		Args: takes("SANDBOX"), ValidArgsFunction: cmds.completeSandbox,
		Long: `Show the processes in a sandbox's containers: which exec each belongs to, its user id, how much of a core it
used, its memory, and its age. The CPU column compares two readings; --interval says how long to wait between them.
A process that began in between is compared with its start.`,
		Example: "  boxfleet sandbox top web\n  boxfleet sandbox top web -o json",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkMeasureInterval(interval); err != nil {
				return err
			}
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				s := c.Sandbox(args[0])
				before, err := s.Processes(ctx)
				if err != nil {
					return err
				}
				if !backoff.Sleep(ctx, interval) {
					return ctx.Err()
				}
				after, err := s.Processes(ctx)
				if err != nil {
					return err
				}
				shown := processesBetween(before, after)
				return cmds.show(shown, func(w io.Writer) { printProcesses(w, shown) })
			})
		},
	}
	cmd.Flags().DurationVar(&interval, "interval", measureInterval, "`time` between the two readings")
	return cmd
}

// Bounds of the time between two readings. Shorter times make the figures coarse: the kernel counts processor time of
// processes in units of 10 ms.
const (
	measureShortest = 100 * time.Millisecond
	measureLongest  = time.Hour
)

func checkMeasureInterval(interval time.Duration) error {
	if interval < measureShortest || interval > measureLongest {
		return protocol.Invalid("--interval", "must be %s to %s, got %s", measureShortest, measureLongest, interval)
	}
	return nil
}

// processesBetween describes the processes of the later of two readings.
func processesBetween(before, after *protocol.ProcessList) *shownProcesses {
	type identity struct {
		boot    string
		pid     int
		started protocol.Duration
	}
	earlier := map[identity]*protocol.Process{}
	for _, c := range before.Containers {
		for i := range c.Processes {
			p := &c.Processes[i]
			earlier[identity{c.Boot, p.PID, p.Started}] = p
		}
	}
	shown := &shownProcesses{Worker: after.Worker, HostID: after.HostID, Processes: []shownProcess{}}
	for _, c := range after.Containers {
		if c.Error != nil {
			shown.Errors = append(shown.Errors, unmeasuredShown{c.Service, c.Error})
		}
		shown.More += c.More
		for i := range c.Processes {
			p := &c.Processes[i]
			one := shownProcess{Service: c.Service, Process: *p, Age: protocol.Duration(p.Age())}
			if cores, known := p.CPUSince(earlier[identity{c.Boot, p.PID, p.Started}]); known {
				one.CPUPercent = percentOf(cores)
			}
			shown.Processes = append(shown.Processes, one)
		}
	}
	slices.SortStableFunc(shown.Processes, func(a, b shownProcess) int { return cmp.Compare(a.Service, b.Service) })
	return shown
}

// percentOf returns a number of cores in percent of one core, with one decimal.
func percentOf(cores float64) *float64 {
	percent := float64(int64(cores*1000+0.5)) / 10
	return &percent
}

func percentText(percent *float64) string {
	if percent == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", *percent)
}

func printProcesses(w io.Writer, shown *shownProcesses) {
	rows := [][]any{{"PID", "EXEC", "USER", "CPU", "MEMORY", "ELAPSED", "COMMAND"}}
	for i := range shown.Processes {
		p := &shown.Processes[i]
		rows = append(rows, []any{p.PID, belongsTo(p), p.UID, percentText(p.CPUPercent), sizeOf(p.Memory),
			p.Age.Std().Round(time.Second), cut(strings.TrimSpace(plainLine(p.Command)), commandWidth)})
	}
	table(w, rows...)
	if shown.More > 0 {
		fmt.Fprintf(w, "%d more processes are not listed\n", shown.More)
	}
	printUnmeasured(w, shown.Errors)
}

// belongsTo says what a process belongs to.
func belongsTo(p *shownProcess) string {
	owner := "-"
	switch {
	case p.Exec != "":
		owner = p.Exec
	case p.Primary:
		owner = "(own command)"
	}
	if p.Service != "" {
		owner += " in " + p.Service
	}
	return owner
}

func printUnmeasured(w io.Writer, errors []unmeasuredShown) {
	for _, e := range errors {
		fmt.Fprintf(w, "%s: %s\n", containerName(e.Service), e.Error.Message)
	}
}

// containerName names a container for people.
func containerName(service string) string {
	if service == "" {
		return "(sandbox)"
	}
	return service
}
