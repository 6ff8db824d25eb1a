// Package worker holds the lock of one Docker host, and keeps a goroutine for each sandbox on the host. That goroutine
// makes the host match what the log says about the sandbox.
//
//	worker.go     runs the worker with one engine; starts over if the engine is replaced
//	   ├─ prepare.go     what the host offers and allows
//	   ├─ lock.go        the host's lock
//	   │
//	tenure.go     while the lock is held:
//	   ├─ register.go    the entry in the table of hosts, heartbeats
//	   ├─ engine.go      follows the engine's events, and inspects everything on the host at intervals
//	   │     ├─ initial.go   the first inspection, before the host takes new sandboxes
//	   │     ├─ own.go       which containers belong to this deployment
//	   │     └─ gpus.go      which sandboxes hold GPUs
//	   └─ mailboxes.go   a goroutine for each sandbox ──► worker/sandbox
//	                        └─ admit.go   whether the host has room for the sandbox
//
//	worker/sandbox ──► worker/service, worker/execs ──► worker/attach
//	      │                 └─► worker/decide (pure), worker/hostdir, worker/hostfiles, worker/output
//	      └─► worker/network, worker/images, worker/disk, worker/treecopy, …
//	                  └─► worker/docker, worker/firewall, worker/supervise
//
// Imports go down only, and no package below imports worker.
//
// The goroutine of a sandbox works in steps, until nothing is left to do. Each step inspects the host, compares what it
// found with the sandbox's state in the log, and does one operation. A worker that restarts takes the same steps; there
// is no second path for recovery.
//
// worker/disk watches the free space on the host's disks, and stops the sandbox that fills a disk. Package disk works
// without the host's lock. So does purge.go, which removes what a deployment leaves on a host; it holds only the host's
// local lock. Everything else that changes the host needs the lock: before each request that may change something on
// the engine, and before each start of an exec, the fence checks that the lock is held.
//
// The package imports protocol, jetstream, seldom, wake, backoff, supervisor/control and its own sub-packages, never
// coordinator.
package worker
