package main

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/boxfleet/boxfleet/protocol"
)

// counts returns a usage error unless a command gets exactly one argument for each name.
func counts(cmd *cobra.Command, args []string, names ...string) error {
	if len(args) < len(names) {
		return usage("%s is missing; see %s --help", names[len(args)], cmd.CommandPath())
	}
	if len(args) > len(names) {
		return usage("unexpected argument %q; see %s --help", args[len(names)], cmd.CommandPath())
	}
	return nil
}

// takes accepts exactly one argument for each name. Each argument must be an id.
func takes(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := counts(cmd, args, names...); err != nil {
			return err
		}
		for i, name := range names {
			if err := protocol.ValidateID(name, args[i]); err != nil {
				return err
			}
		}
		return nil
	}
}

// takesOptional accepts an id and, optionally, a second one.
func takesOptional(name, optional string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < 2 {
			return takes(name)(cmd, args)
		}
		return takes(name, optional)(cmd, args)
	}
}

// takesSome accepts one or more ids.
func takesSome(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return counts(cmd, args, name)
		}
		for _, id := range args {
			if err := protocol.ValidateID(name, id); err != nil {
				return err
			}
		}
		return nil
	}
}

// takesCommand accepts no arguments, except an optional command after "--".
func takesCommand(cmd *cobra.Command, args []string) error {
	before, _ := splitDash(cmd, args)
	return takes()(cmd, before)
}

// splitDash splits the arguments at "--".
func splitDash(cmd *cobra.Command, args []string) (before, command []string) {
	at := cmd.ArgsLenAtDash()
	if at < 0 {
		return args, nil
	}
	return args[:at], args[at:]
}

// commandLine holds the arguments of `exec` and `run`: ids, and the command to run. Boxfleet's own flags stand before
// the command; they may also stand between the ids. Everything after the first word of the command belongs to the
// command, as with ssh and docker. "--" before the command is optional, unless the command starts with a dash.
type commandLine struct{ ids, command []string }

// of makes cmd accept one id for each name, and a command to run.
func (l *commandLine) of(cmd *cobra.Command, names ...string) {
	cmd.Flags().SetInterspersed(false)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := l.parse(cmd, args, len(names)); err != nil {
			return err
		}
		if err := takes(names...)(cmd, l.ids); err != nil {
			return err
		}
		if len(l.command) == 0 {
			return usage("COMMAND is missing; see %s --help", cmd.CommandPath())
		}
		return nil
	}
}

// parse splits args, which begin after the leading flags, into ids and the command. It also parses the flags after each
// id.
func (l *commandLine) parse(cmd *cobra.Command, args []string, ids int) error {
	flags := cmd.Flags()
	for len(l.ids) < ids && len(args) > 0 && flags.ArgsLenAtDash() < 0 {
		l.ids = append(l.ids, args[0])
		if err := flags.Parse(args[1:]); err != nil {
			return cmd.FlagErrorFunc()(cmd, err)
		}
		args = flags.Args()
	}
	if help := flags.Lookup("help"); help != nil && help.Changed {
		return pflag.ErrHelp
	}
	l.command = args
	return nil
}

// wrongFlag returns the usage error for flags that could not be parsed.
func wrongFlag(cmd *cobra.Command, err error) error {
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && len(unknown.GetSpecifiedName()) > 1 {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				names = append(names, f.Name)
			}
		})
		return usage("%v%s; see %s --help", err, didYouMean("--", unknown.GetSpecifiedName(), names), cmd.CommandPath())
	}
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		if want := kinds[invalid.GetFlag().Value.Type()]; want != "" {
			return usage("--%s: must be %s, got %.40q; see %s --help", invalid.GetFlag().Name, want, invalid.GetValue(),
				cmd.CommandPath())
		}
	}
	return usage("%v; see %s --help", err, cmd.CommandPath())
}

// kinds describes, for each flag type, the values that a flag accepts.
var kinds = map[string]string{
	"duration": "a duration such as 90s or 1h30m", "bool": "true or false", "float64": "a number",
	"int": "a whole number", "int64": "a whole number", "uint64": "a whole number from 0",
}

// checkIDs validates --id and --request-id if they are set.
func checkIDs(cmd *cobra.Command, id, request string) error {
	if cmd.Flags().Changed("id") {
		if err := protocol.ValidateID("--id", id); err != nil {
			return err
		}
	}
	if cmd.Flags().Changed("request-id") {
		return protocol.ValidateID("--request-id", request)
	}
	return nil
}

// addPairs adds K=V arguments to a map.
func addPairs(flag string, into *map[string]string, args []string) error {
	for _, arg := range args {
		k, v, ok := strings.Cut(arg, "=")
		if !ok {
			return usage("%s: want K=V, got %.80q", flag, arg)
		}
		if *into == nil {
			*into = map[string]string{}
		}
		(*into)[k] = v
	}
	return nil
}
