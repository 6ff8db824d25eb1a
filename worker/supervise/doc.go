// Package supervise is the worker's side of a sandbox's supervisor: the connection to it, and the
// reading of what it leaves in the run directory.
//
//	worker --- Start, Cancel, … ---> Link <==unix socket== supervisor (PID 1)
//	       <-- OnEnd, OnOutput, … --
//	       <-- OpenOutput, ReadRecord --- run/execs/<id>/{stdout,stderr,exit}
//
// The worker listens and the supervisor dials, so nothing in the container can lead the worker
// elsewhere; and the peer's pid, which the kernel tells, must be the container's init. The run
// directory is written by the supervisor, and can be written by a root process of the sandbox:
// whatever is read from it is opened beneath it, without following a link, must be a regular
// file, and is read with a bound.
//
// The package imports protocol and supervisor/control.
package supervise
