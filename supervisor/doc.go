// Package supervisor is PID 1 of a sandbox: it starts execs and the primary command, writes their output and exit
// records, ends whole process trees, reaps children, and reports to the worker.
//
//	worker's socket <--dial-- session --> exec ---> launch ---> process --> stream --> files of the worker
//	                             |          |                      |
//	                             |          +--> tree (TERM, grace, KILL by group)
//	                             +<-- outbox <-- Result           reaper (wait)
//
// Nothing here depends on the image: no shell, no /etc/passwd, no C library. After the first Welcome, nothing depends
// on the worker either: while it is away, no exec starts, but running ones continue, and their results are sent on the
// next connection.
//
// Four facts shape the package:
//
//   - A process is found by its group. Each exec has one supplementary group of its own, which an
//     unprivileged process cannot drop, not even with setsid or a double fork. Therefore [Run] first
//     empties the bounding set, so that no exec has a capability. Under a privileged supervisor, root's
//     execs have some; a process that dropped its group is found by its parents.
//   - The Go runtime aborts the program if it cannot make a thread, and a fork bomb that fills the pids
//     limit prevents that. Therefore [Run] makes the threads first and limits blocking calls.
//   - Nothing in the container leads to the host's disk. Output goes to files that the worker opened and
//     passed with the command. It never passes a directory, which an exec could use as its working
//     directory.
//   - What the kernel counts for the whole machine is denied to all processes here, by a filter of system
//     calls on top of the engine's, and by limits of each process; see seccomp.go and limits.go.
//
// The package imports protocol and supervisor/control, and neither NATS nor the Engine's client.
package supervisor
