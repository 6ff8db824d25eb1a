package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v4"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/spec"
)

// specCommands are the commands of `boxfleet spec`.
type specCommands struct{ *client }

func (cmds specCommands) group() *cobra.Command {
	return group("spec", "Write and check sandbox specs", cmds.validateCommand(), cmds.renderCommand(),
		cmds.textCommand("example", "Print an example spec with every field", spec.Example),
		cmds.textCommand("schema", "Print the JSON Schema of specs for editors", spec.Schema))
}

func (cmds specCommands) textCommand(name, short string, text func() []byte) *cobra.Command {
	return &cobra.Command{
		Use: name, Short: short, Args: takes(),
		Example: "  boxfleet spec " + name,
		RunE: func(*cobra.Command, []string) error {
			var value any
			if err := yaml.Unmarshal(text(), &value); err != nil {
				return protocol.Errorf(protocol.Internal, "", "parse the built-in document: %v", err)
			}
			return cmds.show(value, func(w io.Writer) { fmt.Fprintf(w, "%s", text()) })
		},
	}
}
