// Package hostdir is the directory of one sandbox on its host: where it is, what it contains, and how it is created
// and removed. It exists before anything else of the sandbox and is removed last, so a worker that restarts finds
// every sandbox by listing these directories.
//
//	Root ── Of, List ──► Dir ── dir.go      create, key, remove
//	                      │
//	                      ├──── records.go  defaults, how much output was published elsewhere
//	                      └──── etc.go      the container's /etc/hosts, hostname and resolv.conf
//
// The package knows nothing about the log and asks the engine nothing. It imports protocol, worker/docker (for the
// type of a bind mount), worker/hosterr and worker/removal.
package hostdir
