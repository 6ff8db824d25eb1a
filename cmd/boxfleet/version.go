package main

import (
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
)

func versionCommand(con *console) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version of this program", Args: takes(),
		Example: "  boxfleet version",
		RunE:    func(*cobra.Command, []string) error { return printVersion(con) },
	}
}

func printVersion(con *console) error {
	v := struct {
		Version string `json:"version"`
		Wire    int    `json:"wire"`
		Go      string `json:"go"`
	}{version, protocol.Version, runtime.Version()}
	return con.show(v, func(w io.Writer) { fmt.Fprintf(w, "boxfleet %s, wire version %d, %s\n", v.Version, v.Wire, v.Go) })
}
