// Package worker is what is done: it holds one Docker host's lock, and makes the host show what
// the log says.
//
//	work items, engine events, supervisor ──► sandbox.go  one goroutine per sandbox
//	                                             │  next(state, observed) ─► one operation
//	                            ┌────────────────┼──────────────┐
//	                        create.go        exec.go        remove.go
//	                            │                │              │
//	                      worker/docker   worker/supervise   journal ─► the log
//
// A sandbox moves by steps: what the log says it should be and what the host shows it to be give
// one operation, until nothing is left to do. A restart asks the same question and goes on; there
// is no second path for recovery. step.go and crashloop.go are pure.
//
// The services of a sandbox have a goroutine each, which services.go keeps: service.go is one of them,
// servicestart.go brings it up, servicecontainer.go makes and starts its container, servicehealth.go
// says when it is ready, servicewatch.go whether it stays so.
//
// diskwatch.go watches the room on the host's disks beside all this, and stops the sandbox that fills one.
//
// But for that, nothing on the host is changed without the lock: every request that changes something passes the
// fence in worker/docker, and starting an exec passes it here.
//
// The package imports protocol, jetstream, imageref, imagetar, seldom, supervisor/control and its own
// sub-packages, never coordinator.
package worker
