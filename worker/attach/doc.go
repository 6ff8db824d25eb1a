// Package attach holds the connection to the supervisor of one start of a container. The container is a sandbox's
// primary container, or the container of a service.
//
//	sandbox, service ──► Attachment ──► supervise.Link ──► supervisor, PID 1 of the container
//	        ▲                │
//	        └──── Events ────┘   output grew, an exec ended, the container's own command started or ended
//
// attachment.go opens and ends a connection. command.go runs the worker's own commands in the container, and hook.go
// runs hooks as such commands. forget.go tells the supervisor to drop execs that have ended. process.go makes the
// supervisor process 1 of a container.
//
// The package imports protocol, backoff, supervisor/control, worker/docker (for its types), worker/hosterr and
// worker/supervise.
package attach
