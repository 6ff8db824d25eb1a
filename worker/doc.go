// Package worker holds the lock of one Docker host, and has its sandboxes brought to what the log says.
//
//	worker.go     one run with one engine; prepare.go what it offers, lock.go its lock
//	   │
//	tenure.go     while the lock is held:
//	   ├─ register.go    the entry in the table of hosts, heartbeats
//	   ├─ engine.go      the engine's events; from time to time an inspection of everything on the host
//	   │     └─ initial.go   the first one, before the host takes new sandboxes; own.go, gpus.go
//	   └─ mailboxes.go   a goroutine for each sandbox ──► worker/sandbox
//	                        └─ admit.go   whether there is room for it
//
//	worker/sandbox ──► worker/service ──► worker/attach
//	      │                 └─► worker/decide (pure), worker/hostdir, worker/hostfiles, worker/output
//	      └─► worker/network, worker/images, worker/disk, worker/treecopy, …
//	                  └─► worker/docker, worker/firewall, worker/supervise
//
// Imports go down only, and no package below imports worker.
//
// A sandbox moves by steps: its state in the log and the inspection of the host give one operation, until nothing is
// left to do. A worker that restarts takes the same steps; there is no second path for recovery.
//
// worker/disk watches the free space on the host's disks, and stops the sandbox that fills one. It needs no lock.
// Everything else that changes the host does: each request to the engine passes the fence in worker/docker, and so does
// each start of an exec.
//
// The package imports protocol, jetstream, seldom, wake, backoff, supervisor/control and its own sub-packages, never
// coordinator.
package worker
