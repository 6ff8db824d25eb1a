// Package control is what the worker and the supervisor of one sandbox say to each other over the
// sandbox's unix socket: the messages, their framing, and the exit record on disk.
//
//	worker (listens)                          supervisor (PID 1, dials)
//	                    <-- Hello, Hello(more) …
//	Welcome             -->
//	Start, Cancel, …    -->
//	                    <-- Reply, Output, Result, Primary
//
// Each frame is one [Command] towards the supervisor or one [Notice] towards the worker. The schema
// only grows: a sandbox outlives the worker that made it, so a supervisor may be older than the
// worker that talks to it, or newer.
//
// The package imports protocol for the codec and the errors, and nothing else of this module.
package control
