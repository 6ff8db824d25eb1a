// Package output publishes the output of the commands in a host's sandboxes. The supervisor writes the output to files,
// and the worker publishes it from these files, so no command ever waits for the log.
//
//	exec.go        the output of an exec ────────────┐
//	   keep.go     keeps its files after its end     ├──► feed.go ──► jetstream
//	   hash.go     hashes published output           │       │
//	   free.go     frees published output on disk    │       │
//	commandlog.go  the output of a container's own   │    turns.go  sandboxes and execs take turns
//	               command ──────────────────────────┘
//
// The files are untrusted: processes in a sandbox that an older worker created can change them. The worker reads no
// more than the size that the supervisor reported. If a file is shorter, or not a regular file, its stream ends.
//
// The package imports protocol, backoff, jetstream, supervisor/control and worker/supervise.
package output
