// Package attach is the connection to the supervisor of one start of a container, whether it is a sandbox's own or a
// service's.
//
//	sandbox, service ──► Attachment ──► supervise.Link ──► supervisor, PID 1 of the container
//	        ▲                │
//	        └──── Events ────┘   output grew, a command ended, the own command changed
//
// attachment.go opens and ends a connection, command.go runs commands of the worker in the container, hook.go runs
// hooks as such commands, forget.go has the supervisor drop what has ended.
//
// process.go says how a container runs its supervisor.
//
// The package imports protocol, backoff, supervisor/control, worker/docker (for its types), worker/hosterr and
// worker/supervise.
package attach
