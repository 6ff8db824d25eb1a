// Package hostfiles decides which files of the host a sandbox may use, and mounts exactly these files. It also keeps
// the engine from mounting directories of the host for the volumes that images declare: it covers the volumes' paths
// while the container starts.
//
//	spec ──► Files ─┬─► Policy   policy.go, forbidden.go   paths below the operator's allow-list
//	                └─► Toolbox  toolbox.go, tooltable.go  files of builtin tools; shadow.go copies some of them,
//	                     │                                 home.go finds the home directory to mount them in
//	                     ▼
//	            Bindings, stored in the sandbox's directory  bindings.go
//	                     ▼ each start
//	            Opened: Show, start, Hide, Verify            opened.go
//
//	image ──► Volumes ──► CoverVolumes, start, UncoverVolumes  volumes.go, uncover.go
//
// A process that may write to a mounted directory can replace a path in it with a link at any moment. The worker
// therefore opens a source once and checks it through its descriptor (open.go, mounttable.go). After the container's
// start, the worker compares the open source with the file that the container has mounted.
//
// The package imports protocol, supervisor/control (for one path), worker/docker (for its types; it makes no request
// to the engine), worker/hostdir, worker/hosterr and worker/removal.
package hostfiles
