// Package control is the protocol between a worker and the supervisor of one sandbox, over the sandbox's unix socket:
// the messages, their framing, and the exit record on disk.
//
//	worker (listens)                          supervisor (PID 1, dials)
//	                    <-- Hello, Hello(more) …
//	Welcome             -->
//	Start, Cancel, …    -->
//	                    <-- Reply, Output, Result, Primary
//
// Each frame is one [Command] to the supervisor or one [Notice] to the worker. The schema only grows: a sandbox
// outlives the worker that made it, so its supervisor may be older or newer than the worker that talks to it.
//
// The package imports protocol for the codec and the errors, and nothing else of this module.
package control
