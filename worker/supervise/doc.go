// Package supervise is the worker's side of a sandbox's supervisor: the connection to it, and the files
// that it writes.
//
//	worker --- Start, Cancel, … ---> Link <==unix socket== supervisor (PID 1)
//	       <-- OnEnd, OnOutput, … --  | descriptors go with Start and Welcome
//	                                  v
//	       <-- OpenOutput, ReadRecord --- run/execs/.<set>.{stdout,stderr,exit}, run/primary/{stdout,stderr}
//
// The worker listens and the supervisor dials, so nothing in the container can lead the worker
// elsewhere; and the peer's pid, which the kernel tells, must be the container's init. The run directory is
// in no container: the worker opens the files, and the supervisor has no more than their descriptors. What is
// in them is the sandbox's word all the same, and is read with a bound. A sandbox that a worker of an older
// version made has the directory mounted, where its root can write; its supervisor makes the files, in
// run/execs/<id>/. So all that is read is opened without following a link, and must be a regular file.
//
// Files that an exec has written nothing to are the next one's; run/execs/.sets says whose they are. A worker of the
// version before named them after the exec.
//
// The package imports protocol and supervisor/control.
package supervise
