// Package service runs one service of a sandbox: a container beside the sandbox's own, which starts with it, is tested,
// and is started again when it ends.
//
//	sandbox ──► Service.Start ──► startup.go   container, supervisor, health, hooks; appends ready or failed
//	                 │               ├─ container.go  makes and starts the container
//	                 │               └─ health.go     health tests
//	                 └──────────► watch.go     keeps it up; appends what changes
//
// A service has a goroutine and a lock of its own. Process 1 of its container is the supervisor, which runs the image's
// command, so execs, process trees and adoption after a restart of the worker work as in the sandbox's own container.
//
// The package imports protocol, backoff, wake, supervisor/control, and of worker the packages worker/attach,
// worker/decide, worker/docker, worker/epoch, worker/hostdir, worker/hosterr, worker/hostfiles and worker/output.
package service
