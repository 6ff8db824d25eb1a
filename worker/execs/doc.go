// Package execs runs the execs of one sandbox on this host, in its primary container and in the containers of its
// services.
//
//	sandbox ──► Execs.Start ──► a goroutine for each exec (exec.go), until the log has the exec's end:
//	               ▲               │
//	               │               ├─ start.go    appends exec.started, then tells the supervisor to start the exec
//	               │               ├─ exec.go     publishes the output until the supervisor reports the result
//	               │               ├─ signals.go  delivers the exec's signals
//	               │               └─ end.go      publishes the rest, appends the end; the supervisor forgets the exec
//	               │
//	execs.go ◄─────┴── reports of supervisors: output grew, an exec ended
//
// Each step of an exec can be interrupted and repeated. A worker that restarts therefore continues an exec with the
// same code. Whether an exec may start, and which event ends it, is decided in worker/decide.
//
// The package imports protocol, backoff, wake and supervisor/control, and these packages below worker: worker/attach,
// worker/decide, worker/hostdir, worker/hosterr, worker/output, worker/secrets and worker/supervise. It knows its
// sandbox only through the interfaces in config.go.
package execs
