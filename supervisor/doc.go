// Package supervisor is PID 1 of a sandbox: it starts execs and the primary command, writes their
// output and exit records, ends whole process trees, reaps, and tells the worker.
//
//	worker's socket <--dial-- session --> exec ---> launch ---> process --> stream --> files of the worker
//	                             |          |                      |
//	                             |          +--> tree (TERM, grace, KILL by group)
//	                             +<-- outbox <-- Result           reaper (wait)
//
// Nothing here depends on the image: no shell, no /etc/passwd, no C library. Nothing depends on
// the worker either, once it has said Welcome: while it is away, execs start no more, but those
// that run go on, and what there is to tell is told on the next connection.
//
// Four facts shape the package:
//
//   - A process is found by its group. Each exec has one supplementary group of its own, which an
//     unprivileged process cannot drop, whatever else it does (setsid, double fork). That is why
//     [Run] empties the bounding set before anything else, so that no exec has a capability. Root
//     execs of a privileged supervisor do; one that dropped its group is found by its parents.
//   - The Go runtime ends the program when it cannot make a thread, and a fork bomb that fills the
//     pids limit makes sure of that. So [Run] makes the threads first and bounds blocking calls.
//   - Nothing in the container leads to the host's disk. What is written goes to files that the worker
//     opened and passed with the command. It is never a directory that is passed: an exec's working directory
//     could be named by it.
//   - What the kernel counts for the whole machine is taken from everything here, by a filter of system
//     calls on top of the engine's, and by limits of each process; see seccomp.go and limits.go.
//
// The package imports protocol and supervisor/control, and neither NATS nor the Engine's client.
package supervisor
