// Package attach holds the connection to the supervisor of one start of a container. The container is a sandbox's
// primary container, or a service's.
//
//	sandbox, service ──► Attachment ──► supervise.Link ──► supervisor, PID 1 of the container
//	        ▲                │
//	        └──── Events ────┘   output grew, an exec ended, the container's own command started or ended
//
// attachment.go opens and ends a connection. command.go runs the worker's own commands in the container, and hook.go
// runs hooks as such commands. forget.go has the supervisor drop execs that have ended. process.go says how a container
// runs its supervisor.
//
// The package imports protocol, backoff, supervisor/control, worker/docker (for its types), worker/hosterr and
// worker/supervise.
package attach
