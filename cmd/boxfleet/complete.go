package main

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// completeWithin is how long shell completion waits for the fleet.
const completeWithin = 2 * time.Second

type completion = func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective)

// completed asks the fleet for names. It returns no names if the fleet does not answer.
func (cl *client) completed(cmd *cobra.Command, ask func(ctx context.Context, c *sdk.Client) ([]string,
	error)) ([]string, cobra.ShellCompDirective) {
	if cl.config.load(cmd, cl.stderr) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(context.Background(), completeWithin)
	defer cancel()
	c, err := cl.connect(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.Close()
	names, _ := ask(ctx, c) // offer the names read before an error
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeSandbox completes the first argument: the id or the name of a sandbox.
func (cl *client) completeSandbox(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return cl.completed(cmd, sandboxIDs)
}

// completeSandboxes completes each argument with sandboxes that are not on the command line yet.
func (cl *client) completeSandboxes(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	ids, directive := cl.completed(cmd, sandboxIDs)
	return slices.DeleteFunc(ids, func(id string) bool { return slices.Contains(args, id) }), directive
}

func sandboxIDs(ctx context.Context, c *sdk.Client) (ids []string, err error) {
	for s, err := range c.List(ctx, sdk.WithPageSize(1000)) {
		if err != nil {
			return ids, err
		}
		if name := s.Info().Name; name != "" {
			ids = append(ids, name)
		}
		ids = append(ids, s.ID())
	}
	return ids, nil
}

// completeExec completes the id of a sandbox and then the id of one of its execs. If states are given, it offers only
// execs in these states.
func (cl *client) completeExec(states ...protocol.ExecState) completion {
	return func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		if len(args) != 1 {
			return cl.completeSandbox(cmd, args, toComplete)
		}
		return cl.completed(cmd, func(ctx context.Context, c *sdk.Client) (ids []string, err error) {
			page, err := c.Sandbox(args[0]).ExecsPage(ctx, sdk.WithExecStates(states...), sdk.WithPageSize(1000))
			if err != nil {
				return nil, err
			}
			for _, x := range page.Items {
				ids = append(ids, x.ID())
			}
			return ids, nil
		})
	}
}

// completeHost completes the first argument: the name of a host's worker.
func (cl *client) completeHost(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return cl.completed(cmd, workerNames)
}

func workerNames(ctx context.Context, c *sdk.Client) (names []string, err error) {
	hosts, err := sdk.ReadAll(c.Hosts().List(ctx))
	for _, h := range hosts {
		names = append(names, h.Worker)
	}
	return names, err
}

// completeImported completes the first argument: the name of an imported image.
func (cl *client) completeImported(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return cl.completed(cmd, func(ctx context.Context, c *sdk.Client) (refs []string, err error) {
		imported, err := sdk.ReadAll(c.Images().List(ctx))
		for _, want := range imported {
			refs = append(refs, want.Ref)
		}
		return refs, err
	})
}

// imageRefs returns the names of all images on the hosts, without duplicates.
func imageRefs(ctx context.Context, c *sdk.Client) (refs []string, err error) {
	imported, err := sdk.ReadAll(c.Images().List(ctx))
	if err != nil {
		return nil, err
	}
	hosts, err := sdk.ReadAll(c.Images().OnHosts(ctx))
	for _, want := range imported {
		refs = append(refs, want.Ref)
	}
	for _, h := range hosts {
		for _, i := range h.Images {
			refs = append(refs, i.Ref)
		}
	}
	return distinct(refs), err
}

// completeFlag completes the values of a flag with names from the fleet.
func (cl *client) completeFlag(cmd *cobra.Command, flag string,
	ask func(ctx context.Context, c *sdk.Client) ([]string, error)) {
	mustComplete(cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, _ string) ([]string,
		cobra.ShellCompDirective) {
		return cl.completed(cmd, ask)
	}))
}

// completeValues completes a flag with fixed values.
func completeValues(cmd *cobra.Command, flag string, values ...string) {
	mustComplete(cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
}

// mustComplete panics if a completion was registered twice or for an unknown flag.
func mustComplete(err error) {
	if err != nil {
		panic(err)
	}
}

// addQuiet adds --quiet to a list command.
func addQuiet(cmd *cobra.Command, quiet *bool) {
	cmd.Flags().BoolVarP(quiet, "quiet", "q", false, "print only the names, one per line")
}
