// Package hostfiles decides which files of the host a sandbox may use, and mounts exactly those. It also covers and
// uncovers the volumes that images declare.
//
//	spec ──► Files ─┬─► Policy   policy.go, forbidden.go   paths below the operator's allow-list
//	                └─► Toolbox  toolbox.go, tooltable.go  files of builtin tools; shadow.go copies some of them,
//	                     │                                 home.go says where they go
//	                     ▼
//	            Bindings, stored in the sandbox's directory  bindings.go
//	                     ▼ each start
//	            Opened: Show, start, Hide, Verify            opened.go
//
//	image ──► Volumes ──► CoverVolumes, start, UncoverVolumes  volumes.go, uncover.go
//
// Everybody who may write a mounted directory can replace a path in it with a link at any moment. So a source is
// opened once, checked through its descriptor (open.go, mounttable.go), and compared after the start with what the
// container really has mounted.
//
// The package imports protocol, supervisor/control (for one path), worker/docker (for its types; it makes no request
// to the engine), worker/hostdir, worker/hosterr and worker/removal.
package hostfiles
