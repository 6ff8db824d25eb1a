package main

import (
	"context"
	"iter"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// printChunk prints one chunk of output: as JSON, or to the stream that it came from.
func (cl *client) printChunk(k sdk.Chunk) error {
	if cl.json() {
		return cl.line(k)
	}
	w := cl.stdout
	if k.Stream == sdk.Stderr {
		w = cl.guarded(cl.stderr)
	}
	_, err := w.Write(k.Data)
	return err
}

// logsCommand returns a command called logs. Its examples use the given command line.
func logsCommand(cl *client, line string) *cobra.Command {
	var service, since string
	var tail int
	var follow bool
	cmd := &cobra.Command{
		Use: "logs SANDBOX", Short: "Print the output of a sandbox's primary command or of a service", Args: takes("SANDBOX"),
		ValidArgsFunction: cl.completeSandbox,
		Long: `Print the output of a sandbox's primary command, or of a service with --service, across all restarts:
stdout to stdout, stderr to stderr. With -o json, each chunk is a line with the stream, the offset, the time and
the data in base64. To print the output of an exec, use "boxfleet execs logs".`,
		Example: "  " + line + " web --tail 100 --follow\n  " + line + " web --since 10m\n  " + line + " web --service " +
			"db --since 2026-01-31T08:00:00Z",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkTail(cmd, tail); err != nil {
				return err
			}
			if cmd.Flags().Changed("service") {
				if err := protocol.ValidateID("--service", service); err != nil {
					return err
				}
			}
			from, ago, err := sinceWhen(cmd, since)
			if err != nil {
				return err
			}
			return cl.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				if ago > 0 {
					from = c.Now(ctx).Add(-ago)
				}
				box := c.Sandbox(args[0])
				read := func(follow bool) iter.Seq2[sdk.Chunk, error] {
					return box.Logs(ctx, sdk.WithService(service), sdk.WithFollow(follow))
				}
				return ignoreInterrupt(ctx, follow, cl.printLogs(read, follow, tail, from))
			})
		},
	}
	cmd.Flags().StringVar(&service, "service", "", "`name` of the service (default: the sandbox's primary command)")
	cmd.Flags().BoolVar(&follow, "follow", false, "keep printing new output until the sandbox fails or is deleted")
	cmd.Flags().StringVar(&since, "since", "",
		"only output stored since this `time`, such as 2026-01-31T08:00:00Z, or this long ago, such as 10m")
	addTail(cmd, &tail)
	return cmd
}

func addTail(cmd *cobra.Command, tail *int) {
	cmd.Flags().IntVar(tail, "tail", -1,
		"print only this many `lines` from the end of the existing output, stdout and stderr together (default: all)")
	cmd.Flags().Lookup("tail").DefValue = "0" // pflag does not show a zero default
}

func checkTail(cmd *cobra.Command, tail int) error {
	if tail < 0 && cmd.Flags().Changed("tail") {
		return usage("--tail: must not be negative, got %d", tail)
	}
	return nil
}

// sinceWhen parses --since, which is either a point in time or a duration before now.
func sinceWhen(cmd *cobra.Command, since string) (at time.Time, ago time.Duration, err error) {
	if !cmd.Flags().Changed("since") {
		return at, 0, nil
	}
	if ago, err = time.ParseDuration(since); err == nil && ago > 0 {
		return at, ago, nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", time.DateTime, time.DateOnly} {
		if at, err = time.ParseInLocation(layout, since, time.Local); err == nil {
			return at, 0, nil
		}
	}
	return at, 0, usage("--since: must be a time such as 2026-01-31T08:00:00Z, or a duration such as 10m, got %.40q",
		since)
}

// printLogs prints the output that was stored since a point in time. If tail is not negative, it prints only the last
// lines of that output. If follow is true, it continues with new output.
func (cl *client) printLogs(read func(follow bool) iter.Seq2[sdk.Chunk, error], follow bool, tail int,
	since time.Time) error {
	printed := map[string]int64{}
	if tail >= 0 {
		last := newLastLines(tail)
		for k, err := range read(false) {
			if err != nil {
				return err
			}
			if isSince(k, since) {
				last.add(k)
			}
			printed[k.Stream] = k.Offset + int64(len(k.Data))
		}
		for _, line := range last.lines {
			if err := cl.printChunk(*line); err != nil {
				return err
			}
		}
		if !follow {
			return nil
		}
	}
	for k, err := range read(follow) {
		if err != nil {
			return err
		}
		if skip := printed[k.Stream] - k.Offset; skip > 0 {
			if skip >= int64(len(k.Data)) {
				continue
			}
			k.Offset, k.Data = k.Offset+skip, k.Data[skip:]
		}
		if !isSince(k, since) {
			continue
		}
		if err := cl.printChunk(k); err != nil {
			return err
		}
	}
	return nil
}

// isSince reports whether a chunk was stored at or after the given time, or is not stored yet.
func isSince(k sdk.Chunk, since time.Time) bool { return k.At.IsZero() || !k.At.Before(since) }
