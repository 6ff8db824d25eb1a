package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/spec"
)

func (cmds specCommands) validateCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "validate -f FILE", Short: "Check a file of one or more specs without a fleet", Args: takes(),
		Long: "Check a file of one or more specs without a fleet. The check covers everything that does not depend " +
			"on a host\nor on the tenant's defaults. Variables come from the environment.",
		Example: "  boxfleet spec validate -f spec.yaml",
		RunE: func(*cobra.Command, []string) error {
			documents, err := readSpecs(file, cmds.stdin)
			if err != nil {
				return err
			}
			ids, names, wrong := make([]string, len(documents)), make([]string, len(documents)), make([]error, len(documents))
			for i, d := range documents {
				ids[i], names[i], wrong[i] = d.ID, d.Name, check(d)
			}
			if err := spec.Join(wrong...); err != nil {
				return err
			}
			return cmds.show(map[string]any{"file": file, "documents": len(documents), "ids": ids, "names": names},
				func(w io.Writer) {
					for i, d := range documents {
						fmt.Fprintf(w, "%s: document %d is valid", specOptions(file).Name, i+1)
						if called(d) != "" {
							fmt.Fprintf(w, ": %s", called(d))
						}
						fmt.Fprintln(w)
					}
				})
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "YAML `file`, - for stdin")
	return cmd
}
