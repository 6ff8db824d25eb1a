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
)

const (
	pingWithin    = 10 * time.Second       // time limit of one attempt
	pingPause     = 100 * time.Millisecond // pause between attempts while nothing answers
	degradedPause = time.Second            // pause between attempts while a coordinator reports problems
)

type pingCommands struct{ *client }

func (cmds pingCommands) pingCommand() *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "ping", Short: "Check the fleet and show how safely it stores data", Args: takes(),
		Long: `Check that the fleet answers, and show how safely it stores data: the replicas of every stream, whether
they are in sync, and how much space is used. The exit code is 1 if anything is less safe than configured or
JetStream has no leader. With --wait, retry while nothing answers or anything is less safe than configured, for a fleet
that starts or gets a server back.

ping does not wait for hosts; it shows how many there are. A create waits for a host by itself, for as long as its
queue timeout says. "boxfleet host list" shows whether a host is ready.`,
		Example: "  boxfleet ping\n  boxfleet ping -o json\n  boxfleet up & boxfleet ping --wait 1m",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if wait < 0 {
				return usage("--wait: must not be negative, got %s", wait)
			}
			if cmds.config.Deadline > 0 {
				wait = min(wait, cmds.config.Deadline)
			}
			for until := time.Now().Add(wait); ; {
				ping, took, err := cmds.ask(cmd)
				pause := cmds.pauseAfter(err)
				if pause == 0 || !time.Now().Add(pause).Before(until) {
					return cmp.Or(cmds.showPing(ping, took), err)
				}
				select {
				case <-cmd.Context().Done():
					return cmds.ended(cmd.Context(), err)
				case <-time.After(pause):
				}
			}
		},
	}
	cmd.Flags().DurationVar(&wait, "wait", 0,
		"retry for up to this time until a coordinator answers and the data is stored safely (default: try once)")
	return cmd
}

// pauseAfter returns how long to wait before another attempt, or 0 if no later attempt may succeed. Until this user's
// own `up` listens, the client may reach another user's `up` and be denied.
func (cmds pingCommands) pauseAfter(err error) time.Duration {
	switch e := protocol.AsError(err); {
	case e == nil:
		return 0
	case e.Reason == protocol.ReasonStorageDegraded:
		return degradedPause
	case e.Code == protocol.Unavailable, e.Code == protocol.DeadlineExceeded,
		e.Code == protocol.PermissionDenied && cmds.looksForUp():
		return pingPause
	}
	return 0
}

// ask pings the fleet once. The error storage_degraded comes with the answer of the fleet; without an answer, ping is
// nil.
func (cmds pingCommands) ask(cmd *cobra.Command) (ping *sdk.Ping, took time.Duration, err error) {
	err = cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) (err error) {
		ctx, cancel := context.WithTimeout(ctx, pingWithin)
		defer cancel()
		began := time.Now()
		if ping, err = c.Ping(ctx); err != nil {
			return err
		}
		took = time.Since(began).Round(10 * time.Microsecond)
		if ping.Storage != nil && len(ping.Storage.Problems) > 0 {
			return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonStorageDegraded, "%s",
				strings.Join(ping.Storage.Problems, "; "))
		}
		return nil
	})
	return ping, took, err
}

func (cmds pingCommands) showPing(ping *sdk.Ping, took time.Duration) error {
	if ping == nil {
		return nil
	}
	return cmds.show(ping, func(w io.Writer) { printPing(w, ping, took) })
}

func printPing(w io.Writer, ping *sdk.Ping, took time.Duration) {
	table(w, []any{"answered by", ping.Coordinator + " " + ping.Version}, []any{"in", took},
		[]any{"deployment", ping.Deployment},
		[]any{"hosts", ping.Hosts}, []any{"durability", ping.Durability})
	for _, off := range ping.Clocks {
		fmt.Fprintln(w, "warning:", off)
	}
	if ping.Refused > 0 {
		fmt.Fprintf(w, "warning: the coordinator refused messages of the event log %d times, because their writers are not "+
			"proven: its log names their keys\n", ping.Refused)
	}
	showStorage(w, ping.Storage)
}

// showStorage prints the state of each stream.
func showStorage(w io.Writer, s *protocol.Storage) {
	if s == nil { // an older coordinator does not report its storage
		return
	}
	for _, warning := range s.Warnings {
		fmt.Fprintln(w, "warning:", warning)
	}
	if len(s.Streams) == 0 {
		return
	}
	fmt.Fprintln(w)
	rows := [][]any{{"STREAM", "LEADER", "IN SYNC", "USED", "LIMIT"}}
	for _, stream := range s.Streams {
		limit := any(protocol.Bytes(stream.MaxBytes))
		if stream.MaxBytes == 0 {
			limit = "none"
		}
		sync := any(fmt.Sprintf("%d of %d", stream.InSync, stream.Replicas))
		if stream.Error != "" {
			sync = stream.Error
		}
		rows = append(rows, []any{stream.Name, stream.Leader, sync, protocol.Bytes(stream.Bytes), limit})
	}
	table(w, rows...)
}
