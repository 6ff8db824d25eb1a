// Package supervisor is PID 1 of a sandbox: it starts execs and the primary command, keeps their
// output and exit records on disk, ends whole process trees, reaps, and tells the worker.
//
//	worker's socket <--dial-- session --> exec ---> launch ---> process --> stream --> run/execs/<id>/stdout
//	                             |          |                      |
//	                             |          +--> tree (TERM, grace, KILL by group)
//	                             +<-- outbox <-- Result           reaper (wait)
//
// Nothing here depends on the image: no shell, no /etc/passwd, no C library. Nothing depends on
// the worker either, once it has said Welcome: while it is away, execs start no more, but those
// that run go on, and what there is to tell is told on the next connection.
//
// Three facts shape the package:
//
//   - A process is found by its group. Each exec has one supplementary group of its own, which an
//     unprivileged process cannot drop, whatever else it does (setsid, double fork). That is why
//     [Run] empties the bounding set before anything else, so that no exec has a capability. Root
//     execs of a privileged supervisor do; one that dropped its group is found by its parents.
//   - The Go runtime ends the program when it cannot make a thread, and a fork bomb that fills the
//     pids limit makes sure of that. So [Run] makes the threads first and bounds blocking calls.
//   - Processes in the sandbox are hostile to one another. A root process may even write in the
//     run directory; so records are sealed, and files are opened once and kept open.
//
// The package imports protocol and supervisor/control, and neither NATS nor the Engine's client.
package supervisor
