// Package supervisor implements PID 1 of a sandbox. It starts execs and the primary command, writes their output and
// exit records, ends whole process trees, reaps child processes, and reports to the worker.
//
//	worker's socket <--dial-- session --> exec ---> launch ---> process --> stream --> files of the worker
//	                             |          |                      |
//	                             |          +--> tree (TERM, grace, KILL by group)
//	                             +<-- outbox <-- Result           reaper (wait)
//
// The supervisor needs nothing from the image: no shell, no /etc/passwd, no C library. After the first Welcome, running
// execs continue even while no worker is connected, and their results are sent on the next connection. No exec starts
// without a worker.
//
// Four facts shape the package:
//
//   - The processes of an exec are found by their group. Each exec has its own supplementary group, which an
//     unprivileged process cannot drop, not even with setsid or a double fork. Therefore [Run] first empties the
//     bounding set, so that no exec has a capability. Under a privileged supervisor, execs of root have capabilities. A
//     process that used them to drop its group is found by its session or its parents.
//   - The Go runtime aborts the program if it cannot create a thread, which happens when a fork bomb has reached the
//     sandbox's limit of processes. Therefore [Run] creates all threads first, and the number of goroutines in system
//     calls is limited.
//   - Nothing in the container gives access to the host's disk. Output goes to files that the worker opened and sent
//     with the command. The worker never sends a directory, because an exec could use it as its working directory.
//   - Some kernel objects are limited only for the whole machine. No process of the sandbox can create such objects:
//     this package installs a filter of system calls, in addition to the engine's filter; see seccomp.go. Limits of
//     each process are in limits.go.
//
// The package imports protocol and supervisor/control. It imports neither NATS nor the Engine's client.
package supervisor
