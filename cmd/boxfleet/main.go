// Command boxfleet is Boxfleet's main binary: the client commands, the coordinator, the worker, and `up`, which runs
// the whole fleet on one machine.
//
//	main ── run ── command ── settings (file, environment, flags)
//	                 ├── client commands ── sdk
//	                 └── up, demo, coordinator, worker ── the roles, wired to NATS and Docker
//
// Only this package reads configuration.
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
	// The first signal starts a clean shutdown; the second one ends the process at once. Client commands handle
	// signals themselves.
	context.AfterFunc(ctx, stop)
	p := newProgram(os.Stdin, os.Stdout, os.Stderr)
	p.client.ownsProcess = true
	os.Exit(p.run(ctx, os.Args[1:]))
}
