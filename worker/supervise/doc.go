// Package supervise is the worker's side of a sandbox's supervisor: the connection to the supervisor, and the files
// that the supervisor writes.
//
//	worker --- Start, Cancel, … ---> Link <==unix socket== supervisor (PID 1)
//	       <-- OnEnd, OnOutput, … --  | Start and Welcome carry descriptors
//	                                  v
//	       <-- OpenOutput, ReadRecord --- run/execs/.<set>.{stdout,stderr,exit}, run/primary/{stdout,stderr}
//
// The worker listens and the supervisor dials, so no process in the container can make the worker connect to another
// socket. The kernel reports the pid of the peer, and that pid must be the pid of the container's init.
//
// The worker opens the files in the run directory, and sends their descriptors to the supervisor. The run directory is
// mounted in no container. Nevertheless the content of the files is untrusted, and is read with a limit.
//
// In a sandbox that an older worker created, the run directory is mounted in the container, and the supervisor creates
// the files in run/execs/<id>/. The root user of such a sandbox can write to the run directory. So the worker opens
// files without following links, and only if they are regular files.
//
// The files of an exec form a set. If an exec has written nothing to its set, the next exec uses the set. The file
// run/execs/.sets tells to which exec each set belongs. The previous version named the files after the exec.
//
// A helper in the container works on its files. [Link.Files] returns a session of package worker/files, which starts
// helpers through the link.
//
// The package imports protocol, supervisor/control, supervisor/packet and worker/files.
package supervise
