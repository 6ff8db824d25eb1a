package main

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/sdk"
	environments "github.com/boxfleet/boxfleet/sdk/environment"
	"github.com/boxfleet/boxfleet/sdk/environment/conformance"
	"github.com/boxfleet/boxfleet/sdk/environment/docker"
	"github.com/boxfleet/boxfleet/sdk/environment/fleet"
	machine "github.com/boxfleet/boxfleet/sdk/environment/local"
	"github.com/boxfleet/boxfleet/sdk/environment/ssh"
)

// The backends of `boxfleet conformance`.
const (
	backendFleet  = "fleet"
	backendDocker = "docker"
	backendSSH    = "ssh"
	backendLocal  = "local"
)

type conformanceCommands struct{ *client }

// conformanceFlags are the flags of `boxfleet conformance`.
type conformanceFlags struct {
	backend              string
	knownHosts, identity string
	port                 int
	dir                  string
	failures             bool
}

func (cmds conformanceCommands) conformanceCommand() *cobra.Command {
	var flags conformanceFlags
	cmd := &cobra.Command{
		Use: "conformance TARGET", Short: "Check that commands and files work as package sdk/environment promises",
		Args: func(cmd *cobra.Command, args []string) error {
			if flags.backend == backendFleet {
				return takes("TARGET")(cmd, args)
			}
			return counts(cmd, args, "TARGET")
		},
		Long: `Check the behaviours that Go programs expect of an environment of package sdk/environment, and print each with
its outcome: pass, fail, or missing if the environment cannot do it. docs/environments.md says what an environment
is. TARGET is a sandbox; with --backend docker a container that runs; with --backend ssh USER@HOST; with --backend
local a directory of this machine, where commands run without isolation. The checks work below --dir and remove what
they made. The exit code is 1 if a behaviour fails.`,
		Example: "  boxfleet conformance web\n  boxfleet conformance --backend docker my-container --failures\n" +
			"  boxfleet conformance --backend ssh box@build1 --known-hosts ~/.ssh/known_hosts -o json",
		RunE: func(cmd *cobra.Command, args []string) error { return cmds.check(cmd, &flags, args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&flags.backend, "backend", backendFleet, "`kind` of TARGET: fleet (a sandbox), docker, ssh or local")
	f.StringVar(&flags.dir, "dir", "", "absolute `directory` of the environment to work below (default /tmp)")
	f.StringVar(&flags.knownHosts, "known-hosts", "", "`file` with the key of the SSH host, absolute")
	f.StringVar(&flags.identity, "identity", "", "`file` with the private key for SSH, absolute")
	f.IntVar(&flags.port, "port", 0, "`port` of the SSH server (default 22)")
	f.BoolVar(&flags.failures, "failures", false, "print only the behaviours that fail or are missing")
	completeValues(cmd, "backend", backendFleet, backendDocker, backendSSH, backendLocal)
	return cmd
}

// check opens the environment and runs the table.
func (cmds conformanceCommands) check(cmd *cobra.Command, flags *conformanceFlags, target string) error {
	for _, name := range []string{"known-hosts", "identity", "port"} {
		if flags.backend != backendSSH && cmd.Flags().Changed(name) {
			return usage("--%s is only for --backend %s", name, backendSSH)
		}
	}
	ctx := cmd.Context()
	switch flags.backend {
	case backendFleet:
		return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
			return cmds.run(ctx, fleet.New(c.Sandbox(target)), flags)
		})
	case backendDocker:
		env, err := docker.Use(ctx, target)
		if err != nil {
			return err
		}
		return cmds.run(ctx, env, flags)
	case backendSSH:
		user, host, ok := strings.Cut(target, "@")
		if !ok {
			return usage("TARGET must be USER@HOST, got %q", target)
		}
		env, err := ssh.New(ssh.Config{Host: host, User: user, Port: flags.port, KnownHosts: flags.knownHosts,
			Identity: flags.identity})
		if err != nil {
			return err
		}
		defer env.Close()
		return cmds.run(ctx, env, flags)
	case backendLocal:
		env, err := machine.New(machine.Config{Dir: target})
		if err != nil {
			return err
		}
		return cmds.run(ctx, env, flags)
	}
	return usage("--backend must be %s, %s, %s or %s, got %q", backendFleet, backendDocker, backendSSH, backendLocal,
		flags.backend)
}

// conformanceRow is an outcome as it is printed.
type conformanceRow struct {
	Group     string            `json:"group"`
	Behaviour string            `json:"behaviour"`
	State     conformance.State `json:"state"`
	Why       string            `json:"why,omitempty"` // why it failed, or what is missing
	Seconds   float64           `json:"seconds"`
}

// run runs the table and prints it.
func (cmds conformanceCommands) run(ctx context.Context, env environments.Environment, flags *conformanceFlags) error {
	rows, counts := []conformanceRow{}, map[conformance.State]int{}
	for o := range conformance.Run(ctx, env, conformance.Options{Dir: flags.dir}) {
		counts[o.State]++
		r := conformanceRow{Group: o.Group, Behaviour: o.Name, State: o.State, Seconds: o.Took.Seconds()}
		if o.Err != nil {
			r.Why = o.Err.Error()
		}
		if !flags.failures || o.State != conformance.Passed {
			rows = append(rows, r)
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	err := cmds.show(rows, func(w io.Writer) {
		lines := [][]any{{"STATE", "GROUP", "BEHAVIOUR", "WHY"}}
		for _, r := range rows {
			lines = append(lines, []any{r.State, r.Group, r.Behaviour, r.Why})
		}
		table(w, lines...)
	})
	d := env.Describe()
	cmds.note("%s, isolation %s: %d pass, %d fail, %d missing", d.Backend, d.Isolation, counts[conformance.Passed],
		counts[conformance.Failed], counts[conformance.Missing])
	if err == nil && counts[conformance.Failed] > 0 {
		return exitCode{exitFailure, nil}
	}
	return err
}
