// Command boxfleet-supervisor is PID 1 of every sandbox. The worker mounts it into the container. It reads no
// configuration files; see package supervisor. The same program, under another name, is the helper that works on the
// container's files; see package supervisor/files.
package main

import (
	"context"
	"flag"
	"log/slog"
	"os"

	"github.com/boxfleet/boxfleet/seldom"
	"github.com/boxfleet/boxfleet/supervisor"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/supervisor/files"
)

func main() {
	if len(os.Args) == 2 && os.Args[0] == control.HelperName {
		if err := files.Run(os.Args[1]); err != nil {
			os.Exit(1) // the worker closed the connection, or broke the protocol; nobody reads an error
		}
		return
	}
	log := slog.New(seldom.New(slog.NewTextHandler(os.Stderr, nil)))
	config := supervisor.Config{Logger: log}
	groups := flag.Uint(
		"groups",
		supervisor.DefaultGroupBase,
		"first of the group ids that mark the processes of execs",
	)
	flag.StringVar(&config.ControlDir, "control", control.ContainerAt+"/ctl", "directory of the worker's socket")
	flag.BoolVar(&config.Privileged, "privileged", false, "commands run as root keep the container's capabilities")
	flag.Parse()
	config.GroupBase = uint32(*groups)
	if err := supervisor.Run(context.Background(), config); err != nil {
		log.Error("the supervisor could not start", "error", err)
		os.Exit(1)
	}
}
