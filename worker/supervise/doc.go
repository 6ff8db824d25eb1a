// Package supervise is the worker's side of a sandbox's supervisor: the connection to it, and the files that it writes.
//
//	worker --- Start, Cancel, … ---> Link <==unix socket== supervisor (PID 1)
//	       <-- OnEnd, OnOutput, … --  | descriptors go with Start and Welcome
//	                                  v
//	       <-- OpenOutput, ReadRecord --- run/execs/.<set>.{stdout,stderr,exit}, run/primary/{stdout,stderr}
//
// The worker listens and the supervisor dials, so nothing in the container can lead the worker elsewhere; and the
// peer's pid, which the kernel reports, must be that of the container's init. The run directory is mounted in no
// container: the worker opens the files, and the supervisor only has their descriptors. Their content is untrusted all
// the same, and is read with a limit. A sandbox made by an older worker has the directory mounted, where its root can
// write; its supervisor makes the files, in run/execs/<id>/. Therefore files are opened without following links, and
// must be regular.
//
// Files to which an exec has written nothing are used for the next exec; run/execs/.sets says to which exec each set
// belongs. The previous version named the files after the exec.
//
// The package imports protocol and supervisor/control.
package supervise
