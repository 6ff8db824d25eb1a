package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/spec"
)

// distinct returns texts without duplicates, in the same order.
func distinct(texts []string) []string {
	each := []string{}
	for _, text := range texts {
		if !slices.Contains(each, text) {
			each = append(each, text)
		}
	}
	return each
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// didYouMean suggests the known name that is closest to a mistyped name. It returns "" if no name is close.
func didYouMean(prefix, name string, known []string) string {
	if meant := spec.Nearest(name, known); meant != "" {
		return "; did you mean " + prefix + meant + "?"
	}
	return ""
}

// namesOf converts values to strings.
func namesOf[T ~string](values []T) []string {
	names := make([]string, len(values))
	for i, v := range values {
		names[i] = string(v)
	}
	return names
}

// statesOf parses --state. It rejects unknown states, because they would match nothing.
func statesOf[T ~string](names []string, known []T) ([]T, error) {
	var states []T
	for _, name := range names {
		if !slices.Contains(known, T(name)) {
			return nil, usage("--state: must be %s, got %.40q%s", strings.Join(namesOf(known), ", "), name,
				didYouMean("", name, namesOf(known)))
		}
		states = append(states, T(name))
	}
	return states, nil
}

// unknownCommand returns the error for an unknown subcommand.
func unknownCommand(cmd *cobra.Command, name string) error {
	return usage("unknown command %q%s; see %s --help", name, commandMeant(cmd, name), cmd.CommandPath())
}

// commandMeant suggests a subcommand of cmd with a similar name. If there is none, it suggests commands with exactly
// that name elsewhere, such as `boxfleet sandbox stop` for `boxfleet stop web`.
func commandMeant(cmd *cobra.Command, name string) string {
	var known, elsewhere []string
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		for _, below := range c.Commands() {
			if below.Hidden {
				continue
			}
			names := append([]string{below.Name()}, below.Aliases...)
			if c == cmd {
				known = append(known, names...)
			}
			if slices.Contains(names, strings.ToLower(name)) {
				elsewhere = append(elsewhere, "`"+below.CommandPath()+"`")
			}
			visit(below)
		}
	}
	visit(cmd.Root())
	if meant := spec.Nearest(name, known); meant != "" {
		return "; did you mean `" + cmd.CommandPath() + " " + meant + "`?"
	}
	if len(elsewhere) > 0 {
		return "; did you mean " + strings.Join(elsewhere, " or ") + "?"
	}
	return ""
}
