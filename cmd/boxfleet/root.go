package main

import (
	"github.com/spf13/cobra"
)

// Groups of commands in the help.
const (
	groupRun       = "run"
	groupSandboxes = "sandboxes"
	groupHosts     = "hosts"
	groupOperate   = "operate"
)

// roleAnnotation is an annotation of each top-level command. It says whether the command is a client of the fleet or
// one of its servers. Client commands handle signals themselves. Server commands warn about unknown BOXFLEET_
// variables.
const (
	roleAnnotation = "role"
	roleClient     = "client"
	roleServer     = "server"
)

// roleOf returns the role of a command, or "" for help and completion.
func roleOf(cmd *cobra.Command) string { return topOf(cmd).Annotations[roleAnnotation] }

// topOf returns the top-level command that a command belongs to.
func topOf(cmd *cobra.Command) *cobra.Command {
	for cmd.HasParent() && cmd.Parent().HasParent() {
		cmd = cmd.Parent()
	}
	return cmd
}

const rootHelp = `Boxfleet runs sandboxes and commands on a fleet of Docker hosts, over NATS JetStream.

"boxfleet up" runs a complete fleet on this machine; the other commands of the same user connect to it without
further settings.

SANDBOX is the name of a sandbox, its id, or a unique prefix of a generated id.`

// root returns the root command with all other commands.
func (p *program) root() *cobra.Command {
	var askVersion bool
	root := &cobra.Command{
		Use: "boxfleet", Short: "Run sandboxes and commands on a fleet of Docker hosts", Long: rootHelp,
		Example:       "  boxfleet up\n  boxfleet run --image boxfleet/demo:busybox uname -a",
		SilenceErrors: true, SilenceUsage: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if askVersion {
				return printVersion(p.console)
			}
			return cmd.Help()
		},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			p.client.handleSignals(cmd)
			return p.config.load(cmd, p.console.stderr)
		},
	}
	root.SetFlagErrorFunc(wrongFlag)
	root.Flags().BoolVar(&askVersion, "version", false, "print the version of this program")
	p.config.addFlags(root.PersistentFlags(), "")
	root.PersistentFlags().StringVar(&p.config.file, "config", "",
		"configuration `file` (default $XDG_CONFIG_HOME/boxfleet/config.yaml)")
	completeValues(root, "output", outputText, outputJSON)
	completeValues(root, "log-level", logLevels...)
	p.addCommands(root)
	addHelpAndCompletion(root)
	return root
}

// addCommands adds the commands, in the groups that the help shows.
func (p *program) addCommands(root *cobra.Command) {
	boxes, runs := sandboxCommands{p.client}, runCommands{p.client}
	for _, g := range []struct {
		id, title, role string
		commands        []*cobra.Command
	}{
		{groupRun, "Run commands:", roleClient, []*cobra.Command{
			runs.runCommand(), runs.execCommand(), execsCommands{p.client}.group(),
			logsCommand(p.client, "boxfleet logs"), waitCommands{p.client}.waitCommand(),
			forwardCommands{p.client}.forwardCommand(), portCommands{p.client}.portsCommand()}},
		{groupSandboxes, "Manage sandboxes:", roleClient, []*cobra.Command{
			boxes.group(), cpCommands{p.client}.cpCommand(), fsCommands{cpCommands{p.client}}.group(),
			applyCommands{p.client}.applyCommand(), specCommands{p.client}.group(),
			secretCommands{p.client}.group(), boxes.listCommand("boxfleet", "ps", "ls"), boxes.deleteCommand("boxfleet", "rm")}},
		{groupHosts, "Manage hosts and images:", roleClient, []*cobra.Command{
			hostCommands{p.client}.group(), imageCommands{p.client}.group()}},
		{groupOperate, "Operate a fleet:", roleServer, []*cobra.Command{
			p.servers.upCommand(), p.servers.coordinatorCommand(), p.servers.workerCommand(),
			storageCommands{p.servers}.group(), authCommands{p.servers}.group(), demoCommand(p.servers, runs)}},
		{groupOperate, "", roleClient, []*cobra.Command{
			pingCommands{p.client}.pingCommand(), doctorCommands{p.client}.doctorCommand(),
			auditCommands{p.client}.auditCommand(), conformanceCommands{p.client}.conformanceCommand(),
			tenantCommands{p.client}.group(),
			versionCommand(p.console), manCommand()}},
	} {
		if g.title != "" {
			root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		}
		for _, c := range g.commands {
			c.GroupID, c.Annotations = g.id, map[string]string{roleAnnotation: g.role}
			root.AddCommand(c)
		}
	}
}

// addHelpAndCompletion adds cobra's commands help and completion. Their usage errors and examples have the same form as
// those of the other commands.
func addHelpAndCompletion(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.Args = func(_ *cobra.Command, args []string) error {
				if found, rest, err := root.Find(args); err != nil || len(rest) > 0 {
					return unknownCommand(found, args[len(args)-max(1, len(rest))])
				}
				return nil
			}
			c.Example = "  boxfleet help exec"
		case "completion":
			c.Args, c.RunE = subcommand, func(*cobra.Command, []string) error { return nil }
			for _, shell := range c.Commands() {
				shell.Example = "  boxfleet completion " + shell.Name() + " >completion." + shell.Name()
			}
		}
	}
}

// group returns a command that only has subcommands.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: subcommand,
		RunE: func(*cobra.Command, []string) error { return nil }}
	c.AddCommand(commands...)
	return c
}

// subcommand checks the arguments of a command that only has subcommands. It always returns a usage error.
func subcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usage("missing subcommand; see %s --help", cmd.CommandPath())
	}
	return unknownCommand(cmd, args[0])
}
