// Package control is the protocol between a worker and the supervisor of one sandbox, over the sandbox's unix socket:
// the messages, their framing, and the exit record on disk.
//
//	worker (listens)                          supervisor (PID 1, dials)
//	                    <-- Hello, Hello(more) …
//	Welcome             -->
//	Start, Signal, …    -->
//	                    <-- Reply, Output, Result, Primary
//
// Each frame is one [Command] to the supervisor or one [Notice] to the worker. A new version of the protocol may add
// fields to a message, but may change nothing else. A sandbox may outlive the worker that created it, so a supervisor
// may be older or newer than the worker.
//
// The package imports protocol for the codec and the errors, and nothing else of this module.
package control
