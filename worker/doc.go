// Package worker holds the lock of one Docker host, and brings the host to what the log says.
//
//	work items, engine events, supervisor ──► sandbox.go  one goroutine per sandbox
//	                                             │  decide.Next(state, inspection) ─► one operation
//	                            ┌────────────────┼──────────────┐
//	                        create.go        exec.go        remove.go
//	                            │                │              │
//	                      worker/docker   worker/supervise   worker/decide ─► journal ─► the log
//
// A sandbox moves by steps: its state in the log and the inspection of the host give one operation, until nothing is
// left to do. A worker that restarts takes the same steps; there is no second path for recovery. Package
// worker/decide, which chooses the operation and the events to append, is pure.
//
// Each service of a sandbox has a goroutine of its own. services.go starts and ends them, service.go is one of them,
// servicestart.go brings it up, servicecontainer.go makes and starts its container, servicehealth.go decides when it is
// ready, servicewatch.go watches it from then on.
//
// worker/disk watches the free space on the host's disks, and stops the sandbox that fills one. It needs no lock.
// Everything else that changes the host does: each request to the engine passes the fence in worker/docker, and the
// start of an exec passes the fence of this package.
//
// The package imports protocol, jetstream, imageref, imagetar, seldom, wake, backoff, supervisor/control and
// its own sub-packages, never coordinator.
package worker
