// Command boxfleet is the one binary of Boxfleet: the client's commands, the coordinator, the
// worker, and `up`, which runs all of it on one machine.
//
//	main ── run ── command ── settings (file, environment, flags)
//	                 ├── client commands ── sdk
//	                 └── up, demo, coordinator, worker ── the roles, wired to NATS and Docker
//
// Configuration is read here and nowhere else.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// version is set by the build.
var version = "0.0.0"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal asks for a clean end; after it the second one ends the process at once. Clients
	// heed signals themselves.
	context.AfterFunc(ctx, stop)
	p := &program{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, process: true}
	os.Exit(p.run(ctx, os.Args[1:]))
}
