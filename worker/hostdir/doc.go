// Package hostdir creates, reads and removes the directory of a sandbox on its host. The worker makes this directory
// before all other parts of the sandbox on the host, and removes it last. A worker that restarts therefore finds every
// sandbox by listing these directories.
//
//	Root ── Of, List ──► Dir ── dir.go      create, key, remove
//	                      │
//	                      ├──── records.go  defaults, how much output was published on other hosts
//	                      └──── etc.go      the container's /etc/hosts, hostname and resolv.conf
//
// The package does not read the log and makes no request to the engine. It imports protocol, worker/docker (for the
// type of a bind mount), worker/hosterr and worker/removal.
package hostdir
