// Package files is the helper that works on the files of a container, as one of the container's users. The supervisor
// starts it from its own program, with a socket to the worker.
//
//	worker/files ══ packets ══► serve ──► one operation: read, write, list, grep, watch, ...
//	             ◄─ descriptor of a regular file, or of a connection
//
// The helper runs in the container, with the container's view of files and network, and with the rights of its user.
// The kernel decides what it may do. It is no barrier itself: the container's root can do with it what root likes, so
// the worker trusts nothing that it says.
//
// An operation never waits for a file. Files are opened without blocking, and are used only if they are regular files
// or directories. Trees are walked and copied by descriptors, so a directory that is replaced by a link meanwhile leads
// nowhere else. Memory is bounded, whatever the tree looks like.
//
// The package imports protocol, supervisor/control and supervisor/packet.
package files
