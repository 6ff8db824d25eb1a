// Package streams answers the requests of clients for operations inside this host's sandboxes, such as a connection to
// a server in a sandbox.
//
//	client ══ jetstream.ServeStreams ══► Server ──► Handler of the kind ──► files.Session ──► helper in the container
//	                                       │
//	                                       ├─ call.go      one request: its container, and when it ends
//	                                       ├─ sessions.go  the helpers of containers, shared by requests
//	                                       ├─ file.go      kind "file": short operations; filecarry.go: transfers
//	                                       ├─ dial.go      kind "dial": a connection to a server
//	                                       ├─ stdin.go     kind "stdin": input of a running exec
//	                                       ├─ port.go      kind "port": a wait until a server answers
//	                                       └─ ports.go     kind "ports": which ports have a server
//
// Kinds are registered in kinds.go. A handler gets a [Call]. It must not outlive the context it gets.
//
// Everything ends with the container that it works in, and with the tenure of the worker: the client then gets an error
// that says why. Nothing here makes a sandbox's own goroutine wait.
//
// uses.go tells the sandboxes' histories who used which stream, at a limited rate. These events also keep a sandbox
// with open streams from being stopped as idle.
//
// The package imports protocol, jetstream (for its types), stream, backoff, worker/attach, worker/decide,
// worker/files, worker/supervise, supervisor/control and zrecord.
package streams
