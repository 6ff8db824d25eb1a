// Package output publishes what the commands of a host's sandboxes print. Output is written to files in the sandbox
// first; it is published from there, so no command ever waits for the log.
//
//	exec.go        the output of an exec ────────────┐
//	   keep.go     its files after its end           ├──► feed.go ──► jetstream
//	   free.go     frees what is published           │       │
//	commandlog.go  the output of a container's own   │    turns.go  sandboxes and execs take turns
//	               command ──────────────────────────┘
//
// The files are untrusted: a container can change them. No more is read than the supervisor announced, and a file
// that turns out shorter, or to be something else, ends the stream.
//
// The package imports protocol, backoff, jetstream, supervisor/control and worker/supervise.
package output
