package main

import (
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
	pingWithin = 10 * time.Second       // time limit of one attempt
	pingPause  = 100 * time.Millisecond // pause between attempts
)

type pingCommands struct{ *client }

func (cmds pingCommands) pingCommand() *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "ping", Short: "Check the fleet and show how safely it stores data", Args: takes(),
		Long: `Check that the fleet answers, and show how safely it stores data: the replicas of every stream, whether
they are in sync, and how much space is used. The exit code is 1 if anything is less safe than configured or
JetStream has no leader. With --wait, retry while nothing answers, for a fleet that is still starting.`,
		Example: "  boxfleet ping\n  boxfleet ping -o json\n  boxfleet up & boxfleet ping --wait 1m",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if wait < 0 {
				return usage("--wait: must not be negative, got %s", wait)
			}
			if cmds.config.Deadline > 0 {
				wait = min(wait, cmds.config.Deadline)
			}
			for until := time.Now().Add(wait); ; {
				err := cmds.withFleet(cmd, cmds.ping)
				if !cmds.isAway(err) || !time.Now().Add(pingPause).Before(until) {
					return err
				}
				select {
				case <-cmd.Context().Done():
					return cmds.ended(cmd.Context(), err)
				case <-time.After(pingPause):
				}
			}
		},
	}
	cmd.Flags().DurationVar(&wait, "wait", 0, "retry for up to this time while nothing answers (default: try once)")
	return cmd
}

// isAway reports whether a retry may succeed later, when the fleet has started. Until this user's own `up` listens, the
// client may reach another user's `up` and be denied.
func (cmds pingCommands) isAway(err error) bool {
	switch protocol.CodeOf(err) {
	case protocol.Unavailable, protocol.DeadlineExceeded:
		return true
	case protocol.PermissionDenied:
		return cmds.looksForUp()
	}
	return false
}

func (cmds pingCommands) ping(ctx context.Context, c *sdk.Client) error {
	ctx, cancel := context.WithTimeout(ctx, pingWithin)
	defer cancel()
	started := time.Now()
	ping, err := c.Ping(ctx)
	if err != nil {
		return err
	}
	took := time.Since(started).Round(10 * time.Microsecond)
	err = cmds.show(ping, func(w io.Writer) { printPing(w, ping, took) })
	if err == nil && ping.Storage != nil && len(ping.Storage.Problems) > 0 {
		err = protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonStorageDegraded, "%s",
			strings.Join(ping.Storage.Problems, "; "))
	}
	return err
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
