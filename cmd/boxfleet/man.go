package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// manCommand returns a command for packages of this program. The help does not list it.
func manCommand() *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Short: "Write the manual pages of all commands to a directory", Hidden: true,
		Args:    func(cmd *cobra.Command, args []string) error { return counts(cmd, args, "DIR") },
		Example: "  boxfleet man /usr/local/share/man/man1",
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			root.DisableAutoGenTag = true // the same program always has the same pages
			if err := doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "Boxfleet " + version}, args[0]); err != nil {
				return usage("write the manual pages: %v", err)
			}
			return nil
		},
	}
}
