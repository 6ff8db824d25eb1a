// Package service runs one service of a sandbox. A service has a container of its own in the sandbox's network. The
// worker starts this container with the sandbox, tests its health, and starts it again when it ends.
//
//	sandbox ──► Service.Start ──► startup.go   container, supervisor, health, hooks; appends ready or failed
//	                 │               ├─ container.go  makes and starts the container
//	                 │               └─ health.go     health tests
//	                 └──────────► watch.go     keeps the container running; appends ready or failed after a change
//
// A service has a goroutine and a lock of its own. Process 1 of its container is the supervisor, which runs the image's
// command. Execs, process trees and a restart of the worker are therefore handled as in the sandbox's primary
// container.
//
// The package imports protocol, backoff, wake, supervisor/control, and of worker the packages worker/attach,
// worker/decide, worker/docker, worker/epoch, worker/hostdir, worker/hosterr, worker/hostfiles, worker/output and
// worker/secrets.
package service
