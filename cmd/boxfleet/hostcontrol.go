package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// oneHost accepts the name of one host.
func oneHost(cmd *cobra.Command, args []string) error {
	if err := counts(cmd, args, "NAME"); err != nil {
		return err
	}
	return protocol.ValidateID("NAME", args[0])
}

// hostResult is the JSON output of a command that sets an operator intent for a host.
type hostResult struct {
	Worker string `json:"worker"`
	Result string `json:"result"`
}

func (p *program) showHostResult(name, result string) error {
	return p.show(hostResult{name, result}, func(w io.Writer) { fmt.Fprintln(w, name, result) })
}

func (p *program) hostCordon(verb, result, short, long string,
	do func(*sdk.Hosts, context.Context, string) error) *cobra.Command {
	return &cobra.Command{
		Use: verb + " NAME", Short: short, Long: long, Args: oneHost, ValidArgsFunction: p.completeHost,
		Example: "  boxfleet host " + verb + " w1",
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.client(cmd, func(ctx context.Context, c *sdk.Client) error {
				if err := do(c.Hosts(), ctx, args[0]); err != nil {
					return err
				}
				return p.showHostResult(args[0], result)
			})
		},
	}
}

// ownDeadline marks a command whose --deadline flag is not the client timeout.
const ownDeadline = "own-deadline"

func (p *program) hostDrain() *cobra.Command {
	var deadline time.Duration
	var wait bool
	cmd := &cobra.Command{
		Use: "drain NAME", Short: "Stop placing work on a host and empty it", Args: oneHost,
		ValidArgsFunction: p.completeHost,
		Annotations:       map[string]string{ownDeadline: "true"},
		Long: `Stop placing work on a host and empty it. A sandbox with on_host_loss replace is created again on another
host, once it has no active execs and a host can take it. The drain waits for all other sandboxes. After
--deadline, whatever still runs is ended with reason drained: a sandbox with on_host_loss replace is created again
elsewhere, one with fail fails, and one with wait is stopped. Stopped and failed sandboxes stay where they are.

The drain continues if this command is interrupted; run it again to wait for the drain. "boxfleet host uncordon"
ends the drain.`,
		Example: "  boxfleet host drain w1\n  boxfleet host drain w1 --deadline 10m",
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.client(cmd, func(ctx context.Context, c *sdk.Client) error {
				return p.drain(ctx, c, args[0], deadline,
					wait)
			})
		},
	}
	cmd.Flags().DurationVar(&deadline, "deadline", 0,
		"end whatever still runs after this time (default: wait for it to end)")
	cmd.Flags().BoolVar(&wait, "wait", true, "wait until nothing runs on the host")
	return cmd
}

func (p *program) drain(ctx context.Context, c *sdk.Client, name string, deadline time.Duration, wait bool) error {
	if err := c.Hosts().Drain(ctx, name, deadline); err != nil {
		return err
	}
	if !wait {
		return p.showHostResult(name, "draining")
	}
	p.unfinished.set("drain",
		"the drain of %s continues: `boxfleet host list` shows its progress, `boxfleet host uncordon %s` ends it", name, name)
	tell, done := p.progressing("draining " + name)
	defer done()
	err := c.Hosts().WaitDrained(ctx, name, func(h *protocol.Host) {
		left := fmt.Sprintf("draining %s: %d sandboxes and %d execs left", name, h.Sandboxes, h.Execs)
		if h.State != protocol.HostReady {
			left += fmt.Sprintf("; the host is %s", h.State)
		}
		if tell(left); !p.watched() && !p.json() {
			p.note("%s", left)
		}
	})
	done()
	if err != nil {
		return err
	}
	p.unfinished.done("drain")
	return p.showHostResult(name, "drained")
}

func (p *program) hostForget() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "forget NAME", Short: "Give up a lost host and everything on it", Args: oneHost,
		ValidArgsFunction: p.completeHost,
		Long: `Give up a lost host that will not come back, and everything on it, for all tenants. Sandboxes that were
being deleted become deleted; those with on_host_loss replace are created again elsewhere; all others, including
stopped ones, fail with reason host_forgotten. Only a host whose lock is free can be forgotten. If the host comes
back after all, it removes its leftovers before it takes work.`,
		Example: "  boxfleet host forget w1\n  boxfleet host forget w1 --yes",
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.client(cmd, func(ctx context.Context, c *sdk.Client) error { return p.forgetHost(ctx, c, args[0], yes) })
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
	return cmd
}

func (p *program) forgetHost(ctx context.Context, c *sdk.Client, name string, yes bool) error {
	h, err := c.Hosts().Get(ctx, name)
	if err != nil {
		return err
	}
	if h.State != protocol.HostLost { // the fleet refuses it, so do not ask for confirmation
		return c.Hosts().Forget(ctx, name)
	}
	fmt.Fprintf(p.plain(p.stderr), "host %s of worker %s is lost, last seen %s ago; on it %s\n", h.HostID, h.Worker,
		ago(c.Now(ctx), h.SeenAt), onHost(h))
	if !yes {
		if err := p.confirm("forget it and give up everything on it?"); err != nil {
			return err
		}
	}
	done := p.progress("forgetting " + name)
	defer done()
	p.unfinished.set("forget", "the fleet continues to forget %s: `boxfleet host list` shows it until that is done",
		name)
	if err := c.Hosts().Forget(ctx, name); err != nil {
		return err
	}
	p.unfinished.done("forget")
	done()
	return p.showHostResult(name, "forgotten")
}

// onHost describes the sandboxes of a host.
func onHost(h *protocol.Host) string {
	if len(h.Holds) == 0 {
		return "is no sandbox"
	}
	var parts []string
	for _, state := range slices.Sorted(maps.Keys(h.Holds)) {
		parts = append(parts, fmt.Sprintf("%d %s", h.Holds[state], state))
	}
	return fmt.Sprintf("are sandboxes: %s, with %d active execs", strings.Join(parts, ", "), h.Execs)
}

// confirm asks the user at the terminal. Without a terminal it is an error.
func (p *program) confirm(question string) error {
	f, ok := p.stdin.(interface{ Fd() uintptr })
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return usage("%s Cannot ask without a terminal; use --yes", question)
	}
	fmt.Fprintf(p.plain(p.stderr), "%s [y/N] ", question)
	line, _ := bufio.NewReader(p.stdin).ReadString('\n') // end of input means no
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}
	return protocol.Errorf(protocol.Cancelled, "", "nothing was changed")
}
