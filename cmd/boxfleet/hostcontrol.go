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

// oneHost takes the name of a host.
func oneHost(cmd *cobra.Command, args []string) error {
	if err := counts(cmd, args, "NAME"); err != nil {
		return err
	}
	return protocol.ValidateID("NAME", args[0])
}

// wished is what a command that says something of a host prints as JSON.
type wished struct {
	Worker string `json:"worker"`
	Result string `json:"result"`
}

func (p *program) showWished(name, result string) error {
	return p.show(wished{name, result}, func(w io.Writer) { fmt.Fprintln(w, name, result) })
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
				return p.showWished(args[0], result)
			})
		},
	}
}

// ownDeadline marks a command whose --deadline is not that of the client.
const ownDeadline = "own-deadline"

func (p *program) hostDrain() *cobra.Command {
	var deadline time.Duration
	var wait bool
	cmd := &cobra.Command{
		Use: "drain NAME", Short: "Give a host no new work, and empty it", Args: oneHost, ValidArgsFunction: p.completeHost,
		Annotations: map[string]string{ownDeadline: "true"},
		Long: `Give a host no new work, and empty it. A sandbox with on_host_loss replace is made again on
another host, once none of its execs is active and a host takes it. The others are waited for. After
--deadline, what still runs is ended, with reason drained: a sandbox with on_host_loss replace is made again
elsewhere, one with fail fails, one with wait is stopped. Stopped and failed sandboxes stay where they are.

A drain goes on when the command is interrupted; the same command waits for it again. boxfleet host uncordon
ends it.`,
		Example: "  boxfleet host drain w1\n  boxfleet host drain w1 --deadline 10m",
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.client(cmd, func(ctx context.Context, c *sdk.Client) error {
				return p.drain(ctx, c, args[0], deadline,
					wait)
			})
		},
	}
	cmd.Flags().DurationVar(&deadline, "deadline", 0, "end what still runs after so long (default: wait for it)")
	cmd.Flags().BoolVar(&wait, "wait", true, "wait until nothing runs on the host")
	return cmd
}

func (p *program) drain(ctx context.Context, c *sdk.Client, name string, deadline time.Duration, wait bool) error {
	if err := c.Hosts().Drain(ctx, name, deadline); err != nil {
		return err
	}
	if !wait {
		return p.showWished(name, "draining")
	}
	p.unfinished.set("drain", "the drain of %s goes on: `boxfleet host list` shows how far it is, `boxfleet host uncordon %s` ends it", name, name)
	tell, done := p.progressing("draining " + name)
	defer done()
	err := c.Hosts().WaitDrained(ctx, name, func(h *protocol.Host) {
		left := fmt.Sprintf("draining %s: %d sandboxes and %d execs are left", name, h.Sandboxes, h.Execs)
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
	return p.showWished(name, "drained")
}

func (p *program) hostForget() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "forget NAME", Short: "Give up a lost host that does not come back, with everything on it", Args: oneHost,
		ValidArgsFunction: p.completeHost,
		Long: `Give up a lost host that does not come back, with everything on it, of all tenants. Sandboxes that were to be
deleted become deleted; those with on_host_loss replace are made again elsewhere; all others fail with reason
host_forgotten, stopped ones too. Only a host whose lock is free can be forgotten. One that comes back
nevertheless removes what is left on it before it takes work.`,
		Example: "  boxfleet host forget w1\n  boxfleet host forget w1 --yes",
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.client(cmd, func(ctx context.Context, c *sdk.Client) error { return p.forgetHost(ctx, c, args[0], yes) })
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func (p *program) forgetHost(ctx context.Context, c *sdk.Client, name string, yes bool) error {
	h, err := c.Hosts().Get(ctx, name)
	if err != nil {
		return err
	}
	if h.State != protocol.HostLost { // before anybody is asked
		return c.Hosts().Forget(ctx, name)
	}
	fmt.Fprintf(p.plain(p.stderr), "host %s of worker %s is lost, last seen %s ago; on it %s\n", h.HostID, h.Worker,
		ago(c.Now(ctx), h.SeenAt), onHost(h))
	if !yes {
		if err := p.confirm("forget it, and give all of that up?"); err != nil {
			return err
		}
	}
	done := p.progress("forgetting " + name)
	defer done()
	p.unfinished.set("forget", "the fleet goes on with forgetting %s: `boxfleet host list` shows it until that is done",
		name)
	if err := c.Hosts().Forget(ctx, name); err != nil {
		return err
	}
	p.unfinished.done("forget")
	done()
	return p.showWished(name, "forgotten")
}

// onHost says what is on a host.
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

// confirm asks a person. Where there is none, nothing is done.
func (p *program) confirm(question string) error {
	f, ok := p.stdin.(interface{ Fd() uintptr })
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return usage("%s There is no terminal to ask at: use --yes", question)
	}
	fmt.Fprintf(p.plain(p.stderr), "%s [y/N] ", question)
	line, _ := bufio.NewReader(p.stdin).ReadString('\n') // the end of input is a no
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}
	return protocol.Errorf(protocol.Cancelled, "", "nothing is changed")
}
